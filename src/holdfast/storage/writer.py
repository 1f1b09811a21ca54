"""From drafts to documents and log entries: the kinds' rules, checked once, and the text that is written.

Every write that a caller asks for passes here and is scanned for secrets before anything else. `Store` makes it
durable.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from holdfast.errors import AlreadyExists, Conflict, Damaged, Invalid, NotFound
from holdfast.formats import jsonl, markdown, sections
from holdfast.model import kinds, names, scopes
from holdfast.model.kinds import KINDS, LEDGER, Kind
from holdfast.model.layout import Layout, Place
from holdfast.model.names import check_text, same_words
from holdfast.model.records import Draft, Receipt, Record, check_plain, path_of, version_of
from holdfast.model.scopes import Scope
from holdfast.model.settings import Limits
from holdfast.model.times import normal, today, utc_now
from holdfast.secrets import scan
from holdfast.storage import drafts
from holdfast.storage.imports import Importer
from holdfast.storage.log import Cursor
from holdfast.storage.scopes import Scopes
from holdfast.storage.secret_policy import SecretPolicy
from holdfast.storage.store import ANY, Made, Store
from holdfast.storage.tree import ABSENT


class Writer:
    """Writes records to one store."""

    def __init__(self, store: Store, layout: Layout, scopes: Scopes, limits: Limits, secrets: SecretPolicy) -> None:
        self._store = store
        self._layout = layout
        self._scopes = scopes
        self._limits = limits
        self._secrets = secrets
        self._importer = Importer(store.tree, limits.line_bytes)

    @property
    def name(self) -> str:
        """Who is recorded as the writer."""
        return self._store.writer

    def by(self, writer: str) -> AbstractContextManager[None]:
        """Record another writer in this thread, for an interface that serves several."""
        return self._store.written_by(writer)

    def put(self, draft: Draft) -> Receipt:
        """Write a new record, or change the one that the draft names."""
        check_text(draft.kind, draft.text or "", draft.title, draft.session, draft.id, *(draft.tags or ()))
        if draft.fields:
            check_plain(draft.fields)
        check_op(draft.op_id)
        if draft.id and (draft.expect or not draft.kind):
            place = self._layout.classify(path_of(draft.id))
            if place is None:
                raise _no_edit(draft.id)
            if draft.kind and place.kind is not kinds.kind(draft.kind):
                raise Invalid(f"{draft.id} is a {place.kind.name}, not a {draft.kind}.", "Leave the kind out.")
            return self._change(place, draft)
        kind = kinds.kind(draft.kind)
        drafts.check_fit(kind, draft)
        if kind.owned:
            raise Invalid(f"{kind.one} is written by Holdfast itself.", "Choose another kind.")
        draft = self._secrets.draft(kind, drafts.with_defaults(kind, draft))
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
        self._store.check_size(path, data)
        version = version_of(data)
        if kind.write_once:
            if repeated := self._store.applied(draft.op_id, path):
                return repeated
            if self._store.exists(path):
                if repeated := self._store.applied(draft.op_id, path):  # another process applied it in between
                    return repeated
                raise AlreadyExists(f"{path} already exists; nothing was written.", "Choose another name.")
            entry = {"state": path.rpartition("/")[2], "name": draft.title, "version": version}
            self._store.append(f"{path.rpartition('/')[0]}/{LEDGER}", [entry])
        made = Made(data, path, version)
        return self._store.update(path, lambda _: made, expect=ABSENT, op_id=draft.op_id, status="stored")

    def _new_path(self, kind: Kind, draft: Draft) -> str:
        if "{any}" in kind.place:
            place = self._layout.classify(draft.id) if draft.id else None
            if place is None or place.kind is not kind:
                raise Invalid(f"{kind.one} is written by its path.", f"Give an id like {self._layout.example(kind)}.")
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
            return self._layout.overview(found)
        where = self._scopes.resolve(draft.scope)
        stem = names.slug(draft.title, kind.name)
        if not kind.slugged:
            stem = names.unique(draft.title, kind.name, ignore_case=kind.ignore_case)
        if kind.dated:
            stem = f"{str(draft.fields.get('created') or today())[2:10].replace('-', '')}-{stem}"
        return self._layout.path_for(kind, where, stem)

    def replace(
        self, path: str, data: bytes, expect: str, *, keep: bool = True, op_id: str = "", known: bool = False
    ) -> Receipt:
        """Write a whole document made from version `expect`, or a new one; with `keep` the old text is kept.

        With `known` all of its text was in the memory before, so it is not scanned for secrets again.
        """
        check_op(op_id)

        def make(current: bytes | None) -> Made:
            made = data if known else self._secrets.document(self._kind(path), data, current)
            return Made(made, path, version_of(made))

        status = "changed" if expect else "stored"
        return self._store.update(path, make, expect=expect, op_id=op_id, status=status, keep=keep)

    def _kind(self, path: str) -> Kind | None:
        place = self._layout.classify(path)
        return place.kind if place else None

    def retire(self, path: str, expect: str, op_id: str = "") -> None:
        """Remove a document of this version whose text was moved elsewhere; its bytes are kept all the same."""
        self._store.remove(path, expect=expect, op_id=op_id)

    def note(self, kind: Kind, line: dict[str, Any], folder: str) -> None:
        """Add a line to one of Holdfast's own monthly logs, without syncing it."""
        path = self._layout.path_for(kind, _NOWHERE, month=utc_now()[:7], workspace=folder)
        self._store.append(path, [self._secrets.line(kind, line, waits=False)], durable=False)

    def bring(self, path: str, lines: list[dict[str, Any]]) -> int:
        """Add lines that carry their own ids to a log, each once; return how many were added."""
        by = {"writer": self.name} if self.name else {}
        kind = self._kind(path)
        entries = [{**self._secrets.line(kind, line, waits=False), **by} for line in lines]
        return self._importer.add_entries(path, entries)

    def missing(self, path: str, ids: set[str]) -> int:
        """Return how many of these ids `bring` would add to a log."""
        return self._importer.missing(path, ids)

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
        expect = draft.expect or ANY
        if kind.shape == "section":
            given: dict[str, Any] = dict(draft.fields)
            given |= {} if draft.text is None else {"text": draft.text}
            given |= {"title": draft.title} if draft.title else {}
            given |= {} if draft.tags is None else {"tags": tuple(draft.tags)}
            if unknown := set(given) - {"date", "category", "text", "title", "tags"}:
                names = ", ".join(sorted(unknown))
                raise Invalid(f"An entry has no field {names}.", "Its fields are date and category.")
            record = Record(id=draft.id, kind=kind.name, path=place.path)
            return self._rewrite_section(record, expect, draft.op_id, "changed", given)

        def make(current: bytes | None) -> Made:
            if current is None:
                raise NotFound(f"{place.path} is not there.", "Check the path, or put a new record.")
            data = markdown.edit(current, changes) if changes else current
            data = data if draft.text is None else markdown.replace_body(data, draft.text)
            data = self._secrets.document(kind, data, current)
            return Made(data, place.path, version_of(data))

        return self._store.update(place.path, make, expect=expect, op_id=draft.op_id)

    def hide(self, record: Record, hidden: bool, op_id: str = "") -> Receipt:
        """Hide a record or show it again: a line by a mark in its log, a document by a field, an entry likewise."""
        kind = KINDS[record.kind]
        if kind.owned and kind.name not in ("entry", "summary"):
            raise Invalid(f"{kind.one} cannot be hidden.", "It is Holdfast's own account of what was written.")
        status = "hidden" if hidden else "shown"
        if kind.shape == "line" or kind.write_once:
            return self._mark(record, hidden, op_id)
        if repeated := self._store.applied(op_id, record.path):
            return repeated
        _check_hidden(record, hidden)
        if kind.shape == "section":
            return self._rewrite_section(record, ANY, op_id, status, {"archived": today() if hidden else ""})
        flag = {"archived": True if hidden else None, "isArchived": None}

        def make(current: bytes | None) -> Made:
            data = markdown.edit(current or b"", flag)
            return Made(data, record.path, version_of(data))

        return self._store.update(record.path, make, expect=ANY, op_id=op_id, status=status)

    def _mark(self, record: Record, hidden: bool, op_id: str) -> Receipt:
        """Append an entry that hides or shows a record, newer than all entries about it."""
        folder, _, name = record.path.rpartition("/")
        once = KINDS[record.kind].write_once
        log = f"{folder}/{LEDGER}" if once else record.path
        target = name if once else record.key or record.id
        known = record.path if once else target
        if op_id and self._store.done_in(log, op_id, known):
            return Receipt("repeated", record.id, record.path)
        if record.superseded:
            raise Invalid(f"{record.id} is an older value of its key.", "Hide the current value.")
        _check_hidden(record, hidden)
        line = {"hide": target, "hidden": hidden}
        done = self._store.append(log, [line], op_id=op_id, after=record.order, target=known)
        status = "repeated" if done.repeated else "hidden" if hidden else "shown"
        return Receipt(status, record.id, record.path)

    # sections

    def _add_section(self, kind: Kind, draft: Draft) -> Receipt:
        path = self._layout.path_for(kind, self._scopes.resolve(draft.scope))
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

        return self._store.update(path, make, expect=ANY, op_id=draft.op_id, status="stored", keep=False)

    def _rewrite_section(
        self, record: Record, expect: str, op_id: str, status: str, changes: Mapping[str, Any]
    ) -> Receipt:
        anchor = record.id.rpartition("#")[2]

        def make(current: bytes | None) -> Made:
            text = (current or b"").decode("utf-8", "surrogateescape")
            start = _body_of(record.path, text)
            found = [section for section in sections.parse(text[start:]) if section.anchor == anchor]
            if not found:
                raise NotFound(f"{record.id} is not there.", "Search for it; its date or title may have changed.")
            old = found[0]
            if expect not in (ANY, old.version):
                raise Conflict(
                    f"{record.id} was changed since version {expect[:8]}; nothing was written.",
                    "Read it again and redo the edit.",
                )
            made = {
                name: self._secrets.text(KINDS[record.kind], name, part, old.source) for name, part in changes.items()
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

        return self._store.update(record.path, make, expect=ANY, op_id=op_id, status=status)

    # lines

    def _append_line(self, kind: Kind, draft: Draft) -> Receipt:
        where = self._scopes.resolve(draft.scope) if draft.scope else _NOWHERE
        session = draft.session or where.session or (scopes.DEFAULT if "{session}" in kind.place else "")
        path = self._layout.path_for(kind, where, session=session)
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
        if kind.time in line and not normal(line[kind.time]):
            raise Invalid(f"{line[kind.time]!r} is not a time.", "Use ISO 8601, like 2026-02-23T14:00:00Z.")
        done = self._store.append(path, [line], op_id=draft.op_id, time=kind.time, target=key)
        return Receipt("repeated" if done.repeated else "stored", done.ids[0], path)

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
        self._store.check_size(path, data)
        folder = path.rpartition("/")[0] if "/sessions/" in path else self._layout.memory
        ref = f"{folder}/values/{version_of(data)}.txt"
        with contextlib.suppress(AlreadyExists):  # the name is made of the content
            self._store.tree.write(ref, data, expect=ABSENT)
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
        data = self._secrets.line(kind, {"entry": data, "session": session})["entry"]
        path = self._layout.path_for(kind, _NOWHERE, session=session)
        kept = self._data(kind, path, data)
        if kind.text in kept and not fits(data):
            return self._apart(path, _as_text(data))
        return kept.get(kind.text, kept)

    def add(
        self, path: str, lines: Sequence[Mapping[str, Any]], *, after: str = "", durable: bool = True, op_id: str = "",
        time: str = "time", unless: Cursor | None = None, locked: Callable[[], None] = lambda: None,
    ) -> list[str]:  # fmt: skip
        """Append entries to a log in one piece and return their ids, which are greater than `after`.

        An op_id has effect once. For `unless` and `locked` see `Store.append`.
        """
        check_op(op_id)
        kind = self._kind(path)
        entries = [self._secrets.line(kind, line) for line in lines]
        return self._store.append(
            path, entries, op_id=op_id, time=time, after=after, durable=durable, unless=unless, locked=locked
        ).ids


_NOWHERE = Scope()
_OP = re.compile(r"[\w.:@/+=-]{1,200}\Z", re.ASCII)


def check_op(op_id: str) -> None:
    """Refuse an op_id that could not be told from text around it."""
    if op_id and (not _OP.match(op_id) or scan(op_id)):
        raise Invalid("An op_id is up to 200 letters, digits and . _ : @ / + = -", "Use a UUID, for example.")


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
