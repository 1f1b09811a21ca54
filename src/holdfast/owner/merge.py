"""The merge rule of transfers, for documents: fast-forward, else both versions are kept.

A version only replaces one that it was made from. Otherwise the entries of a dated page are merged, and of any other
document both versions are kept, the incoming one under a name that says so. Both then move on unchanged, so that in the
end every memory has the same pair.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.errors import Invalid
from holdfast.formats import markdown, sections
from holdfast.formats.sections import Section
from holdfast.model.patterns import regex
from holdfast.storage import write_log

if TYPE_CHECKING:
    from holdfast.core import Core

Act = Literal["new", "changed", "merged", "conflict", "same", "newer", "gone", "forgotten"]
_CONFLICT = regex(r"(.+)\.conflict-([0-9a-f]{8})(\.[^./]*)?\Z", re.DOTALL)


class Pair(NamedTuple):
    """The last versions of a document that both sides know: the source's that the target has, and the reverse.

    A memory has a version when it has the same text, made its own from it, or stores it as a conflict beside it.
    """

    source: str
    target: str = ""


def decide(source: str, target: str | None, agreed: Pair | None, *, dated: bool = False) -> Act:
    """Return what transferring a document means; `target` is None if the target lacks it."""
    if target is None:
        return "gone" if agreed and agreed.source == source else "new"
    if source == target:
        return "same"
    if agreed and agreed.source == source:
        return "same" if agreed.target == target else "newer"
    if agreed and agreed.target == target:
        return "changed"
    return "merged" if dated else "conflict"


def conflict_path(path: str, version: str) -> str:
    """Return the path under which a version is stored beside another one."""
    stem, ending = posixpath.splitext(path)
    return f"{stem}.conflict-{version[:8]}{ending}"


def conflict_of(path: str) -> tuple[str, str] | None:
    """Return the document that a conflict belongs to and the first digits of its version; None if it is no conflict."""
    found = _CONFLICT.fullmatch(path)
    return (found[1] + (found[3] or ""), found[2]) if found else None


def entries(data: bytes) -> list[Section]:
    """Return the dated entries of a page."""
    text = data.decode("utf-8", "surrogateescape")
    return sections.parse(text[markdown.body_start(text) :])


def merge_pages(ours: bytes, theirs: bytes, version: str, without: Container[str] = ()) -> bytes | None:
    """Return their page with our entries that it lacks, or None when the pages cannot be merged.

    Of two entries with the same heading both are kept; ours is then marked with the version of our page. Entries whose
    anchors are in `without` are left out.
    """
    mine, page = (data.decode("utf-8", "surrogateescape") for data in (ours, theirs))
    if markdown.conflict_line(mine) or markdown.conflict_line(page):
        return None
    mark = f" (other version, {version[:8]})"
    start, there = markdown.body_start(page), entries(theirs)
    body, before = page[start:], [one.source.rstrip() for one in there]
    known = {*before, *(one.text for one in there if one.title.endswith(mark))}
    headings = {(one.date, one.title) for one in there}
    try:
        for one in entries(ours):
            if one.source.rstrip() in known or one.anchor in without:
                continue
            title = one.title
            if (one.date, title) in headings:
                if one.text in known:
                    continue
                title = f"{title[: sections.MAX_TITLE - 40]}{mark}"
            body = sections.add(body, one.rendered(title=title))
    except Invalid:
        return None
    if [one.source.rstrip() for one in sections.parse(body)[: len(there)]] != before:
        return None
    return (page[:start] + body).encode("utf-8", "surrogateescape")


class Tombstones:
    """What was forgotten in the target and is not transferred again: documents, their versions, entries, values."""

    def __init__(self, target: Core, source: Core, logs: list[str]) -> None:
        found = list(write_log.entries(target.tree, target.layout.memory))
        self._paths = {str(entry["path"]) for entry in found if entry.get("forgotten") and "path" in entry}
        self._had = {(entry.get("path"), entry[end]) for entry in found for end in ("before", "after") if end in entry}
        about = [entry for entry in found if entry.get("path") in self._paths]
        self._versions = {str(entry[end]) for entry in about for end in ("before", "after") if entry.get(end)}
        self._ids = {str(each) for one in found if isinstance(one.get("forget"), list) for each in one["forget"]}
        lines = (one for log in logs if self._ids for one in write_log.objects(source.tree.scan(log), '"ref"'))
        self._paths |= {str(entry["ref"]) for entry in lines if "ref" in entry and entry.get("id") in self._ids}

    def has(self, path: str, version: str) -> bool:
        """Return whether a document was forgotten, in this version or another, or the one that it conflicts with."""
        conflict = conflict_of(path)
        return version in self._versions or path in self._paths or bool(conflict and conflict[0] in self._paths)

    def had(self, path: str, version: str) -> bool:
        """Return whether the target had this version of a document before."""
        return (path, version) in self._had

    def sections_of(self, path: str) -> set[str]:
        """Return the anchors of the forgotten sections of a page."""
        return {each.removeprefix(f"{path}#") for each in self._ids if each.startswith(f"{path}#")}
