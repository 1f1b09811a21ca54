"""From drafts to documents and log entries: the kinds' rules, checked once, and the text that is written.

Every record that a caller writes goes through this module and is scanned for secrets first. `Store` makes it durable.
A transfer copies whole documents to the store itself; it scans them in `owner.transfer`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from holdfast.errors import AlreadyExists, Damaged, HoldfastError, Invalid, NotFound
from holdfast.formats import jsonl, markdown, sections
from holdfast.model import kinds, names
from holdfast.model.kinds import CORRECTABLE, KINDS, LEDGER, Kind, Place
from holdfast.model.names import check_text, same_words
from holdfast.model.patterns import regex
from holdfast.model.records import (
    DEFAULT,
    PEOPLE,
    Draft,
    Receipt,
    Record,
    Scope,
    check_plain,
    path_of,
    text_of,
    version_of,
)
from holdfast.model.times import normal, today, utc_now
from holdfast.secrets import scan
from holdfast.storage import drafts
from holdfast.storage.drafts import SecretPolicy
from holdfast.storage.store import ANY, Made, Store
from holdfast.storage.tree import ABSENT, Scopes, changed, write_value

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.types import KindName, PutArguments

S = TypeVar("S", bound=msgspec.Struct)


class Writer:
    """The writing half of a memory: checks, renders and writes records."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.settings = store.settings
        self.tree = store.tree
        self.layout = store.layout
        self.scopes = Scopes(self.tree, self.layout)
        self.secrets = SecretPolicy(store.settings.secrets)

    def put(self, kind: KindName | Literal[""] = "", text: str | None = None, **given: Unpack[PutArguments]) -> Receipt:
        """Write a record; durable when this returns. Without a kind, change the record `id`.

        `given` are the other fields of `Draft`, and those fields of a kind that have a name of their own, as `key`.
        """
        return self.put_draft(draft(kind=kind, text=text, **given))

    def put_draft(self, draft: Draft) -> Receipt:
        """Write a new record, or change the one that the draft names."""
        check_text(draft.kind, draft.text or "", draft.title, draft.session, draft.id, *(draft.tags or ()))
        if draft.fields:
            check_plain(draft.fields)
        if draft.op_id:
            check_op(draft.op_id)
        if draft.id and (draft.expect or not draft.kind):
            place = self.layout.classify(path_of(draft.id))
            if place is None:
                self.store.get(draft.id)  # raises NotFound for an unknown id
                raise _no_edit(draft.id)
            if draft.kind and place.kind is not kinds.kind(draft.kind):
                raise Invalid(f"{draft.id} is a {place.kind.name}, not a {draft.kind}.", "Leave the kind out.")
            return self._change(place, draft)
        kind = KINDS.get(draft.kind) or kinds.kind(draft.kind)
        drafts.check_fit(kind, draft)
        if kind.owned:
            raise Invalid(f"{kind.one} is only written by Holdfast itself.", "Choose another kind.")
        older = self._older(draft) if draft.supersedes else None
        draft = msgspec.structs.replace(draft, supersedes=older.id) if older else draft
        draft = self.secrets.draft(kind, drafts.with_defaults(kind, draft))
        drafts.check(kind, draft)
        linked = drafts.with_links(draft)
        if self._is_reviewed(kind) or (older and self._is_reviewed(KINDS[older.kind])):
            return self._propose(kind, self.scopes.resolve(draft.scope), draft)
        if kind.shape == "line":
            return self._append_line(kind, linked, older)
        receipt = self._add_section(kind, linked) if kind.shape == "section" else self._create(kind, linked)
        if older:
            self.supersede(older, receipt.id)
        return receipt

    # corrections

    def _older(self, draft: Draft) -> Record:
        """Return the record that a draft supersedes; Invalid for one that cannot be."""
        record = self.store.get(draft.supersedes)
        if record.kind not in CORRECTABLE:
            raise Invalid(f"{KINDS[record.kind].one} cannot be superseded.", "Leave supersedes out.")
        newer = record.fields.get("superseded_by") or (record.superseded and "a later value of its key")
        if newer and not self.store.knows_op(draft.op_id):
            raise Invalid(f"{record.id} is superseded by {newer} already.", "Supersede that one instead.")
        return record

    def supersede(self, older: Record, newer: str) -> None:
        """Mark a record with the id of its replacement, "" for none. A log entry is hidden."""
        if KINDS[older.kind].shape != "line":
            if newer not in (older.id, older.fields.get("superseded_by", "")):
                no_value = "" if KINDS[older.kind].shape == "section" else None  # it removes the field
                self._set(older, {"superseded_by": newer or no_value}, "", "changed")
        elif older.hidden != bool(newer) and not self.store.get(older.id).superseded:
            self._mark(older, hidden=bool(newer), op_id="", more={"reason": SUPERSEDED})

    def supersede_by(self, draft: Draft, newer: Record) -> None:
        """Mark an existing record as the replacement of the one that a draft names."""
        older = self._older(draft)
        if self._is_reviewed(KINDS[older.kind]):
            raise Invalid(f"Only the owner replaces a {older.kind} here.", f"Retire {newer.id} or ask for approval.")
        self.supersede(older, newer.id)
        self.link(newer, older.id)

    def link(self, newer: Record, older: str) -> None:
        """Mark a document or section with the id of the one it replaces."""
        if KINDS[newer.kind].shape != "line" and newer.fields.get("supersedes") != older:
            self._set(newer, {"supersedes": older}, "", "changed")

    def _set(
        self, record: Record, fields: Mapping[str, Any], op_id: str, status: str, note: Mapping[str, Any] = {}
    ) -> Receipt:
        """Set fields of a document or section; the rest of its file is unchanged."""
        if KINDS[record.kind].shape == "section":
            return self._rewrite_section(record, ANY, op_id, status, fields, note)

        def make(current: bytes | None) -> Made:
            data = markdown.edit(current or b"", fields)
            return Made(data, record.path, version_of(data))

        return self.store.update(record.path, make, expect=ANY, op_id=op_id, status=status, note=note)

    def _is_reviewed(self, kind: Kind) -> bool:
        """Must the owner approve records of this kind by this writer?"""
        return kind.name in self.settings.review.kinds and self.store.writer not in PEOPLE

    def _propose(self, kind: Kind, scope: Scope, draft: Draft) -> Receipt:
        """Keep a draft until the owner approves it; see `holdfast review`."""
        row = KINDS["proposal"]
        path, given = self.layout.path_for(row, scope), msgspec.to_builtins(draft)
        title = draft.title or str(draft.fields.get(kind.title) or "") or (draft.id and self.store.get(draft.id).title)
        given["scope"] = scope.path if draft.scope else None
        inner = {name: value for name, value in given.items() if name not in _APART and value not in _EMPTY}
        inner |= {} if draft.tags is None else {"tags": list(draft.tags)}
        inner |= {"title": draft.title} if draft.title else {}
        line: dict[str, Any] = {"proposed": kind.name, "title": title, "workspace": scope.path, "draft": inner}
        text = text_of(draft.data) if draft.text is None else draft.text
        for known in self.store.newest(path):
            if (known.fields.get("proposed"), known.text, known.fields.get("draft")) == (kind.name, text, inner):
                return Receipt("pending", known.id, path)
        line |= self._value(row, path, text) | ({"tags": list(draft.tags)} if draft.tags else {})
        done = self.store.append(path, [self.secrets.line(row, line)], op_id=draft.op_id)
        return Receipt("repeated" if done.repeated else "pending", done.ids[0], path)

    # documents

    def _create(self, kind: Kind, draft: Draft) -> Receipt:
        path = self._new_path(kind, draft)
        data = markdown.render(drafts.front(kind, draft), draft.text or "")
        self.store.check_size(path, data)
        folder, _, name = path.rpartition("/")
        ledger, entry = f"{folder}/{LEDGER}", dict[str, Any]()
        if kind.write_once:
            if repeated := self.store.applied(draft.op_id, path):
                return repeated
            if self.store.exists(path):
                if repeated := self.store.applied(draft.op_id, path):  # another process applied it in between
                    return repeated
                raise AlreadyExists(f"{path} already exists; nothing was written.", "Choose another name.")
            entry = {"state": name, "name": draft.title, "version": version_of(data)}
            self.store.append(ledger, [entry])  # first: after a crash, verify reports an entry without its file
        try:
            return self.store.write(path, data, expect=ABSENT, op_id=draft.op_id)
        except HoldfastError:
            with contextlib.suppress(HoldfastError):  # if this fails too, verify reports it, as after a crash
                if kind.write_once:
                    self.store.append(ledger, [entry | {"refused": True}])
            raise

    def _new_path(self, kind: Kind, draft: Draft) -> str:
        if "{any}" in kind.place:
            place = self.layout.classify(draft.id) if draft.id else None
            if place is None or place.kind is not kind:
                raise Invalid(f"{kind.one} is written by its path.", f"Give an id like {self.layout.example(kind)}.")
            return draft.id
        if kind.name == "overview":
            parent = self.scopes.resolve(draft.scope).path if draft.scope else ""
            if parent.count("/") >= 2:
                raise Invalid("A repository has no levels below it.", "Use workspace/domain as the scope.")
            wanted = names.same(draft.title)
            taken = [
                f
                for f in self.scopes.children(parent)
                if wanted in (names.same(f), names.same(self.scopes.name(f"{parent}/{f}".strip("/"))))
            ]
            found = f"{parent}/{taken[0]}".strip("/") if taken else self.scopes.folder_for(draft.title, parent)
            return self.layout.overview(found)
        where = self.scopes.resolve(draft.scope)
        stem = names.slug(draft.title, kind.name)
        if not kind.slugged:
            stem = names.unique(draft.title, kind.name, ignore_case=kind.ignore_case)
        if kind.dated:
            stem = f"{str(draft.fields.get('created') or today())[2:10].replace('-', '')}-{stem}"
        return self.layout.path_for(kind, where, stem)

    def replace(
        self, path: str, data: bytes, expect: str = ANY, *, keep: bool = True, op_id: str = "", known: bool = False
    ) -> Receipt:
        """Write a whole document made from version `expect`, "" for a new one; Conflict when the version differs.

        Without a version it replaces any version, and the replaced text is kept. With `known` its text was in the
        memory before and is not scanned for secrets again.
        """
        check_op(op_id)

        def make(current: bytes | None) -> Made:
            made = data if known else self.secrets.document(self._kind(path), data, current)
            return Made(made, path, version_of(made))

        status = "changed" if expect else "stored"
        return self.store.update(path, make, expect=expect, op_id=op_id, status=status, keep=keep)

    def _kind(self, path: str) -> Kind | None:
        place = self.layout.classify(path)
        return place.kind if place else None

    def note_line(self, kind: Kind, line: dict[str, Any], folder: str) -> None:
        """Add a line to one of Holdfast's own monthly logs, without syncing it."""
        path = self.layout.path_for(kind, _NOWHERE, month=utc_now()[:7], workspace=folder)
        self.store.append(path, [self.secrets.line(kind, line, waits=False)], durable=False)

    def import_entries(self, kind: str, name: str, lines: list[dict[str, Any]]) -> int:
        """Import entries with their own ids into a log of this name, each once; return how many were added."""
        path, by = self._log_of(kind, name), {"writer": self.store.writer} if self.store.writer else {}
        entries = [{**self.secrets.line(KINDS[kind], line, waits=False), **by} for line in lines]
        return self.store.import_entries(path, entries)

    def missing(self, kind: str, name: str, ids: set[str]) -> int:
        """Count the ids that `import_entries` would add."""
        return self.store.missing(self._log_of(kind, name), ids)

    def _log_of(self, kind: str, name: str) -> str:
        """Return the path of a log for imports; without a name, the one log of the kind."""
        row = kinds.kind(kind)
        template = next((place for place in (row.place, row.also) if ("{any}" in place) == bool(name)), "")
        if row.shape != "line" or row.key or not template:
            raise Invalid(f"{row.one} cannot be imported.", "Use put.")
        path = template.format(any=name, **msgspec.structs.asdict(self.settings.paths))
        place = self.layout.classify(path)
        if place is None or place.kind is not row:
            raise Invalid(f"{name!r} is not the name of a {kind}.", "Use a name without a leading dot.")
        return path

    # changes

    def _change(self, place: Place, draft: Draft) -> Receipt:
        kind = place.kind
        if kind.write_once:
            raise Invalid(f"{kind.one} is never changed once it is written.", "Put a new one under another name.")
        if kind.owned or kind.shape == "line":
            raise _no_edit(draft.id)
        changes = drafts.changes(kind, draft)
        if draft.text is None and not changes:
            raise Invalid("There is nothing to change.", "Give text, title, tags, until or fields.")
        if draft.text is not None and not draft.expect:
            raise Invalid(
                f"Replacing the text of {draft.id} needs the version it was made from.",
                "Get it first and pass its version.",
            )
        drafts.check(kind, draft, changing=True)
        if self._is_reviewed(kind):
            self.store.get(draft.id)  # raises NotFound
            return self._propose(kind, place.scope, draft)
        expect, note = draft.expect or ANY, {"reason": draft.reason} if draft.reason else {}
        if kind.shape == "section":
            given: dict[str, Any] = dict(draft.fields)
            given |= {} if draft.text is None else {"text": draft.text}
            given |= {"title": draft.title} if draft.title else {}
            given |= {} if draft.tags is None else {"tags": tuple(draft.tags)}
            given |= {} if draft.until is None else {"until": draft.until}
            if unknown := set(given) - {"date", "category", "text", "title", "tags", "until"}:
                names = ", ".join(sorted(unknown))
                raise Invalid(f"An entry has no field {names}.", "Its fields are date and category.")
            record = Record(id=draft.id, kind=kind.name, path=place.path)
            return self._rewrite_section(record, expect, draft.op_id, "changed", given, note)

        def make(current: bytes | None) -> Made:
            if current is None:
                raise NotFound(f"{place.path} does not exist.", "Check the path, or put a new record.")
            data = markdown.edit(current, changes) if changes else current
            data = data if draft.text is None else markdown.replace_body(data, draft.text)
            data = self.secrets.document(kind, data, current)
            return Made(data, place.path, version_of(data))

        return self.store.update(place.path, make, expect=expect, op_id=draft.op_id, note=note)

    def hide(self, identifier: str, *, restore: bool = False, op_id: str = "", reason: str = "") -> Receipt:
        """Hide a record from search and lists, or show it again; its text stays.

        An entry of a log is hidden by a mark after it, a document or section by a field.
        """
        check_text(identifier)
        record, hidden = self.store.get(identifier), not restore
        kind = KINDS[record.kind]
        if kind.owned and kind.name not in ("entry", "summary", "proposal"):
            raise Invalid(f"{kind.one} cannot be hidden.", "It is part of Holdfast's own history.")
        if self._is_reviewed(kind):
            fault = f"Only the owner hides or restores a {kind.name} here: it is under review."
            raise Invalid(fault, f"Ask for it: holdfast hide {identifier}{' --restore' if restore else ''}")
        note = {"reason": reason} if reason else {}
        if kind.shape == "line" or kind.write_once:
            return self._mark(record, hidden, op_id, note)
        if repeated := self.store.applied(op_id, record.path):
            return repeated
        _check_hidden(record, hidden)
        flag: dict[str, Any] = {"archived": True if hidden else None, "isArchived": None}
        if kind.shape == "section":
            flag = {"archived": today() if hidden else ""}
        elif kind.name == "overview":  # the field of a workspace
            flag = {"archived": None, "isArchived": True if hidden else None}
        done = self._set(record, flag, op_id, "hidden" if hidden else "shown", note)
        with contextlib.suppress(NotFound):  # the replaced record is current again
            if older := record.fields.get("supersedes"):
                self.supersede(self.store.get(str(older)), "" if hidden else record.id)
        return done

    def _mark(self, record: Record, hidden: bool, op_id: str, more: Mapping[str, Any] = {}) -> Receipt:
        """Append an entry that hides or shows a record, newer than all entries about it."""
        folder, _, name = record.path.rpartition("/")
        once = KINDS[record.kind].write_once
        log = f"{folder}/{LEDGER}" if once else record.path
        target = name if once else record.key or record.id
        known = record.path if once else target
        if op_id and self.store.done_in(log, op_id, known):
            return Receipt("repeated", record.id, record.path)
        if record.superseded:
            raise Invalid(f"{record.id} is an older value of its key.", "Hide the current value.")
        _check_hidden(record, hidden)
        line = {"hide": target, "hidden": hidden, **more}
        done = self.store.append(log, [line], op_id=op_id, after=record.order, target=known)
        status = "repeated" if done.repeated else "hidden" if hidden else "shown"
        return Receipt(status, record.id, record.path)

    # sections

    def _add_section(self, kind: Kind, draft: Draft) -> Receipt:
        path = self.layout.path_for(kind, self.scopes.resolve(draft.scope))
        fields = {name: str(value) for name, value in draft.fields.items()}
        unknown = set(fields) - {"date", "category", "supersedes", "until"}
        if unknown:
            raise Invalid(f"{kind.one} has no field {', '.join(sorted(unknown))}.", "Its fields are date and category.")
        date = fields.pop("date", "") or today()
        entry = sections.render(date, draft.title, draft.text or "", tags=tuple(draft.tags or ()), **fields)
        (section,) = sections.parse(entry)

        def make(current: bytes | None) -> Made:
            text = (current or f"# {kind.name.title()}s\n".encode()).decode("utf-8", "surrogateescape")
            start = markdown.body_start(text)
            body = sections.add(text[start:], entry)
            *others, added = sections.parse(body)
            for other in others:
                if same_words(other.text, section.text) and not other.archived:
                    fault = f"{path}#{other.anchor} has the same text; nothing was written."
                    raise AlreadyExists(fault, "Revise that entry instead.")
            if [one.source.rstrip() for one in others] != [one.rstrip() for one in sections.sources(text[start:])]:
                fault = f"{path} has an open code fence; an entry after it would be part of the code."
                raise Damaged(fault, "Close the fence first.")
            data = (text[:start] + body).encode("utf-8", "surrogateescape")
            return Made(data, f"{path}#{added.anchor}", added.version)

        return self.store.update(path, make, expect=ANY, op_id=draft.op_id, status="stored", keep=False)

    def _rewrite_section(
        self, record: Record, expect: str, op_id: str, status: str, changes: Mapping[str, Any],
        note: Mapping[str, Any] = {},
    ) -> Receipt:  # fmt: skip
        anchor = record.id.rpartition("#")[2]

        def make(current: bytes | None) -> Made:
            text = (current or b"").decode("utf-8", "surrogateescape")
            start = markdown.body_start(text)
            found = [section for section in sections.parse(text[start:]) if section.anchor == anchor]
            if not found:
                raise NotFound(f"{record.id} does not exist.", "Search for it; its date or title may have changed.")
            old = found[0]
            if expect not in (ANY, old.version):
                raise changed(record.id, expect)
            made = {
                name: self.secrets.text(KINDS[record.kind], name, part, old.source) for name, part in changes.items()
            }
            source = old.rendered(**made).rstrip()
            if "\r\n" in old.source:
                source = source.replace("\n", "\r\n")
            begin = start + old.start
            end = begin + len(old.source.rstrip())
            result = text[:begin] + source + text[end:]
            new = next(one for one in sections.parse(result[start:]) if one.start == old.start)
            return Made(result.encode("utf-8", "surrogateescape"), f"{record.path}#{new.anchor}", new.version)

        note = {"was": record.id, **note}
        return self.store.update(record.path, make, expect=ANY, op_id=op_id, status=status, note=note)

    def restore_section(self, record: Record, before: sections.Section, op_id: str = "") -> Receipt:
        """Write a section as it was before."""
        return self._rewrite_section(record, record.version, op_id, "changed", before.parts, {"undo": True})

    # lines

    def _append_line(self, kind: Kind, draft: Draft, older: Record | None) -> Receipt:
        """Append an entry; one that supersedes another of the same log is appended only if that is still current."""
        where = self.scopes.resolve(draft.scope) if draft.scope else _NOWHERE
        session = draft.session or where.session or (DEFAULT if "{session}" in kind.place else "")
        path = self.layout.path_for(kind, where, session=session)
        line: dict[str, Any] = {}
        if kind.key:
            line[kind.key] = draft.fields.get(kind.key)
        if draft.data is not None:
            check_plain(draft.data)
        line |= self._value(kind, path, (draft.text or "") if draft.data is None else draft.data)
        if draft.fields:
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
        line |= {"reason": draft.reason} if draft.reason else {}
        if older and older.path == path and not self.store.knows_op(draft.op_id):
            return Receipt("stored", self._replace_entry(path, line, older, key, draft.op_id), path)
        done = self.store.append(path, [line], op_id=draft.op_id, time=kind.time, target=key)
        if older and older.path != path:
            self.supersede(older, done.ids[0])
        return Receipt("repeated" if done.repeated else "stored", done.ids[0], path)

    def _replace_entry(self, path: str, line: dict[str, Any], older: Record, key: str, op_id: str) -> str:
        """Append an entry and hide the one that it supersedes, in one piece; Conflict when that changed meanwhile."""
        mark = {"hide": older.key or older.id, "hidden": True, "reason": SUPERSEDED}

        def decide() -> tuple[Sequence[Mapping[str, Any]], str]:
            now = self.store.get(older.id)
            if now.superseded or now.hidden or now.version != older.version:
                raise changed(older.id, older.version)
            return [line, *([] if key and key == older.key else [mark])], older.order

        return self.store.append_decided(path, decide, op_id=op_id)[0]

    def _value(self, kind: Kind, path: str, data: Any) -> dict[str, Any]:
        """Return the fields for the text or value of an entry; a large one is written to a separate file first."""
        text = data if isinstance(data, str) else _as_text(data)
        if kind.inline or len(text) <= self.settings.limits.inline_chars:
            return {kind.text: data}
        return self._write_value(path, text)

    def _write_value(self, path: str, text: str) -> dict[str, Any]:
        """Write a text to a separate file beside a log, and return the fields that refer to it."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            raise Invalid("The text contains a lone surrogate (half a character).", "Send valid Unicode.") from None
        self.store.check_size(path, data)
        folder = path.rpartition("/")[0] if "/sessions/" in path else self.layout.memory
        ref = write_value(self.store.tree, folder, text, self.settings)
        return {"ref": ref, "size": len(text), "head": text[:200]}

    def offload(self, data: Any, session: str, fits: Callable[[Any], bool]) -> Any:
        """Return a value, or the ref, head and size of the file that a large one was written to."""
        kind = KINDS["episode"]
        data = self.secrets.line(kind, {"entry": data, "session": session})["entry"]
        path = self.layout.path_for(kind, _NOWHERE, session=session)
        check_plain(data)
        kept = self._value(kind, path, data)
        if kind.text in kept and not fits(data):
            return self._write_value(path, _as_text(data))
        return kept.get(kind.text, kept)

    def add(
        self, path: str, lines: Sequence[Mapping[str, Any]], *, after: str = "", durable: bool = True, op_id: str = "",
        time: str = "time", unless: Any = None, locked: Callable[[], None] = lambda: None,
    ) -> list[str]:  # fmt: skip
        """Append entries to a log in one piece and return their ids, which are greater than `after`.

        An op_id has effect once. For `unless` and `locked` see `Store.append`.
        """
        check_op(op_id)
        kind = self._kind(path)
        entries = [self.secrets.line(kind, line) for line in lines]
        return self.store.append(
            path, entries, op_id=op_id, time=time, after=after, durable=durable, unless=unless, locked=locked
        ).ids

    def add_decided(
        self, path: str, decide: Callable[[], tuple[Sequence[Mapping[str, Any]], str]], *, durable: bool = True
    ) -> list[str]:
        """Append the entries that `decide` returns while the log is locked; see `Store.append_decided`."""
        kind = self._kind(path)

        def checked() -> tuple[Sequence[Mapping[str, Any]], str]:
            entries, after = decide()
            return [self.secrets.line(kind, entry) for entry in entries], after

        return self.store.append_decided(path, checked, durable=durable)


_NOWHERE = Scope()
SUPERSEDED = "superseded"
"""The reason in a mark that hides an entry because another one replaces it."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_APART = ("title", "text", "tags", "op_id")
"""Parts of a draft that a proposal does not repeat."""
_OP = regex(r"[\w.:@/+=-]{1,200}\Z", re.ASCII)


def check_op(op_id: str) -> None:
    """Refuse an op_id with other characters, or one that looks like a secret."""
    if op_id and (not _OP.match(op_id) or scan(op_id)):
        raise Invalid("An op_id is up to 200 letters, digits and . _ : @ / + = -", "Use a UUID, for example.")


def _as_text(data: Any) -> str:
    """Return a value as text."""
    return data if isinstance(data, str) else jsonl.render({"": data})[4:-2].decode()


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


def draft(**given: Any) -> Draft:
    """Make a draft of loose arguments, those of the kind's own fields too; Invalid names the valid ones."""
    kind = KINDS.get(str(given.get("kind")))
    own = {name: given.pop(name) for name in kind.own if name in given} if kind else {}
    if own:
        given["fields"] = {**given.get("fields", {}), **own}
    what = f"put, for a {kind.name} also with {', '.join(kind.own)}," if kind and kind.own else "put"
    return converted(given, Draft, what)


def converted(given: dict[str, Any], kind: type[S], what: str) -> S:
    try:
        return msgspec.convert(given, kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise Invalid(f"{error}.", f"{what} takes {', '.join(kind.__struct_fields__)}.") from None
