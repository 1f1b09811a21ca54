"""Corrections: a new text for a record or its retirement, records that are similar to a new one, and review.

Nothing is erased. A document or an entry of a page is changed in place and its old text is kept. A log only grows: the
new entry supersedes the old one. Proposals are what programs wrote of a kind that the owner reviews; approving one
writes it, as the owner.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.formats.prompts import one_line
from holdfast.model.kinds import KINDS
from holdfast.model.queries import QUESTION_WORDS, Query
from holdfast.model.records import Draft, Receipt, Record, label
from holdfast.storage.tree import changed
from holdfast.storage.words import stems

_ELSEWHERE = {
    "state": "A save point is never changed. Use createState with a new name, or archiveState.",
    "overview": "Use updateWorkspace.",
    "memory": "Use memory_write.",
    "rule": "Rules are the owner's. Ask them to change it.",
    "entry": "Use clear_memory and save_memory.",
    "job": "Use cron_add and cron_remove.",
    "task": "Use task_cancel or task_finish.",
    "message": "It records what was said. Remember the correction as a fact or a note.",
}
_OWN = ("id", "op", "writer", "ref", "head", "size", "supersedes", "superseded_by")
"""Fields of an entry that are not copied to the one that replaces it."""
_REPLACES = "If this replaces one of them: revise that one with retire, or pass supersedes when you store it."
_WORD = re.compile(r"[^\W_]+")
_ASKED, _LISTED = 60, 3
_SHARE, _LEAST = 0.6, 2
"""Two records are similar when they share this part of the words of the shorter one, and at least so many."""


def revise(memory: Core, record: Record, change: Draft, retire: bool | None = None) -> Receipt:
    """Change a record, or retire it (True) or bring it back (False); Conflict when it has another version."""
    kind = KINDS[record.kind]
    advice = _ELSEWHERE.get(kind.name) or ("Remember the correction." if kind.owned or kind.foreign else "")
    if advice:
        raise Invalid(f"{kind.one} cannot be revised.", advice)
    if change.fields and "status" not in kind.choices:
        raise Invalid(f"{kind.one} has no status.", "Leave it out.")
    changes = change.text is not None or change.title or change.tags is not None or change.fields
    if (retire is None) != bool(changes):
        what = "There is nothing to revise." if retire is None else "A record is changed or retired, not both."
        raise Invalid(what, "Send text, title, tags or status; or retire.")
    if change.expect and change.expect != record.version and not memory.store.knows_op(change.op_id):
        raise changed(record.id, change.expect)
    if retire is None:
        return (_replace_entry if kind.shape == "line" else _edit)(memory, record, change)
    done = memory.hide(record.id, restore=not retire, op_id=change.op_id, reason=change.reason)
    status = done.status if done.status == "repeated" else "retired" if retire else "restored"
    return msgspec.structs.replace(done, status=status)


def _edit(memory: Core, record: Record, change: Draft) -> Receipt:
    receipt = memory.keep(msgspec.structs.replace(change, id=record.id, expect=record.version))
    if receipt.status == "changed" and receipt.id != record.id and (older := record.fields.get("supersedes")):
        with contextlib.suppress(NotFound):  # a new title is a new id, which the older entry has to name
            memory.supersede(memory.get(str(older)), receipt.id)
    return receipt


def _replace_entry(memory: Core, record: Record, change: Draft) -> Receipt:
    """Append an entry that supersedes another; the newest value of a key does that by itself."""
    kind = KINDS[record.kind]
    if record.superseded or record.hidden:
        raise Invalid(f"{record.id} is {label(record) or 'retired'}.", "Revise the current one; recall shows it.")
    fields = {name: value for name, value in record.fields.items() if name not in (*_OWN, kind.text, "until")}
    if kind.key:
        if change.title and change.title != record.key:
            raise Invalid("The key of a fact cannot be changed.", "Remember a new one, with supersedes.")
        fields[kind.key] = record.key
    elif kind.title in kind.required:
        fields[kind.title] = change.title or record.title
    scope = record.scope
    return memory.keep(
        Draft(
            kind=kind.name, text=record.text if change.text is None else change.text,
            title="" if kind.title in fields else change.title or record.title,
            scope=scope.path or None, session=scope.session if "{session}" in kind.place else "",
            tags=record.tags if change.tags is None else change.tags, fields=fields, op_id=change.op_id,
            supersedes="" if kind.key else record.id, until=str(record.fields.get("until") or ""),
        )
    )  # fmt: skip


# similar records


def similar(memory: Core, draft: Draft, own: str) -> list[dict[str, Any]]:
    """Return current records of the same kind that say nearly the same as a draft, and how they differ."""
    kind, text = KINDS[draft.kind], f"{draft.title}\n{draft.text or ''}"
    if kind.heard or "{session}" in kind.place:
        return []
    if kind.key:
        text = f"{draft.fields.get(kind.key, '')}"
    asked = " ".join(dict.fromkeys(_WORD.findall(text)[:_ASKED]))
    scope = draft.scope if kind.shape != "line" else None
    try:
        found = memory.find(Query(text=asked, kinds=(kind.name,), scope=scope, above=True, limit=_LISTED + 5))
    except HoldfastError:  # what was stored counts, not what it is compared with
        return []
    mine, shown = _content(text), list[dict[str, Any]]()
    for record in (hit.record for hit in found):
        theirs = _content(record.key if kind.key else f"{record.title}\n{record.text}")
        both = mine.keys() & theirs.keys()
        few = min(len(mine), len(theirs))
        if record.id == own or label(record) or len(both) < min(_LEAST, few) or len(both) < _SHARE * few:
            continue
        only = [[word for stem, word in one.items() if stem not in both] for one in (theirs, mine)]
        how = f"which has {_some(only[0])} where this has {_some(only[1])}" if all(only) else "nearly the same"
        shown.append({"id": record.id, "title": record.title or record.text[:80], "how": how})
    return shown[:_LISTED]


def shown_similar(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return similar records as lines for the model, with what to do about them."""
    lines = [f'similar: "{one_line(one["title"])}" ({one["id"]}), {one["how"]}' for one in found]
    return [*lines, _REPLACES] if lines else []


def _content(text: str) -> dict[str, str]:
    """Return the words that say what a text is about, by their stems."""
    words = [word for word in _WORD.findall(text) if word.casefold() not in QUESTION_WORDS]
    return {stem: word for word in words for stem in stems(word)[:1]}


def _some(words: list[str]) -> str:
    return " ".join(words[:5]) + (" …" if len(words) > 5 else "")


# review


def pending(memory: Core, scope: str | None = None) -> list[Record]:
    """Return what waits for the owner's approval, oldest first."""
    return memory.every(Query(kinds=("proposal",), scope=scope))[::-1]


def approve(memory: Core, proposal: Record) -> Receipt:
    """Write what was proposed; the proposal is then no longer pending."""
    given = dict(proposal.fields.get("draft") or {})
    given |= {"text": proposal.text or None, "title": proposal.title, "tags": list(proposal.tags) or None}
    given |= {"op_id": f"review:{proposal.id}"}
    receipt = memory.keep(msgspec.convert(given, Draft))
    if not proposal.hidden:
        memory.hide(proposal.id, reason=f"approved: {receipt.id}")
    return receipt


def reject(memory: Core, proposal: Record, reason: str = "") -> Receipt:
    """Hide what was proposed; its text stays in the log of proposals."""
    return memory.hide(proposal.id, reason=f"rejected: {reason}" if reason else "rejected")
