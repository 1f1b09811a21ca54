"""From drafts to files: check the kind's rules, make it durable, then tell the index.

Every write of Holdfast passes here, and what a caller gives is looked through for secrets before anything else. Each
document write leaves a line in the write log, with the versions before and after. With an op_id the intent is made
durable there before the document changes, so that a repeated op_id can be told from a new one whatever happened in
between. A line of a log carries its op_id itself. "Telling the index" is noting the path: the next read brings the
index up to it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound, OverBudget
from holdfast.formats import jsonl, markdown, sections
from holdfast.model import kinds, names
from holdfast.model import scopes as scope
from holdfast.model.kinds import KINDS, LEDGER, Kind
from holdfast.model.layout import Place, Places
from holdfast.model.names import check_text, same_words
from holdfast.model.records import Draft, Receipt, Record, check_plain, path_of, version_of
from holdfast.model.scopes import Scope
from holdfast.model.settings import Limits
from holdfast.model.times import mint, normal, today, utc_now
from holdfast.secrets import scan
from holdfast.storage import accounts, bringing, drafts, receiving, sayings
from holdfast.storage.index import Applied
from holdfast.storage.scopes import Scopes
from holdfast.storage.secret_policy import Screen
from holdfast.storage.tree import ABSENT, LogEnd, Vault

_TRIES = 200
_WRITER: ContextVar[str] = ContextVar("writer", default="")
"""Who writes in this thread, where a door serves several."""


class Known(msgspec.Struct, frozen=True):
    """What is known before a line is written: what an op_id did, how far a log was read, a target's greatest order."""

    applied: list[Applied]
    offset: int
    order: str


