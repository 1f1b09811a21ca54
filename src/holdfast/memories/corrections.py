"""Corrections: find what a new record repeats or supersedes, change or retire a record, and review proposals.

Nothing is erased: a page is changed in place and its old text is kept; in a log, the new entry supersedes the old one.
A proposal is a record of a kind that the owner reviews. Approving it writes it as the owner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, HoldfastError, Invalid, NotFound
from holdfast.formats.prompts import one_line
from holdfast.model.kinds import CORRECTABLE, KINDS
from holdfast.model.names import short_hash
from holdfast.model.patterns import regex
from holdfast.model.queries import QUESTION_WORDS, Query, parse, spaced
from holdfast.model.records import Draft, Receipt, Record, Scope, label, line_of
from holdfast.owner import history
from holdfast.storage import drafts
from holdfast.storage.tree import changed, read_value
from holdfast.storage.words import stems
from holdfast.storage.writer import SUPERSEDED

_ELSEWHERE = {
    "state": "A save point is never changed. Use createState with a new name, or archiveState.",
    "overview": "Use updateWorkspace.",
    "memory": "Use memory_write.",
    "rule": "Rules belong to the owner. Ask the owner to change it.",
    "entry": "Use clear_memory and save_memory.",
    "job": "Use cron_add and cron_remove.",
    "task": "Use task_cancel or task_finish.",
    "message": "It records what was said. Remember the correction as a fact or a note.",
}
REMEMBERED = ("note", "decision", "lesson", "fact", "procedure")  # `remember` also compares them with others
PENDING = "The owner has to approve it first: holdfast review"
_REPLACES = "If this replaces one of them: revise that one with retire, or pass supersedes when you store it."
_WORD = regex(r"[^\W_]+")
_ASKED, _LISTED, _TITLE = 60, 3, 60
_SHARE, _LEAST = 0.6, 2
"""Two records are similar when they share this part of the words of the shorter one, and at least this many."""


def remember(memory: Core, draft: Draft, key: str = "") -> dict[str, Any]:
    """Store a new record and report what it repeats, supersedes or resembles; without a title it gets one."""
    row, title = KINDS[draft.kind], draft.title
    if row.shape == "line" and row.title in row.required:
        if not (about := key or title or draft.fields.get(row.title)):
            raise Invalid(f"{row.one} needs a key.", "Give its topic in a few words.", ["key"])
        draft = msgspec.structs.replace(draft, title="", fields={**draft.fields, row.title: about})
    elif not title:
        draft = msgspec.structs.replace(draft, title=headline(draft.text or ""))
    reply = _store(memory, draft, derived=not title)
    if reply["status"] in ("stored", "superseded") and not draft.supersedes:
        found = similar(memory, draft, reply["id"], reply["where"])
        reply |= {"similar": found} if found else {}
    return reply


def headline(text: str) -> str:
    """Return a title made from the first line of a text."""
    line = next(iter(text.strip().splitlines()), "").strip("# ").strip()
    return line if len(line) <= _TITLE else line[:_TITLE].rpartition(" ")[0] or line[:_TITLE]


def _store(memory: Core, draft: Draft, *, derived: bool) -> dict[str, Any]:
    """Store a draft and report what happened; `derived` is a title that was made from the text."""
    row = KINDS[draft.kind]
    before = memory.current(row, str(draft.fields[row.key])) if row.key else None
    if before and before.text == draft.text and not draft.until:
        return _duplicate(memory, before, draft)
    try:
        receipt = memory.put_draft(draft)
    except AlreadyExists as error:
        text = (draft.text or "").strip()
        for hit in memory.find(Query(text=f'"{draft.title}"', kinds=(row.name,))):
            if hit.record.text.strip() == text:
                return _duplicate(memory, hit.record, draft)
        if derived:  # another text with the same beginning
            title = f"{draft.title} ({short_hash(draft.text or '')[:4]})"
            return _store(memory, msgspec.structs.replace(draft, title=title), derived=False)
        what = f'There is a {row.name} "{draft.title}" already: {error.message}'
        raise AlreadyExists(what, "Use another title.") from None
    reply: dict[str, Any] = {"status": receipt.status, "id": receipt.id, "where": receipt.path}
    reply |= {"version": receipt.version} if receipt.version else {}
    reply |= {"workspace": draft.scope.path} if isinstance(draft.scope, Scope) else {}
    if receipt.status == "stored" and draft.supersedes:
        return reply | {"status": "superseded", "supersedes": draft.supersedes}
    if receipt.status == "stored" and before:
        return reply | {"status": "superseded", "supersedes": before.id, "was": before.text}
    return reply


def _duplicate(memory: Core, record: Record, draft: Draft) -> dict[str, Any]:
    """Report that a record is known. If the draft supersedes another record, record that in both."""
    reply = {"status": "duplicate", "id": record.id, "where": record.where, "duplicateOf": record.id}
    if draft.supersedes:
        memory.supersede_by(draft, record)
        reply["supersedes"] = draft.supersedes
    return reply


def revise(memory: Core, record: Record, change: Draft, retire: bool | None = None) -> Receipt:
    """Change a record, or retire it (True) or restore it (False); Conflict when it has another version."""
    kind = KINDS[record.kind]
    if kind.name not in CORRECTABLE:
        raise Invalid(f"{kind.one} cannot be revised.", _ELSEWHERE.get(kind.name, "Remember the correction."))
    if change.fields and "status" not in kind.choices:
        raise Invalid(f"{kind.one} has no status.", "Leave it out.")
    parts = (change.text, change.title or None, change.tags, change.until, change.fields or None)
    changes = any(part is not None for part in parts)
    if (retire is None) != bool(changes):
        what = "There is nothing to revise." if retire is None else "A record is changed or retired, not both."
        raise Invalid(what, "Send text, title, tags, status or until; or retire.")
    if change.expect and change.expect != record.version and not memory.store.knows_op(change.op_id):
        raise changed(record.id, change.expect)
    if retire is False and kind.shape == "line" and history.versions(memory, record.id)[-1].reason == SUPERSEDED:
        raise Invalid(f"{record.id} is superseded.", "Retire the entry that supersedes it first, or remember it again.")
    if retire is None and kind.shape == "line":
        return _replace_entry(memory, record, change)
    if retire is None:
        receipt = memory.put_draft(msgspec.structs.replace(change, id=record.id, expect=record.version))
        if (
            receipt.status == "changed" and receipt.id != record.id
        ):  # a new title is a new id: update the records that name it
            older, newer = (str(record.fields.get(name) or "") for name in ("supersedes", "superseded_by"))
            with contextlib.suppress(NotFound):
                if older:
                    memory.supersede(memory.get(older), receipt.id)
            with contextlib.suppress(NotFound):
                if newer:
                    memory.link(memory.get(newer), receipt.id)
        return receipt
    done = memory.hide(record.id, restore=not retire, op_id=change.op_id, reason=change.reason)
    status = done.status if done.status == "repeated" else "retired" if retire else "restored"
    return msgspec.structs.replace(done, status=status)


def _replace_entry(memory: Core, record: Record, change: Draft) -> Receipt:
    """Append an entry that supersedes another; the newest value of a key does that by itself."""
    kind = KINDS[record.kind]
    if record.superseded or record.hidden:
        raise Invalid(f"{record.id} is {label(record) or 'retired'}.", "Revise the current one; recall shows it.")
    if change.text is None and (ref := record.fields.get("ref")):
        read_value(memory.tree, str(ref), memory.settings.limits.document_bytes)  # raises if it cannot be read
    fields = drafts.copied_fields(kind, record)
    value = None if change.text is not None else record.fields.get(kind.text)
    until = record.fields.get("until") if change.until is None else change.until
    if kind.key:
        if change.title and change.title != record.key:
            raise Invalid("The key of a fact cannot be changed.", "Remember a new one, with supersedes.")
        fields[kind.key] = record.key
    elif kind.title in kind.required:
        fields[kind.title] = change.title or record.title
    scope = record.scope
    return memory.put_draft(
        Draft(
            kind=kind.name, text=(record.text if change.text is None else change.text) if value is None else None,
            data=value, title="" if kind.title in fields else change.title or record.title,
            scope=scope.path or None, session=scope.session if "{session}" in kind.place else "",
            tags=record.tags if change.tags is None else change.tags, fields=fields, op_id=change.op_id,
            supersedes=record.id, until=str(until or ""), reason=change.reason,
        )
    )  # fmt: skip


# similar records


def similar(memory: Core, draft: Draft, own: str, path: str) -> list[dict[str, Any]]:
    """Return current records of the same kind whose text is nearly that of a draft, and how they differ.

    The draft was stored as the record `own` in a file. The comparison never waits for the index.
    """
    kind, text = KINDS[draft.kind], f"{draft.title}\n{draft.text or ''}"
    if kind.heard or "{session}" in kind.place:
        return []
    if kind.key:
        text = f"{draft.fields.get(kind.key, '')}"
    asked = " ".join(dict.fromkeys(_WORD.findall(text)[:_ASKED]))
    query = Query(scope=draft.scope if kind.shape != "line" else None, above=True)
    try:
        where = memory.filter(query, (kind.name,), ())
        found = memory.store.matches(parse(asked), where, _LISTED + 5, path)
    except HoldfastError:  # the record is stored; the comparison is optional
        return []
    mine, shown = _content(text), list[dict[str, Any]]()
    for record in found:
        theirs = _content(record.key if kind.key else f"{record.title}\n{record.text}")
        both = mine.keys() & theirs.keys()
        few = min(len(mine), len(theirs))
        if record.id == own or label(record) or len(both) < min(_LEAST, few) or len(both) < _SHARE * few:
            continue
        apart = [[word for stem, word in one.items() if stem not in both] for one in (theirs, mine)]
        that, this = (" ".join(words[:5]) + (" …" if len(words) > 5 else "") for words in apart)
        how = f"which has {that} where this has {this}" if that and this else "nearly the same"
        how += f", with {that}" if that and not this else f", without {this}" if this and not that else ""
        shown.append({"id": record.id, "title": record.title or record.text[:80], "how": how})
    return shown[:_LISTED]


def shown_similar(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return similar records as lines for the model, with what to do about them."""
    lines = [f'similar: "{one_line(one["title"])}" ({one["id"]}), {one["how"]}' for one in found]
    return [*lines, _REPLACES] if lines else []


