"""What is wrong with one page, told from its own text: front matter, dates, entries.

Pure functions from a page to flaws with their lines. A flaw that can only mean one thing carries what is meant;
whether the page is mended is decided by who asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import Any, Literal

import msgspec

from holdfast.formats import markdown, sections
from holdfast.model.kinds import Kind
from holdfast.model.records import Record

Level = Literal["error", "warning"]
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].+)?\Z")
_OTHER_DATE = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})\Z")
_GAPS = re.compile(r"[\s_-]+")
_DAY = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{8})(?!\d)"
_LIKE_ENTRY = re.compile(
    rf"^(?!###[ \t]+\[\d{{4}}-\d{{2}}-\d{{2}}\])(?:#{{1,6}}[ \t]*\[[ \t]*|#{{1,3}}[ \t]*){_DAY}", re.MULTILINE
)
_MIGRATED = ("plan", "overview")


class Flaw(msgspec.Struct, frozen=True):
    """One thing that is wrong. `meant` is the value that `field` should have, "" when only a person can say."""

    level: Level
    line: int
    what: str
    rule: str
    field: str = ""
    meant: str = ""


def front(kind: Kind, page: markdown.Page, head: str) -> Iterator[Flaw]:
    """Judge the front matter of a page; `head` is its text up to the body."""
    if page.fault:
        rule = "conflict" if page.conflict else "front-matter"
        yield Flaw("error", page.fault_line, f"{page.fault}; mend it by hand", rule)
        return
    if missing := lacking(kind, page.fields):
        what = "no front matter; it should have" if page.front is None else "front matter lacks"
        step = "holdfast migrate front-matter" if kind.name in _MIGRATED else "add them by hand"
        yield Flaw("error", 1, f"{what} {', '.join(missing)}; next: {step}", "front-matter")
    fields = {name: page.fields[name] for name in (*kind.choices, *kind.dates) if not _blank(page.fields.get(name))}
    for name, value in fields.items():
        if name in kind.choices:
            choices = kind.choices[name]
            meant, what = choice(value, choices), f"it can be {', '.join(choices)}"
        else:
            meant, what = _day(value), "a date is written YYYY-MM-DD"
        if meant != value:
            rule = "status" if name in kind.choices else "date"
            yield Flaw(
                "error", markdown.line_of(head, name), f"{name} is {str(value)[:80]!r}; {what}", rule, name, meant
            )
    if {"created", "updated"} <= fields.keys():
        created, updated = _day(fields["created"])[:10], _day(fields["updated"])[:10]
        if created and updated and updated < created:
            what = f"updated {updated} is before created {created}"
            yield Flaw("warning", markdown.line_of(head, "updated"), what, "date")


def lacking(kind: Kind, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the front matter of this kind should have, and has not or has blank."""
    return tuple(name for name in kind.front if _blank(fields.get(name)))


def entries(page: markdown.Page, records: Iterable[Record]) -> Iterator[Flaw]:
    """Judge the dated entries of a page, and what was meant to be one and is not."""
    heads: set[int] = set()
    for record in records:
        heads.add(record.line - page.body_line + 1)
        if not record.time:
            what = f"[{record.fields['date']}] is not a date of the calendar"
            yield Flaw("error", record.line, what, "date")
        absent = [name for name, value in (("title", record.title), ("text", record.text)) if not value.strip()]
        if absent:
            yield Flaw("warning", record.line, f"an entry without {' and '.join(absent)}", "entry")
    for line in _unread(page.body, heads):
        what = "looks like an entry and is read as text of the entry before it; write ### [YYYY-MM-DD] Title"
        yield Flaw("error", line + page.body_line - 1, what, "entry")


def _unread(body: str, heads: set[int]) -> Iterator[int]:
    """Yield the lines that look like the heading of an entry, are not read as one, and are not code."""
    line, position, code = 1, 0, None
    for found in _LIKE_ENTRY.finditer(body):
        line += body.count("\n", position, found.start())
        position = found.start()
        code = sections.code_lines(sections.lines_of(body), heads) if code is None else code
        if line not in code:
            yield line


def _day(value: object) -> str:
    """Return the date or time that a value is, or the date that it means in another form; "" for anything else."""
    if not isinstance(value, str):
        return ""
    try:
        if _DATE.match(value):
            datetime.fromisoformat(value)
            return value
        if found := _OTHER_DATE.match(value.strip()):
            return date(int(found[1]), int(found[3]), int(found[4])).isoformat()
    except ValueError:
        pass
    return ""


def choice(value: object, choices: tuple[str, ...]) -> str:
    """Return the choice that a value is but for case, spaces and hyphens; "" when it is none."""
    form = _GAPS.sub("", value).casefold() if isinstance(value, str) else ""
    return next((choice for choice in choices if choice == value or _GAPS.sub("", choice) == form), "")


def _blank(value: object) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value in ([], {})
