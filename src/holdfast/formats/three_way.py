"""Three-way merges: two changed versions of a file and the one that both were made from.

A page of dated entries is merged by entry, a log by the ids of its lines, any other document by lines; where only its
front matter conflicts, that is merged by field. An entry that was changed differently on both sides is kept twice; the
second one says so in its title. Which one that is does not depend on which side is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import HoldfastError, Invalid
from holdfast.formats import jsonl, markdown, sections
from holdfast.formats.sections import Section
from holdfast.model.times import is_id

V = TypeVar("V")


class Sides(NamedTuple):
    """The three versions of a file."""

    base: bytes
    ours: bytes
    theirs: bytes


class Merged(NamedTuple):
    data: bytes
    conflict: bool = False
    """Whether the data contains the marks of a conflict, which a person has to resolve."""
    twice: Sequence[str] = ()
    """The titles of the entries of which both versions were kept."""


Lines = Callable[[Sides], Merged]
"""A merge by lines, as git does it."""


def _one_change(base: V, ours: V, theirs: V) -> list[V]:
    """Return the version to take if only one side changed, or both in the same way; [] if they conflict."""
    return [ours] if ours == theirs or theirs == base else [theirs] if ours == base else []


# pages of dated entries


def merge_entries(sides: Sides, lines: Lines) -> Merged:
    """Merge a page by entry; by lines if its entries cannot be distinguished."""
    texts = [data.decode("utf-8", "surrogateescape") for data in sides]
    starts = [markdown.body_start(text) for text in texts]
    pages = [sections.parse(text[start:]) for text, start in zip(texts, starts, strict=True)]
    if any(map(markdown.conflict_in, sides)) or not (pages[1] and pages[2]):
        return lines(sides)
    starts = [
        start + page[0].start if page else len(text) for text, start, page in zip(texts, starts, pages, strict=True)
    ]
    heads = Sides(*(text[:end].encode("utf-8", "surrogateescape") for text, end in zip(texts, starts, strict=True)))
    head = merge_document(heads, lines)
    try:
        entries, twice = _merged_entries(*({one.anchor: one for one in page} for page in pages))
    except Invalid:  # from a title that cannot be written
        return lines(sides)
    newline = "\r\n" if "\r\n" in texts[1] else "\n"
    entries = [entry.replace("\r\n", "\n").replace("\n", newline) for entry in entries]
    pieces = [head.data.decode("utf-8", "surrogateescape")]
    for entry in entries:
        pieces += [sections.add(pieces.pop(), ""), entry]  # with a blank line between them
    text = "".join(pieces).rstrip() + newline
    made = [one.source.rstrip() for one in sections.parse(text[markdown.body_start(text) :])]
    if made != [entry.rstrip() for entry in entries]:  # a code block is open, so that headings after it are text
        return lines(sides)
    return Merged(text.encode("utf-8", "surrogateescape"), head.conflict, twice)


def _merged_entries(
    base: Mapping[str, Section], ours: Mapping[str, Section], theirs: Mapping[str, Section]
) -> tuple[list[str], list[str]]:
    """Return the text of each entry, ours in their order and new ones by date, and the titles of those kept twice."""
    merged, twice = list[tuple[str, str]](), list[str]()
    for anchor in dict.fromkeys([*ours, *theirs]):
        there = {one.version: one for side in (theirs, ours) if (one := side.get(anchor))}
        before, *after = (side[anchor].version if anchor in side else "" for side in (base, ours, theirs))
        taken = _one_change(before, *after) or sorted(after)
        found = [there[version] for version in taken if version]
        place = len(merged)
        if anchor not in ours and found:
            place = 1 + max((at for at, (date, _) in enumerate(merged) if date <= found[0].date), default=-1)
        texts = [one.source for one in found[:1]]
        texts += [one.rendered(title=sections.other_version(one.title, one.version)) for one in found[1:]]
        merged[place:place] = [(found[0].date, text) for text in texts]
        twice += [one.title for one in found[1:]]
    return [text for _, text in merged], twice


# documents


def merge_document(sides: Sides, lines: Lines) -> Merged:
    """Merge a document by lines; if that fails, its text by lines and its front matter by field."""
    if taken := _one_change(*sides):
        return Merged(taken[0])
    merged = lines(sides)
    pages = [markdown.parse(data) for data in sides]
    if not merged.conflict or any(page.fault or page.front is None for page in pages):
        return merged
    body = lines(Sides(*(page.body.encode() for page in pages)))
    if body.conflict:
        return merged
    changes = dict[str, Any]()
    for name in {**pages[1].fields, **pages[2].fields}:
        before, mine, other = (page.fields.get(name) for page in pages)
        value = _one_change(before, mine, other)
        if not value and name == "updated" and isinstance(mine, str) and isinstance(other, str):
            value = [max(mine, other)]  # the later update
        if not value:
            return merged
        changes[name] = value[0]
    head = sides.ours[: len(sides.ours) - len(pages[1].body.encode())]
    try:
        return Merged(markdown.edit(head + body.data, changes))
    except HoldfastError:  # its layout can only be edited by hand
        return merged


# logs


def merge_log(sides: Sides) -> Merged:
    """Merge a log: every entry of both sides once, in the order of their ids; a line without an id stays in its place.

    No entry is lost to a merge. A tombstone replaces its entry; a damaged line that one side removed stays removed.
    """
    order: dict[tuple[str, ...], str] = {}
    versions: list[dict[tuple[str, ...], dict[bytes, None]]] = []
    for data in (sides.ours, sides.theirs, sides.base):
        found, last = dict[tuple[str, ...], dict[bytes, None]](), ""
        for line in data.split(b"\n"):
            if key := jsonl.keys(line):
                last = max(last, key[0]) if is_id(key[0]) else last
                order.setdefault(key, key[0] if is_id(key[0]) else last)
                found.setdefault(key, {})[line] = None
        versions.append(found)
    merged = list[bytes]()
    for key in sorted({**versions[0], **versions[1]}, key=lambda each: order[each]):
        ours, theirs, base = (list(found.get(key, ())) for found in versions)
        taken = _one_change(base, ours, theirs) or [sorted({*ours, *theirs})]
        kept = taken[0] or (ours or theirs if is_id(key[0]) else [])
        merged += [line for line in kept if _is_tombstone(line)] or kept
    return Merged(b"".join(line + b"\n" for line in merged))


def _is_tombstone(line: bytes) -> bool:
    found = jsonl.parse(line) if b'"forgotten"' in line else ""
    return not isinstance(found, str) and any("forgotten" in value for value in found)
