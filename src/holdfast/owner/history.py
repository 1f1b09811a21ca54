"""What became of a record since it was first written: which versions there were, when, and by whom.

Of a document this is told by the account of writes; what nobody accounted for was done by hand. Of a line it is told by
the log itself: the lines of the same key, and the marks that hid or showed it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.errors import Invalid, NotFound
from holdfast.formats import jsonl
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Places
from holdfast.model.records import Record, text_of
from holdfast.model.times import from_ns
from holdfast.storage import accounts
from holdfast.storage.tree import ABSENT, Vault
from holdfast.storage.writing import kept

What = Literal["made", "changed", "undone", "by hand", "removed", "hidden", "shown", "forgotten"]
_SHORTEST = 4


class Version(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One thing that happened to a record."""

    time: str
    """When, in UTC; of what was done by hand, when that was noticed or "" when nothing tells."""
    what: What
    writer: str = ""
    version: str = ""
    """The version that it made; of a line, its id."""
    op: str = ""
    kept: bool = False
    """Can its text still be read?"""
    current: bool = False


def of_document(vault: Vault, places: Places, path: str) -> list[Version]:
    """Return what happened to a document, oldest first."""
    stamp = vault.stat(path)
    current = vault.read(path).version if stamp else ABSENT
    lines = written(list(accounts.of(vault, places.memory, path))[::-1], current)
    if not lines and not stamp:
        raise NotFound(f"{path} is not there, and nothing is known of it.", "Check the path.")
    made = {str(line.get("after") or ABSENT) for line in lines if not line.get("undo")}
    found: list[Version] = []
    version = ABSENT
    for line in lines:
        before, after = str(line.get("before") or ABSENT), str(line.get("after") or ABSENT)
        if before not in (version, *made):
            found.append(Version(time="", what="by hand", version=before))
        found.append(_version(line, before, after))
        version = after
    if current not in (version, *made) and stamp:
        found.append(Version(time=from_ns(stamp.mtime), what="by hand", version=current))
    elif current == ABSENT and version != ABSENT:
        found.append(Version(time="", what="removed"))
    return list(_marked(vault, places, found, current))


def written(lines: list[dict[str, Any]], current: str) -> list[dict[str, Any]]:
    """Leave out what was announced and then told, and what was announced and never came to be."""
    told = {_said(line) for line in lines if "intent" not in line}
    replaced = {str(line.get("before") or ABSENT) for line in lines if "intent" not in line}
    announced = [line for line in lines if "intent" in line and _said(line) not in told]
    really = {id(line) for line in announced if str(line.get("after") or ABSENT) in {current, *replaced}}
    return [
        line
        for line in lines
        if ("intent" not in line or id(line) in really) and line.get("before") != line.get("after")
    ]


def _said(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line.get("before"), line.get("after"), line.get("op")


def _version(line: Mapping[str, Any], before: str, after: str) -> Version:
    what: What = "made" if before == ABSENT else "changed"
    if after == ABSENT:
        what = "forgotten" if line.get("forgotten") else "removed"
    elif line.get("undo"):
        what = "undone"
    return Version(
        time=str(line.get("time") or ""), what=what, writer=str(line.get("writer") or ""), version=after,
        op=str(line.get("op") or ""),
    )  # fmt: skip


def _marked(vault: Vault, places: Places, found: list[Version], current: str) -> Iterator[Version]:
    """Say of which version the text is still there, and which one holds: the last of those that made it."""
    last = max((number for number, one in enumerate(found) if one.version == current), default=-1)
    for number, one in enumerate(found):
        there = one.version == current != ABSENT or bool(one.version and vault.stat(kept(places, one.version)))
        yield msgspec.structs.replace(one, kept=there, current=number == last and current != ABSENT)


def text(vault: Vault, places: Places, path: str, version: str) -> bytes:
    """Return the text that a document had in a version, of which the first digits are enough."""
    if len(version) < _SHORTEST:
        raise Invalid(f"{version!r} is too short to name a version.", f"Give at least {_SHORTEST} digits of it.")
    known = dict.fromkeys(one.version for one in of_document(vault, places, path) if one.version)
    fitting = [one for one in known if one.startswith(version)]
    if len(fitting) != 1:
        what = "several versions" if fitting else "no version"
        raise NotFound(f"{path} has {what} {version}.", f"Run: holdfast history {path}")
    document = vault.read(path) if vault.stat(path) else None
    if document and document.version == fitting[0]:
        return document.data
    try:
        return vault.read(kept(places, fitting[0])).data
    except NotFound:
        raise NotFound(
            f"The text of {path} in version {fitting[0][:8]} is not kept.",
            "Only what Holdfast replaced is, until it is forgotten.",
        ) from None


def of_line(vault: Vault, record: Record, lines: list[Record]) -> list[Version]:
    """Return what happened to a line of a log, or to its key, oldest first; `lines` are those of the key."""
    kind = KINDS[record.kind]
    targets = {record.key} if record.key else {record.id}
    found: list[tuple[str, Version]] = []
    for number, one in enumerate(lines or [record]):
        what: What = "changed" if number else "made"
        told = Version(
            time=one.time, what="forgotten" if one.fields.get("forgotten") else what, version=one.id,
            writer=text_of(one.fields.get("writer")), op=text_of(one.fields.get("op")),
            kept="forgotten" not in one.fields, current=not one.superseded and not one.hidden,
        )  # fmt: skip
        found.append((one.order, told))
    marks = itertools.chain.from_iterable(_marks(line.data, targets) for line in vault.scan(record.path))
    for value in marks:
        _, order, time = jsonl.identity(value, kind.time)
        shown: What = "hidden" if value.get("hidden") is not False else "shown"
        who, op = text_of(value.get("writer")), text_of(value.get("op"))
        found.append((order, Version(time=time, what=shown, writer=who, op=op)))
    return [version for _, version in sorted(found, key=lambda one: one[0])]


def _marks(data: bytes, targets: set[str]) -> list[dict[str, Any]]:
    objects = jsonl.parse(data) if b'"hide"' in data else []
    return [value for value in objects if value.get("hide") in targets] if isinstance(objects, list) else []
