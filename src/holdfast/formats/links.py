"""Links in a Markdown text: `[[name]]`, `[[name|label]]`, `[[name#part]]`, and `[label](path.md)`.

A link in a code block or in inline code is text. A name in double brackets means every record that bears it: by its
title, its path, its file's name with or without the date before it, its key, its anchor, or an alias of its own.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from urllib.parse import unquote

import msgspec

from holdfast.formats import fences
from holdfast.formats.markdown import lines_of
from holdfast.model.kinds import KINDS
from holdfast.model.names import same
from holdfast.model.records import Record

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_DATED = re.compile(r"\d{6}-(?=.)")
_INLINE = re.compile(r"(?<!`)(`+)(?!`)[^\n]{0,500}?(?<!`)\1(?!`)")
_WIKI = re.compile(r"\[\[([^\s\[\]|#][^\[\]|#\n]{0,199})(?:#([^\[\]|\n]{0,200}))?(?:\|[^\[\]\n]*)?\]\]")
_LINK = re.compile(r"(?<!!)\[[^\[\]\n]*\]\(<?([^()\s<>]{1,500})>?(?:[ \t]+\"[^\"\n]*\")?\)")


class Link(msgspec.Struct, frozen=True):
    """One link: the name or address as it is written, and where it stands, from line 1."""

    target: str
    line: int
    wiki: bool
    part: str = ""
    """What stands behind a `#` of a name in double brackets."""


def find(text: str) -> Iterator[Link]:
    """Yield the links of a text in the order in which they stand."""
    if "[[" not in text and "](" not in text:
        return
    bare = _INLINE.sub("", _prose(text)) if "`" in text or "~~~" in text else text
    found = [(match, True) for match in _WIKI.finditer(bare)] + [(match, False) for match in _LINK.finditer(bare)]
    line, position = 1, 0
    for match, wiki in sorted(found, key=lambda pair: pair[0].start()):
        line += bare.count("\n", position, match.start())
        position = match.start()
        yield Link(match[1].strip(), line, wiki, (match[2] or "").strip() if wiki else "")


def targets(text: str, source: str) -> tuple[str, ...]:
    """Return what the text of the file `source` links to: names, and paths of Markdown files."""
    found: dict[str, None] = {}
    for link in find(text):
        if link.wiki:
            found[link.target] = None
            if link.part:
                found[f"{link.target}#{link.part}"] = None
        elif (path := path_from(source, link.target)).endswith(".md"):
            found[path] = None
    return tuple(found)


def normal(name: str) -> str:
    """Return the form in which links and names are compared."""
    return same(name).replace(".md#", "#").removesuffix(".md")


def names_of(record: Record) -> tuple[str, ...]:
    """Return the names by which a record can be linked to, in the form in which they are compared."""
    kind = KINDS[record.kind]
    if kind.shape == "line":
        return (normal(record.key),) if record.key else ()
    given = [record.id, record.title]
    folder, _, file = record.path.rpartition("/")
    if kind.shape == "section":
        given.append(record.id.rpartition("#")[2])
    elif record.kind == "overview":
        given += [folder.rpartition("/")[2], record.scope.path]
    elif record.kind == "skill":
        given.append(folder.rpartition("/")[2])
    else:
        given += [file, _DATED.sub("", file, count=1)]
    aliases = record.fields.get("aliases")
    given += [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []
    return tuple(dict.fromkeys(name for name in map(normal, given) if name))


def path_from(source: str, target: str) -> str:
    """Return the file that an address in the file `source` means, "" when it means none inside the root."""
    if _SCHEME.match(target) or target.startswith(("#", "/")):
        return ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(target.partition("#")[0])))
    return "" if path == ".." or path.startswith("../") else path


def _prose(text: str) -> str:
    """Return a text with its code blocks emptied, line by line."""
    lines = lines_of(text)
    code = fences.closed(lines)
    return "".join("\n" if number in code else line for number, line in enumerate(lines, 1)) if code else text