class Writer:
    """Writes to one vault.

    `known(op_id, path, target)` returns what is known of an op_id and of a key or id of a log; `tell(path)` notes that
    a path changed; `writer` is who writes, as the door knows it: nobody can say so in a draft.
    """

    def __init__(
        self, vault: Vault, places: Places, scopes: Scopes, limits: Limits,
        known: Callable[[str, str, str], Known], tell: Callable[[str], None], screen: Screen, writer: str = "",
    ) -> None:  # fmt: skip
        self._vault = vault
        self._places = places
        self._scopes = scopes
        self._limits = limits
        self._known = known
        self._tell = tell
        self._screen = screen
        self._door = writer
        self._bringer = bringing.Bringer(vault, limits.line_bytes)
        self.receiver = receiving.Receiver(vault, places, limits, screen, self._bringer, lambda: self._by)

    @property
    def name(self) -> str:
        """Who writes here, as the door knows it."""
        return self._by

    @property
    def _by(self) -> str:
        return _WRITER.get() or self._door

    @contextlib.contextmanager
    def by(self, writer: str) -> Iterator[None]:
        """Note somebody else as the writer in this thread, for a door that serves several."""
        token = _WRITER.set(writer)
        try:
            yield
        finally:
            _WRITER.reset(token)

    def put(self, draft: Draft) -> Receipt:
        """Keep a new record, or change the one that the draft names."""
        check_text(draft.kind, draft.text or "", draft.title, draft.session, draft.id, *(draft.tags or ()))
        if draft.fields:
            check_plain(draft.fields)
        check_op(draft.op_id)
        if draft.id and (draft.expect or not draft.kind):
            place = self._places.classify(path_of(draft.id))
            if place is None:
                raise _no_edit(draft.id)
            if draft.kind and place.kind is not kinds.kind(draft.kind):
                raise Invalid(f"{draft.id} is a {place.kind.name}, not a {draft.kind}.", "Leave the kind out.")
            return self._change(place, draft)
        kind = kinds.kind(draft.kind)
        drafts.check_fit(kind, draft)
        if kind.owned:
            raise Invalid(f"{kind.one} is written by Holdfast itself.", "Choose another kind.")
        draft = self._screen.draft(kind, drafts.with_defaults(kind, draft))
        drafts.check(kind, draft)
        if kind.shape == "line":
            return self._append_line(kind, draft)
        if kind.shape == "section":
            return self._add_section(kind, draft)
        return self._create(kind, draft)

    # documents

    def _create(self, kind: Kind, draft: Draft) -> Receipt:
        path = self._new_path(kind, draft)
        data = markdown.render(drafts.front(kind, draft), draft.text or "")
        self._check_size(path, data)
        version = version_of(data)
        wanted = Wanted(ABSENT, draft.op_id, "stored")
        if repeated := self._repeated(wanted, path):
            return repeated
        if kind.write_once:
            if self._vault.stat(path):
                if repeated := self._repeated(wanted, path):  # somebody else did it under this op_id meanwhile
                    return repeated
                raise AlreadyExists(f"{path} already exists; nothing was written.", "Choose another name.")
            entry = {"state": path.rpartition("/")[2], "name": draft.title, "version": version}
            self._log_line(f"{path.rpartition('/')[0]}/{LEDGER}", entry, durable=True)
        return self._write(path, lambda _: Made(data, path, version), wanted)

    def _new_path(self, kind: Kind, draft: Draft) -> str:
        if "{any}" in kind.place:
            place = self._places.classify(draft.id) if draft.id else None
            if place is None or place.kind is not kind:
                raise Invalid(f"{kind.one} is written by its path.", f"Give an id like {self._places.example(kind)}.")
            return draft.id
        if kind.name == "overview":
            parent = self._scopes.resolve(draft.scope).path if draft.scope else ""
            if parent.count("/") >= 2:
                raise Invalid("A repository has no levels below it.", "Use workspace/domain as the scope.")
            wanted = names.same(draft.title)
            taken = [
                f
                for f in self._scopes.children(parent)
                if wanted in (names.same(f), names.same(self._scopes.name(f"{parent}/{f}".strip("/"))))
            ]
            found = f"{parent}/{taken[0]}".strip("/") if taken else self._scopes.folder_for(draft.title, parent)
            return self._places.overview(found)
        where = self._scopes.resolve(draft.scope)
        stem = names.slug(draft.title, kind.name)
        if not kind.slugged:
            stem = names.unique(draft.title, kind.name, ignore_case=kind.ignore_case)
        if kind.dated:
            stem = f"{str(draft.fields.get('created') or today())[2:10].replace('-', '')}-{stem}"
        return self._places.path_for(kind, where, stem)

    def _write(self, path: str, make: Callable[[bytes | None], Made], wanted: Wanted) -> Receipt:
        """Write a document from what it is now; retried while others change it, if the caller named no version."""
        for attempt in range(_TRIES):
            before, current = self._now(path) if wanted.expect != ABSENT else (ABSENT, None)
            if repeated := self._repeated(wanted, path):
                return repeated
            if wanted.expect not in (ABSENT, ANY) and before != wanted.expect:
                raise Conflict(
                    f"{path} was changed since version {wanted.expect[:8]}; nothing was written.",
                    "Read it again and redo the edit.",
                )
            made = make(current)
            account: dict[str, Any] = {"path": path, "before": before, "after": made.version}
            if wanted.undoes:
                account["undo"] = True
            if wanted.moved:
                account["moved"] = True
            if made.id != path:
                account |= {"after": version_of(made.data), "record": made.id, "version": made.version}
            if made.data == current:
                if wanted.op_id:  # it must not have an effect later either
                    self._account(account, wanted.op_id)
                return Receipt("unchanged", made.id, path, made.version)
            self._check_size(path, made.data)
            if wanted.op_id:
                self._account(account | {"intent": True}, wanted.op_id)
            try:
                old = kept(self._places, before) if before and wanted.replaces else ""
                self._vault.write(path, made.data, expect=before, keep=old)
            except (Conflict, AlreadyExists):
                if repeated := self._repeated(wanted, path):
                    return repeated
                if wanted.expect != ANY:
                    raise
                clock.sleep(random.uniform(0, 0.002) * min(attempt + 1, 10))
                continue
            with contextlib.suppress(HoldfastError):  # the write is done and durable, whatever becomes of its account
                self._account(account, wanted.op_id)
            self._tell(path)
            return Receipt(wanted.status, made.id, path, made.version)
        raise Conflict(f"{path} is changed by others all the time; nothing was written.", "Try again later.")

    def _now(self, path: str) -> tuple[str, bytes | None]:
        try:
            document = self._vault.read(path, self._limits.document_bytes)
        except NotFound:
            return ABSENT, None
        return document.version, document.data

    def _account(self, account: dict[str, Any], op_id: str) -> None:
        """Add a line to the write log: durable when it announces what an op_id is about to do."""
        log = self._places.path_for(KINDS["write"], _NOWHERE, month=utc_now()[:7])
        line = {name: value for name, value in account.items() if value} | ({"op": op_id} if op_id else {})
        self._log_line(log, line, durable="intent" in account)

    def _repeated(self, wanted: Wanted, path: str) -> Receipt | None:
        """Was this op_id applied before? It was if its write was accounted for, or if what it announced came to be."""
        if not wanted.op_id:
            return None
        for applied in self._known(wanted.op_id, "", "").applied:
            line = applied.fields
            if line.get("path") != path:
                raise sayings.other_use(wanted.op_id, str(line.get("path") or applied.path))
            after = str(line.get("after") or ABSENT)
            if "intent" not in line or self._came_to_be(path, after, applied.id):
                return Receipt("repeated", str(line.get("record") or path), path, str(line.get("version") or after))
        return None

    def _came_to_be(self, path: str, after: str, announced: str) -> bool:
        """Was a document written as it was announced? It is so now, or somebody found it so and wrote over it."""
        if self._now(path)[0] == after:
            return True
        later = itertools.takewhile(
            lambda line: str(line.get("id", "")) > announced, accounts.of(self._vault, self._places.memory, path)
        )
        return any(line.get("before") == after for line in later)

    def replace(
        self, path: str, data: bytes, expect: str, *, keep: bool = True, op_id: str = "", undoes: bool = False,
        known: bool = False, moved: bool = False,
    ) -> Receipt:  # fmt: skip
        """Write a whole document made from version `expect`, or a new one; with `keep` the old text is kept.

        With `known` all of its text stood in the memory before; with `moved` it was written in another one.
        """
        check_op(op_id)
        wanted = Wanted(expect, op_id, "changed" if expect else "stored", replaces=keep, undoes=undoes, moved=moved)

        def make(current: bytes | None) -> Made:
            made = data if known or undoes else self._screen.document(self._kind(path), data, current)
            return Made(made, path, version_of(made))

        return self._write(path, make, wanted)

    def _kind(self, path: str) -> Kind | None:
        place = self._places.classify(path)
        return place.kind if place else None

    def applied(self, op_id: str, path: str) -> Receipt | None:
        """Return the receipt of what an op_id did to a document before."""
        return self._repeated(Wanted(ANY, op_id, ""), path)

    def retire(self, path: str, expect: str, op_id: str = "", *, undoes: bool = False) -> None:
        """Take away a document of this version, whose text has found another home; its bytes are kept even so."""
        account: dict[str, Any] = {"path": path, "before": expect, "undo": undoes}
        if op_id:  # else a repetition would find nothing there, and nothing that says why
            self._account(account | {"intent": True}, op_id)
        self._vault.remove(path, expect=expect, keep=kept(self._places, expect))
        with contextlib.suppress(HoldfastError):  # it is done, whatever becomes of its account
            self._account(account, op_id)
        self._tell(path)

    def erase(self, path: str, expect: str) -> None:
        """Remove a document of this version for good: nothing of it is kept."""
        self._vault.remove(path, expect=expect)
        self.account({"path": path, "before": expect, "forgotten": True})
        self._tell(path)

    def account(self, line: dict[str, Any], op_id: str = "") -> None:
        """Note what the owner had done in the account of writes: durably, if it is announced there."""
        self._account(line, op_id)

    def told(self, path: str) -> None:
        """Note that a log was changed otherwise than by adding to it."""
        self._tell(path)

    def _check_size(self, path: str, data: bytes) -> None:
        if len(data) > self._limits.document_bytes:
            raise OverBudget(
                f"{path} would have {len(data):,} bytes; the limit is {self._limits.document_bytes:,}.", "Split it."
            )

    def note(self, kind: Kind, line: dict[str, Any], folder: str) -> None:
        """Add a line to a log of Holdfast's own, by month, not synced."""
        path = self._places.path_for(kind, _NOWHERE, month=utc_now()[:7], workspace=folder)
        self._log_line(path, self._screen.line(kind, line, waits=False), durable=False)

    def bring(self, path: str, lines: list[dict[str, Any]]) -> int:
        """Add lines that carry their own ids to a log, each once; return how many were added.

        The index is not told: what comes in this way is read when somebody asks for it.
        """
        by = {"writer": self._by} if self._by else {}
        kind = self._kind(path)
        return self._bringer.bring(path, [{**self._screen.line(kind, line, waits=False), **by} for line in lines])

    def missing(self, path: str, ids: set[str]) -> int:
        """Return how many of these ids `bring` would add to a log."""
        return self._bringer.missing(path, ids)

    # changes

    def _change(self, place: Place, draft: Draft) -> Receipt:
        kind = place.kind
        if kind.write_once:
            raise Invalid(f"{kind.one} is never changed once it is written.", "Put a new one under another name.")
        if kind.owned or kind.shape == "line":
            raise _no_edit(draft.id)
        changes = drafts.changes(kind, draft)
        if draft.text is None and not changes:
            raise Invalid("There is nothing to change.", "Give text, title, tags or fields.")
        if draft.text is not None and not draft.expect:
            raise Invalid(
                f"Replacing the text of {draft.id} needs the version it was made from.",
                "Get it first and pass its version.",
            )
        drafts.check(kind, draft, changing=True)
        wanted = Wanted(draft.expect or ANY, draft.op_id, "changed")
        if kind.shape == "section":
            return self._change_section(place, draft, wanted)

        def make(current: bytes | None) -> Made:
            if current is None:
                raise NotFound(f"{place.path} is not there.", "Check the path, or put a new record.")
            data = markdown.edit(current, changes) if changes else current
            data = data if draft.text is None else markdown.replace_body(data, draft.text)
            data = self._screen.document(kind, data, current)
            return Made(data, place.path, version_of(data))

        return self._write(place.path, make, wanted)

    def hide(self, record: Record, hidden: bool, op_id: str = "") -> Receipt:
        """Hide a record or show it again: a line by a mark in its log, a document by a field, an entry likewise."""
        kind = KINDS[record.kind]
        if kind.owned and kind.name not in ("entry", "summary"):
            raise Invalid(f"{kind.one} cannot be hidden.", "It is Holdfast's own account of what was written.")
        wanted = Wanted(ANY, op_id, "hidden" if hidden else "shown")
        if kind.shape == "line" or kind.write_once:
            return self._mark(record, hidden, wanted)
        if repeated := self._repeated(wanted, record.path):
            return repeated
        _check_hidden(record, hidden)
        if kind.shape == "section":
            return self._rewrite_section(record, wanted, archived=today() if hidden else "")
        flag = {"archived": True if hidden else None, "isArchived": None}

        def make(current: bytes | None) -> Made:
            data = markdown.edit(current or b"", flag)
            return Made(data, record.path, version_of(data))

        return self._write(record.path, make, wanted)

    def _mark(self, record: Record, hidden: bool, wanted: Wanted) -> Receipt:
        """Add a line that hides or shows, newer than all that was said of the record before."""
        folder, _, name = record.path.rpartition("/")
        once = KINDS[record.kind].write_once
        log = f"{folder}/{LEDGER}" if once else record.path
        target = name if once else record.key or record.id
        known = record.path if once else target
        if wanted.op_id and sayings.same_op(self._known(wanted.op_id, log, "").applied, wanted.op_id, log, known):
            return Receipt("repeated", record.id, record.path)
        if record.superseded:
            raise Invalid(f"{record.id} is an older value of its key.", "Hide the value that holds now.")
        _check_hidden(record, hidden)
        line = {"hide": target, "hidden": hidden}
        done = self._log_line(log, line, wanted.op_id, after=record.order, target=known)
        return Receipt(wanted.status if done.status == "stored" else done.status, record.id, record.path)

    # sections

    def _add_section(self, kind: Kind, draft: Draft) -> Receipt:
        path = self._places.path_for(kind, self._scopes.resolve(draft.scope))
        fields = draft.fields
        unknown = set(fields) - {"date", "category"}
        if unknown:
            raise Invalid(f"{kind.one} has no field {', '.join(sorted(unknown))}.", "Its fields are date and category.")
        date = str(fields.get("date") or today())
        entry = sections.render(
            date, draft.title, draft.text or "", str(fields.get("category") or ""), tuple(draft.tags or ())
        )
        (section,) = sections.parse(entry)

        def make(current: bytes | None) -> Made:
            text = (current or f"# {kind.name.title()}s\n".encode()).decode("utf-8", "surrogateescape")
            start = _body_of(path, text)
            before = sections.parse(text[start:])
            for other in before:
                if same_words(other.text, section.text) and not other.archived:
                    raise AlreadyExists(f"{path}#{other.anchor} says the same.", "Nothing was written.")
            body = sections.add(text[start:], entry)
            *others, added = sections.parse(body)
            if [one.source.rstrip() for one in others] != [one.source.rstrip() for one in before]:
                raise Damaged(f"A code fence is open in {path}, so that an entry behind it is text.", "Close it first.")
            data = (text[:start] + body).encode("utf-8", "surrogateescape")
            return Made(data, f"{path}#{added.anchor}", added.version)

        return self._write(path, make, Wanted(ANY, draft.op_id, "stored", replaces=False))

    def _change_section(self, place: Place, draft: Draft, wanted: Wanted) -> Receipt:
        given: dict[str, Any] = dict(draft.fields)
        if draft.text is not None:
            given["text"] = draft.text
        if draft.title:
            given["title"] = draft.title
        if draft.tags is not None:
            given["tags"] = tuple(draft.tags)
        unknown = set(given) - {"date", "category", "text", "title", "tags"}
        if unknown:
            raise Invalid(f"An entry has no field {', '.join(sorted(unknown))}.", "Its fields are date and category.")
        record = Record(id=draft.id, kind=place.kind.name, path=place.path)
        return self._rewrite_section(record, wanted, **given)

    def _rewrite_section(self, record: Record, wanted: Wanted, **changes: Any) -> Receipt:
        anchor = record.id.rpartition("#")[2]

        def make(current: bytes | None) -> Made:
            text = (current or b"").decode("utf-8", "surrogateescape")
            start = _body_of(record.path, text)
            found = [section for section in sections.parse(text[start:]) if section.anchor == anchor]
            if not found:
                raise NotFound(f"{record.id} is not there.", "Search for it; its date or title may have changed.")
            old = found[0]
            if wanted.expect not in (ANY, old.version):
                raise Conflict(
                    f"{record.id} was changed since version {wanted.expect[:8]}; nothing was written.",
                    "Read it again and redo the edit.",
                )
            made = {
                name: self._screen.text(KINDS[record.kind], name, part, old.source) for name, part in changes.items()
            }
            kept = {name: getattr(old, name) for name in ("date", "title", "text", "category", "tags", "archived")}
            source = sections.render(**(kept | made)).rstrip()
            if "\r\n" in old.source:
                source = source.replace("\n", "\r\n")
            begin = start + old.start
            end = begin + len(old.source.rstrip())
            result = text[:begin] + source + text[end:]
            new = next(one for one in sections.parse(result[start:]) if one.start == old.start)
            return Made(result.encode("utf-8", "surrogateescape"), f"{record.path}#{new.anchor}", new.version)

        return self._write(record.path, make, msgspec.structs.replace(wanted, expect=ANY))

    # lines

    def _append_line(self, kind: Kind, draft: Draft) -> Receipt:
        where = self._scopes.resolve(draft.scope) if draft.scope else _NOWHERE
        session = draft.session or where.session or (scope.DEFAULT if "{session}" in kind.place else "")
        path = self._places.path_for(kind, where, session=session)
        line: dict[str, Any] = {}
        if kind.key:
            line[kind.key] = draft.fields.get(kind.key)
        line |= self._text(kind, path, draft.text or "") if draft.data is None else self._data(kind, path, draft.data)
        line |= {name: value for name, value in draft.fields.items() if name not in line}
        if draft.title and kind.title not in line:
            line[kind.title] = draft.title
        if draft.tags:
            line["tags"] = list(draft.tags)
        if where.workspace:
            line["workspace"] = where.path
        if session:
            line["session"] = session
        key = str(line[kind.key]) if kind.key else ""
        return self._log_line(path, line, draft.op_id, time=kind.time, target=key)

    def _text(self, kind: Kind, path: str, text: str) -> dict[str, Any]:
        """Return the fields that carry a line's text; a large one goes to a file of its own first."""
        if kind.inline or len(text) <= self._limits.inline_chars:
            return {kind.text: text}
        return self._apart(path, text)

    def _apart(self, path: str, text: str) -> dict[str, Any]:
        """Put a text into a file of its own beside a log, and return what refers to it."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            raise Invalid("The text holds half a character.", "Send valid Unicode.") from None
        self._check_size(path, data)
        folder = path.rpartition("/")[0] if "/sessions/" in path else self._places.memory
        ref = f"{folder}/values/{version_of(data)}.txt"
        with contextlib.suppress(AlreadyExists):  # the name is made of the content
            self._vault.write(ref, data, expect=ABSENT)
        return {"ref": ref, "size": len(text), "head": text[:200]}

    def _data(self, kind: Kind, path: str, data: Any) -> dict[str, Any]:
        """Return the fields that carry a JSON value in the place of text; a large one goes to a file as its text."""
        check_plain(data)
        text = _as_text(data)
        if isinstance(data, str) or len(text) > self._limits.inline_chars:
            return self._text(kind, path, text)
        return {kind.text: data}

    def offload(self, data: Any, session: str, fits: Callable[[Any], bool]) -> Any:
        """Return a value as it is, or where one that is large or does not fit was put, durably: ref, head and size."""
        kind = KINDS["episode"]
        data = self._screen.line(kind, {"entry": data, "session": session})["entry"]
        path = self._places.path_for(kind, _NOWHERE, session=session)
        kept = self._data(kind, path, data)
        if kind.text in kept and not fits(data):
            return self._apart(path, _as_text(data))
        return kept.get(kind.text, kept)

    def add(
        self, path: str, lines: Sequence[Mapping[str, Any]], *, guard: Callable[[LogEnd], None] | None = None,
        after: str = "", durable: bool = True, op_id: str = "", time: str = "time",
    ) -> list[str]:  # fmt: skip
        """Append lines to a log in one piece and return their ids, which are greater than `after`.

        `guard` sees the held log first, and may refuse. What an op_id wrote all of its lines for is not written again.
        """
        check_op(op_id)
        kind = self._kind(path)
        lines = [self._screen.line(kind, line) for line in lines]
        more = {"writer": self._by} if self._by else {}
        more |= {"op": op_id} if op_id else {}
        known = self._known(op_id, path, "") if op_id else _NOTHING
        sayings.same_op(known.applied, op_id, path)
        if known.applied and len(known.applied) >= len(lines):
            return [applied.id for applied in known.applied][-len(lines) :]
        if any(len(lines) > 1 and "exchange" not in applied.fields for applied in known.applied):
            raise sayings.other_use(op_id, path)
        rendered = self._rendered(path, [{time: utc_now(), **line, **more} for line in lines])
        ids: list[str] = []

        def compose(end: LogEnd) -> bytes:
            ids.clear()
            if guard:
                guard(end)
            if op_id:
                before = sayings.op_in(end, known.offset, op_id, path)
                if len(before) >= len(rendered):
                    ids.extend(receipt.id for receipt in before[-len(rendered) :])
                    return b""
            ids.extend(_ids(end, after, len(rendered)))
            return b"".join(jsonl.with_id(made, rest) for made, rest in zip(ids, rendered, strict=True))

        if rendered:
            self._vault.append(path, compose, durable=durable, again=guard is None)
            self._tell(path)
        return ids

    def compose(self, path: str, make: Callable[[LogEnd], Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Append the lines that `make` calls for while the log is held, in one piece; return them as they are kept."""
        kind = self._kind(path)
        by = {"writer": self._by} if self._by else {}
        made: list[dict[str, Any]] = []

        def compose(end: LogEnd) -> bytes:
            lines = [{"time": utc_now(), **self._screen.line(kind, line), **by} for line in make(end)]
            rendered = self._rendered(path, lines)
            ids = _ids(end, "", len(lines)) if lines else []
            made.extend({"id": given, **line} for given, line in zip(ids, lines, strict=True))
            return b"".join(jsonl.with_id(given, rest) for given, rest in zip(ids, rendered, strict=True))

        if self._vault.append(path, compose):
            self._tell(path)
        return made

    def _rendered(self, path: str, lines: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Render the lines of a log without their ids; OverBudget when one is too long."""
        rendered = [jsonl.render(line) for line in lines]
        if max(map(len, rendered), default=0) > self._limits.line_bytes - 100:
            raise OverBudget(f"A line of {path} would be longer than {self._limits.line_bytes:,} bytes.", "Shorten it.")
        return rendered

    def _log_line(
        self, path: str, line: Mapping[str, Any], op_id: str = "", *,
        time: str = "time", after: str = "", target: str = "", durable: bool = True,
    ) -> Receipt:  # fmt: skip
        """Append one line under the log's lock, where its op_id is checked and its id minted.

        The id is greater than that of the last line, than `after`, and than those of all lines about `target`.
        """
        full: dict[str, Any] = {time: utc_now(), **line}
        if time in line and not normal(line[time]):
            raise Invalid(f"{line[time]!r} is not a time.", "Use ISO 8601, like 2026-02-23T14:00:00Z.")
        if op_id:
            full["op"] = op_id
        if self._by:
            full["writer"] = self._by
        known = self._known(op_id, path, target) if op_id or target else _NOTHING
        if repeated := sayings.same_op(known.applied, op_id, path, target if "hide" in line else ""):
            return repeated
        found: list[Receipt] = []
        rest = jsonl.render(full)
        if len(rest) > self._limits.line_bytes - 100:
            raise OverBudget(
                f"The line would have {len(rest):,} bytes; the limit is {self._limits.line_bytes:,}.",
                "Shorten its fields.",
            )

        def compose(end: LogEnd) -> bytes:
            if op_id:
                found[:] = sayings.op_in(end, known.offset, op_id, path)
                if found:
                    return b""
            newest = sayings.newest(end, known.offset, target) if target else ""
            full["id"] = mint(max(sayings.last_id(end), after, known.order, newest))
            return jsonl.with_id(full["id"], rest)

        done = self._vault.append(path, compose, durable=durable, again=True)
        if done is None:
            return found[0]
        self._tell(path)
        return Receipt("stored", full["id"], path)


ANY = "any"
_NOWHERE = Scope()
_NOTHING = Known([], 0, "")
_OP = re.compile(r"[\w.:@/+=-]{1,200}\Z", re.ASCII)


class Wanted(msgspec.Struct, frozen=True):
    """How a write is meant: from which version, under which op_id, and what to answer when it is done."""

    expect: str
    op_id: str
    status: str
    replaces: bool = True
    """False when nothing of the old text is given up, so that there is nothing to keep."""
    undoes: bool = False
    """Does it bring back the text from before another write?"""
    moved: bool = False
    """Was it written in another memory, whose account of it comes here as well?"""


class Made(msgspec.Struct, frozen=True):
    """A document as it shall be, and the record in it that the write is about."""

    data: bytes
    id: str
    version: str


def kept(places: Places, version: str) -> str:
    """Return where the text that a document had before is kept."""
    return f"{places.memory}/writes/kept/{version}"


def check_op(op_id: str) -> None:
    """Refuse an op_id that could not be told from text around it."""
    if op_id and (not _OP.match(op_id) or scan(op_id)):
        raise Invalid("An op_id is up to 200 letters, digits and . _ : @ / + = -", "Use a UUID, for example.")


def _ids(end: LogEnd, after: str, count: int) -> list[str]:
    """Return ids for new lines: greater than that of the last line of a log, and than `after`."""
    ids: list[str] = []
    last = max(sayings.last_id(end), after)
    for _ in range(count):
        last = mint(last)
        ids.append(last)
    return ids


def _as_text(data: Any) -> str:
    """Return a value as the text that a file of its own holds."""
    return data if isinstance(data, str) else jsonl.render({"": data})[4:-2].decode()


def _body_of(path: str, text: str) -> int:
    """Return where the entries of a file start; one that git left for a person to resolve is not written to."""
    if line := markdown.conflict_line(text):
        raise Damaged(f"{path}:{line}: an unresolved merge conflict; nothing was written.", "Resolve it first.")
    return markdown.body_start(text)


def _check_hidden(record: Record, hidden: bool) -> None:
    if record.hidden == hidden:
        raise Invalid(
            f"{record.id} is {'already hidden' if hidden else 'not hidden'}.",
            "Use restore to show it." if hidden else "Hide it first.",
        )


def _no_edit(identifier: str) -> Invalid:
    return Invalid(
        f"{identifier} cannot be changed: only documents and entries can, and logs only grow.",
        "Put a new record; hide the old one, or give the same key.",
    )
