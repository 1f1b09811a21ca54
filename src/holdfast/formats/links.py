"""Links in a Markdown text: `[[name]]`, `[[name|label]]`, `[[name#part]]`, and `[label](path.md)`.

A link in a code block or in inline code is text. What a name means is decided by who asks: here it is only found.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from urllib.parse import unquote

import msgspec

_FENCE = re.compile(r"^[ ]{0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^[ ]{0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(`+)(?!`)[^\n]{0,500}?(?<!`)\1(?!`)")
_WIKI = re.compile(r"\[\[([^\s\[\]|#][^\[\]|#\n]{0,199})(?:#[^\[\]|\n]*)?(?:\|[^\[\]\n]*)?\]\]")
_LINK = re.compile(r"(?<!!)\[[^\[\]\n]*\]\(<?([^()\s<>]{1,500})>?(?:[ \t]+\"[^\"\n]*\")?\)")


class Link(msgspec.Struct, frozen=True):
    """One link: the name or address as it is written, and where it stands, from line 1."""

    target: str
    line: int
    wiki: bool


def find(text: str) -> Iterator[Link]:
    """Yield the links of a text in the order in which they stand."""
    if "[[" not in text and "](" not in text:
        return
    bare = _INLINE.sub(_blank, _FENCE.sub(_blank, text))
    found = [(match, True) for match in _WIKI.finditer(bare)] + [(match, False) for match in _LINK.finditer(bare)]
    line, position = 1, 0
    for match, wiki in sorted(found, key=lambda pair: pair[0].start()):
        line += bare.count("\n", position, match.start())
        position = match.start()
        yield Link(match[1].strip(), line, wiki)


def path_from(source: str, target: str) -> str:
    """Return the file that an address in the file `source` means, "" when it means none inside the root."""
    if "://" in target or target.startswith(("#", "/", "mailto:")):
        return ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(target.partition("#")[0])))
    return "" if path.startswith("..") else path


def _blank(found: re.Match[str]) -> str:
    """Take the text away and leave its lines."""
    return "\n" * found.group().count("\n")
