"""What a page says in plain sentences: its text without code, its first paragraph, whole sentences of a text."""

from __future__ import annotations

import re

from holdfast.formats.sections import code_lines, lines_of

_NO_PROSE = re.compile(r"[ \t]*(?:#{1,6}[ \t]|[-*+][ \t]|\d+[.)][ \t]|[|>]|<|!\[|(?:[-*_=][ \t]*){3,}\Z)|\t| {4}")
_SENTENCE = re.compile(r"[.!?…](?=\s|\Z)|[。！？]")


def lines(text: str) -> list[str]:
    """Return the lines of a text without its code blocks."""
    every = lines_of(text)
    code = code_lines(every)
    return [line.rstrip("\r\n") for number, line in enumerate(every, 1) if number not in code]


def abstract(text: str, most: int = 200) -> str:
    """Return the first paragraph of a text as one line of at most so many characters."""
    return cut(paragraph(lines(text[: most * 20])), most)


def paragraph(lines: list[str]) -> str:
    """Return the first paragraph that is neither heading, list, table, quote nor HTML, as one line."""
    found: list[str] = []
    inside = ""
    for line in lines:
        if inside or line.lstrip().startswith("<!--"):
            inside = "" if "-->" in line else "comment"
        elif not line.strip() or (_NO_PROSE.match(line) and not (found and line[:1] in " \t")):
            if found:
                break
        else:
            found.append(line)
    return " ".join(" ".join(found).split())


def cut(text: str, most: int) -> str:
    """Shorten a text to whole sentences, or to whole words where not even one sentence fits."""
    if len(text) <= most:
        return text
    ends = [found.end() for found in _SENTENCE.finditer(text, 0, most + 1) if found.end() <= most]
    return text[: ends[-1]] if ends else text[: most - 1].rpartition(" ")[0].rstrip(" ,;:") + "…"
