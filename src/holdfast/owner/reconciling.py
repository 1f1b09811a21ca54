"""Two versions of one document: which of them goes where, and what becomes of both when neither knows the other.

A version gives way to one that was made with it in sight. Where neither was, entries of a dated page are put together,
and an entry that was changed on both sides stands there twice; of any other document the text of the side that is
written to stays where it is, and the one that comes is put beside it under a name that says so. Both then move on as
they are, so that in the end every memory has the same pair. Nothing is ever replaced that its writer has not seen.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Literal

from holdfast.errors import Invalid
from holdfast.formats import markdown, sections
from holdfast.owner.agreeing import Pair

Act = Literal["new", "changed", "merged", "conflict", "same", "newer", "gone", "forgotten"]
_NAME = re.compile(r"(.+)\.conflict-([0-9a-f]{8})(\.[^./]*)?\Z", re.DOTALL)


def decide(source: str, target: str | None, agreed: Pair | None, *, entries: bool = False) -> Act:
    """Say what moving a document means; without a target version it is not there. `agreed` is seen from the source."""
    if target is None:
        return "gone" if agreed and agreed.here == source else "new"
    if source == target:
        return "same"
    if agreed and agreed.here == source:
        return "same" if agreed.there == target else "newer"
    if agreed and agreed.there == target:
        return "changed"
    return "merged" if entries else "conflict"


def beside(path: str, version: str) -> str:
    """Return the name under which a version is put beside another one: the same version always has the same."""
    folder, slash, name = path.rpartition("/")
    stem, dot, ending = name.rpartition(".")
    name = f"{stem}.conflict-{version[:8]}.{ending}" if dot else f"{name}.conflict-{version[:8]}"
    return f"{folder}{slash}{name}"


def put_beside(path: str) -> tuple[str, str] | None:
    """Return the document that a path is another version of, and the first digits of that; None if it is none."""
    found = _NAME.fullmatch(path)
    return (found[1] + (found[3] or ""), found[2]) if found else None


def together(ours: bytes, theirs: bytes, version: str, without: Container[str] = ()) -> bytes | None:
    """Return their page with those of our entries that it lacks; None when that cannot be done entry by entry.

    Two entries of one heading are both kept; ours is then marked with the version of our page. Those that are named in
    `without` stay away.
    """
    mine, page = (data.decode("utf-8", "surrogateescape") for data in (ours, theirs))
    if markdown.conflict_line(mine) or markdown.conflict_line(page):
        return None
    start = markdown.body_start(page)
    body = page[start:]
    there = sections.parse(body)
    known = {one.source.rstrip() for one in there}
    known |= {one.text for one in there if one.title.endswith(_mark(version))}
    anchors = {(one.date, one.title) for one in there}
    try:
        for one in sections.parse(mine[markdown.body_start(mine) :]):
            if one.source.rstrip() in known or one.anchor in without:
                continue
            title = one.title
            if (one.date, title) in anchors:
                if one.text in known:
                    continue
                title = f"{title[: sections.MAX_TITLE - 40]}{_mark(version)}"
            entry = sections.render(one.date, title, one.text, one.category, one.tags, one.archived)
            body = sections.add(body, entry)
    except Invalid:
        return None
    made = sections.parse(body)
    if [one.source.rstrip() for one in made[: len(there)]] != [one.source.rstrip() for one in there]:
        return None
    return (page[:start] + body).encode("utf-8", "surrogateescape")


def _mark(version: str) -> str:
    return f" (other version, {version[:8]})"