def _content(text: str) -> dict[str, str]:
    """Return the significant words of a text, by their stems."""
    words = [word for word in _WORD.findall(spaced(text)) if word.casefold() not in QUESTION_WORDS]
    return {stem: word for word in words for stem in stems(word)[:1]}


# review


def pending(memory: Core, scope: str | None = None) -> list[Record]:
    """Return the pending proposals, oldest first."""
    return memory.every(Query(kinds=("proposal",), scope=scope))[::-1]


def approve(memory: Core, proposal: Record) -> Receipt:
    """Write the proposed record; the proposal is then no longer pending."""
    given: dict[str, Any] = {"op_id": f"review:{proposal.id}", **proposal.fields["draft"]}
    if ref := proposal.fields.get("ref"):
        read_value(memory.tree, str(ref), memory.settings.limits.document_bytes)  # raises if it cannot be read
    if "data" not in given and proposal.text:
        given["text"] = proposal.text
    receipt = memory.put_draft(msgspec.convert(given, Draft))
    if not proposal.hidden:
        memory.hide(proposal.id, reason=f"approved: {receipt.id}")
    return receipt


def changes(memory: Core, proposal: Record) -> dict[str, str]:
    """Return a preview of the approval of a proposal, line by line."""
    draft = proposal.fields["draft"]
    shown = {"kind": proposal.fields.get("proposed"), "title": proposal.title, "by": proposal.fields.get("writer")}
    shown |= {"scope": proposal.scope.path, "tags": ", ".join(draft.get("tags", proposal.tags))}
    shown |= {name: draft.get(name) for name in ("supersedes", "until", "reason", "session")}
    shown |= {name: line_of(value) for name, value in draft.get("fields", {}).items()}
    shown |= {"changes": draft.get("id")}
    for name in ("changes", "supersedes"):
        with contextlib.suppress(NotFound):
            shown |= {f"{name}: old text": memory.get(str(shown[name])).text if shown[name] else ""}
    return {name: str(value) for name, value in (shown | {"text": proposal.text}).items() if value}


def reject(memory: Core, proposal: Record, reason: str = "") -> Receipt:
    """Hide a proposal; its text stays in the log of proposals."""
    return memory.hide(proposal.id, reason=f"rejected: {reason}" if reason else "rejected")
