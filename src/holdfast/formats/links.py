"""Links in Markdown text: `[[name]]`, `[[name|label]]`, `[[name#part]]`, and `[label](path.md)`.

A link in a code block or in inline code is text. A name in double brackets refers to every record with that title,
path, file name (with or without its date prefix), key, anchor or alias.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

import msgspec

from holdfast.formats.sections import code_lines, lines_of
from holdfast.model.kinds import KINDS
from holdfast.model.names import same
from holdfast.model.patterns import regex
from holdfast.model.records import Record

_SCHEME = regex(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_DATED = regex(r"\d{6}-(?=.)")
_INLINE_CODE = regex(r"(?<!`)(`+)(?!`)[^\n]{0,500}?(?<!`)\1(?!`)")
_WIKI = regex(r"\[\[([^\s\[\]|#][^\[\]|#\n]{0,199})(?:#([^\[\]|\n]{0,200}))?(?:\|[^\[\]\n]*)?\]\]")
_LINK = regex(r"(?<!!)\[[^\[\]\n]*\]\(<?([^()\s<>]{1,500})>?(?:[ \t]+\"[^\"\n]*\")?\)")


class Link(msgspec.Struct, frozen=True):
    """One link: the name or address as written, and its line, from 1."""

    target: str
    line: int
    wiki: bool
    part: str = ""
    """The text after `#` in double brackets."""


def find(text: str) -> Iterator[Link]:
    if "[[" not in text and "](" not in text:
        return
    if "`" in text or "~~~" in text:
        lines = lines_of(text)
        code = code_lines(lines)
        prose = "".join("\n" if number in code else line for number, line in enumerate(lines, 1)) if code else text
        text = _INLINE_CODE.sub("", prose)
    found = [(match, True) for match in _WIKI.finditer(text)] + [(match, False) for match in _LINK.finditer(text)]
    line, position = 1, 0
    for match, wiki in sorted(found, key=lambda pair: pair[0].start()):
        line += text.count("\n", position, match.start())
        position = match.start()
        yield Link(match[1].strip(), line, wiki, (match[2] or "").strip() if wiki else "")


def targets(text: str, source: str) -> tuple[str, ...]:
    """Return the link targets in the text of the file `source`: names, and paths of Markdown files."""
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
    """Return the names that link to a record, in the form in which they are compared."""
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
    """Return the file that an address in the file `source` refers to, "" if it is not inside the root."""
    if _SCHEME.match(target) or target.startswith(("#", "/")):
        return ""
    from urllib.parse import unquote

    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(target.partition("#")[0])))
    return "" if path == ".." or path.startswith("../") else path
