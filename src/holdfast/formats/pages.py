"""Markdown pages: their first sentences, the budget of a rule, flaws, and merging two versions of dated entries.

Pure functions. A rule declares its budget as `<!-- budget: N lines -->` or `<!-- budget: N lines, M tokens -->`, first
thing in the file or after the front matter; a budget counts the whole file. A flaw has its line and, when there is only
one possible meaning, the correct value.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.formats import markdown, sections
from holdfast.model.kinds import Kind
from holdfast.model.names import count_tokens
from holdfast.model.patterns import regex
from holdfast.model.records import Record

Level = Literal["error", "warning"]
_NEARLY_FULL = 0.9
_NO_PROSE = regex(r"[ \t]*(?:#{1,6}[ \t]|[-*+][ \t]|\d+[.)][ \t]|[|>]|<|!\[|(?:[-*_=][ \t]*){3,}\Z)|\t| {4}")
_SENTENCE = regex(r"[.!?…](?=\s|\Z)|[。！？]")
_BUDGET = regex(r"\s*<!--[ \t]*budget:[ \t]*(\d{1,6})[ \t]*lines?(?:,[ \t]*(\d{1,7})[ \t]*tokens?)?[ \t]*-->")
_DATE = regex(r"\d{4}-\d{2}-\d{2}(?:[T ].+)?\Z")
_OTHER_DATE = regex(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})\Z")
_GAP = regex(r"\n(?:[ \t]*\n){2,}")
_GAPS = regex(r"[\s_-]+")
_DAY = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{8})(?!\d)"
_LIKE_ENTRY = regex(
    rf"^(?!###[ \t]+\[\d{{4}}-\d{{2}}-\d{{2}}\])(?:#{{1,6}}[ \t]*\[[ \t]*|#{{1,3}}[ \t]*){_DAY}", re.MULTILINE
)
_CONFLICT = regex(r"(.+)\.conflict-([0-9a-f]{8})(\.[^./]*)?\Z", re.DOTALL)
NEAR_ENTRY = "looks like an entry, but is read as text; write ### [YYYY-MM-DD] Title"


class Flaw(msgspec.Struct, frozen=True):
    """One fault of a page; `meant` is the correct value of `field`, "" if only a person can decide."""

    level: Level
    line: int
    what: str
    rule: str
    field: str = ""
    meant: str = ""


def prose_lines(text: str) -> list[str]:
    """Return the lines of a text without its code blocks."""
    every = sections.lines_of(text)
    code = sections.code_lines(every)
    return [line.rstrip("\r\n") for number, line in enumerate(every, 1) if number not in code]


def filled(text: str) -> str:
    """Return a page without comments, and without headings that have no text below them once these are gone."""
    every = sections.lines_of(text)
    code = sections.code_lines(every)
    left, removed, number = "", list[int](), 0
    while number < len(every):
        line = every[number]
        if number + 1 not in code and line.lstrip().startswith("<!--"):
            end = next((place for place in range(number, len(every)) if "-->" in every[place]), -1)
            if end >= 0:  # an unclosed comment is text
                line, number = every[end].partition("-->")[2].lstrip(" \t"), end
                removed.append(len(left))
        left, number = left + line, number + 1
    parts = sections.headings(left)
    ends = [part.start for part in parts[1:]] + [len(left)] if parts else []
    written = [part.start for part, end in zip(parts, ends, strict=True) if left[part.below : end].strip()]
    shown = [left[: parts[0].start] if parts else left]
    for part, end in zip(parts, ends, strict=True):
        has_text = any(part.start <= start < part.end for start in written)
        if has_text or not any(part.below <= place <= part.end for place in removed):
            shown.append(left[part.start : end])
    return _GAP.sub("\n\n", "".join(shown)).strip()


def abstract(text: str, most: int = 200) -> str:
    """Return the first paragraph of a text as one line of at most so many characters."""
    return shorten(paragraph(prose_lines(text[: most * 20])), most)


def paragraph(lines: list[str]) -> str:
    """Return the first paragraph that is not a heading, list, table, quote or HTML, as one line."""
    found, comment = list[str](), False
    for line in lines:
        if comment or line.lstrip().startswith("<!--"):
            comment = "-->" not in line
        elif not line.strip() or (_NO_PROSE.match(line) and not (found and line[:1] in " \t")):
            if found:
                break
        else:
            found.append(line)
    return " ".join(" ".join(found).split())


def shorten(text: str, most: int) -> str:
    """Cut a text after a whole sentence, or after a whole word if no sentence fits."""
    if len(text) <= most:
        return text
    ends = [found.end() for found in _SENTENCE.finditer(text, 0, most + 1) if found.end() <= most]
    return text[: ends[-1]] if ends else text[: most - 1].rpartition(" ")[0].rstrip(" ,;:") + "…"


class Budget(msgspec.Struct, frozen=True):
    """The size of a rule and its limits, 0 for none; `line` is the line of the comment, 0 when there is none."""

    lines: int
    tokens: int
    most_lines: int = 0
    most_tokens: int = 0
    line: int = 0

    @property
    def share(self) -> float:
        """The part of the budget that is used, 1.0 for all of it; 0 without a budget."""
        parts = ((self.lines, self.most_lines), (self.tokens, self.most_tokens))
        return max((used / most for used, most in parts if most), default=0.0)


def budget_of(text: str) -> Budget:
    """Measure the text of a rule."""
    start = markdown.body_start(text)
    found = _BUDGET.match(text, start)
    lines, tokens = len(sections.lines_of(text)), count_tokens(text)
    if not found:
        return Budget(lines, tokens)
    line = text.count("\n", 0, text.index("<!--", start)) + 1
    return Budget(lines, tokens, int(found[1]), int(found[2] or 0), line)


def budget_comment(lines: int) -> str:
    return f"<!-- budget: {lines} lines -->"


def without_budget(body: str) -> str:
    """Return the text below the front matter without the budget comment."""
    found = _BUDGET.match(body)
    return body[found.end() :].lstrip("\r\n") if found else body


def total_budget(budgets: Sequence[Budget], most_lines: int, most_tokens: int) -> Budget:
    """Add up the sizes of rules."""
    return Budget(sum(one.lines for one in budgets), sum(one.tokens for one in budgets), most_lines, most_tokens)


def budget_flaws(budget: Budget) -> list[Flaw]:
    """Return the flaws of one rule: no budget, or a budget that is exceeded or nearly used up."""
    if budget.line:
        return total_flaws(budget, "has", "its budget")
    what = f"declares no budget; write `{budget_comment(50)}` at its head, after any front matter"
    return [Flaw("error", 0, what, "budget")]


def total_flaws(budget: Budget, who: str = "all rules together have", whose: str = "the budget") -> list[Flaw]:
    """Return the flaws of all rules together."""
    found: list[Flaw] = []
    parts = ((budget.lines, budget.most_lines, "lines"), (budget.tokens, budget.most_tokens, "tokens"))
    for count, most, unit in parts:
        what = f"{who} {count} {unit}; {most} is {whose}"
        if most and count > most:
            advice = f"{count - most} too many: see `holdfast hot review`, then `holdfast hot demote`"
            found.append(Flaw("error", budget.line, f"{what}, {advice}", "budget"))
        elif most and count / most > _NEARLY_FULL:
            found.append(
                Flaw("warning", budget.line, f"{what}, {most - count} left: see `holdfast hot review`", "budget")
            )
    return found


def front_matter_flaws(kind: Kind, page: markdown.Page, head: str) -> Iterator[Flaw]:
    """Check the front matter of a page; `head` is its text up to the body."""
    if page.fault:
        rule = "conflict" if page.conflict else "front-matter"
        yield Flaw("error", page.fault_line, f"{page.fault}; fix it by hand", rule)
        return
    if missing := missing_fields(kind, page.fields):
        what = "no front matter; it should have" if page.front is None else "front matter lacks"
        step = "holdfast migrate front-matter" if kind.name in ("plan", "overview") else "add them by hand"
        yield Flaw("error", 1, f"{what} {', '.join(missing)}; next: {step}", "front-matter")
    fields = {name: page.fields[name] for name in (*kind.choices, *kind.dates) if not _blank(page.fields.get(name))}
    for name, value in fields.items():
        if choices := kind.choices.get(name):
            meant, what, rule = choice(value, choices), f"it can be {', '.join(choices)}", "status"
        else:
            meant, what, rule = _day(value), "a date is written YYYY-MM-DD", "date"
        if meant != value:
            line = markdown.line_of(head, name)
            yield Flaw("error", line, f"{name} is {str(value)[:80]!r}; {what}", rule, name, meant)
    created, updated = (_day(fields.get(name))[:10] for name in ("created", "updated"))
    if created and updated and updated < created:
        what = f"updated {updated} is before created {created}"
        yield Flaw("warning", markdown.line_of(head, "updated"), what, "date")


def missing_fields(kind: Kind, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields that the front matter of this kind should have, and that are missing or blank."""
    return tuple(name for name in kind.front if _blank(fields.get(name)))


def entry_flaws(page: markdown.Page, records: Iterable[Record]) -> Iterator[Flaw]:
    """Check the dated entries of a page, and headings that look like an entry but are not read as one."""
    for record in records:
        if not record.time:
            what = f"[{record.fields['date']}] is not a date"
            yield Flaw("error", record.line, what, "date")
        if sections.OTHER_VERSION.search(record.title) and not record.hidden:
            what = "a merge kept two versions of this entry: combine them, then remove or hide the other"
            yield Flaw("warning", record.line, what, "conflict")
        absent = [name for name, value in (("title", record.title), ("text", record.text)) if not value.strip()]
        if absent:
            yield Flaw("warning", record.line, f"an entry without {' and '.join(absent)}", "entry")
    for line in near_entries(page.body):
        yield Flaw("error", line + page.body_line - 1, NEAR_ENTRY, "entry")


def near_entries(body: str) -> Iterator[int]:
    """Yield the lines, from 1, that look like the heading of an entry but are not one."""
    line, position, code = 1, 0, None
    for found in _LIKE_ENTRY.finditer(body):
        line += body.count("\n", position, found.start())
        position = found.start()
        code = sections.code_lines(sections.lines_of(body)) if code is None else code
        if line not in code:
            yield line


def choice(value: object, choices: tuple[str, ...]) -> str:
    """Return the choice that equals a value, ignoring case, spaces and hyphens; "" if there is none."""
    form = _GAPS.sub("", value).casefold() if isinstance(value, str) else ""
    return next((choice for choice in choices if choice == value or _GAPS.sub("", choice) == form), "")


def _day(value: object) -> str:
    """Return a date or time in ISO form, also a date that is written in another form; "" for anything else."""
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


def _blank(value: object) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value in ([], {})


# two versions of a page


def conflict_path(path: str, version: str) -> str:
    """Return the path under which a version is stored beside another one."""
    stem, ending = posixpath.splitext(path)
    return f"{stem}.conflict-{version[:8]}{ending}"


def conflict_of(path: str) -> tuple[str, str] | None:
    """Return the document that a conflict belongs to and the first digits of its version; None if it is no conflict."""
    found = _CONFLICT.fullmatch(path)
    return (found[1] + (found[3] or ""), found[2]) if found else None


def entries(data: bytes) -> list[sections.Section]:
    """Return the dated entries in the bytes of a page."""
    text = data.decode("utf-8", "surrogateescape")
    return sections.parse(text[markdown.body_start(text) :])


def merge(source: bytes, target: bytes, version: str, without: Container[str] = ()) -> bytes | None:
    """Return the target page with the entries of the source that it lacks, or None when they cannot be merged.

    Of two entries with the same heading both are kept; that of the source is then marked with the version of its page.
    Entries whose anchors are in `without` are left out.
    """
    given, page = (data.decode("utf-8", "surrogateescape") for data in (source, target))
    if markdown.conflict_line(given) or markdown.conflict_line(page):
        return None
    mark = sections.other_version("", version)
    start, there = markdown.body_start(page), entries(target)
    body, before = page[start:], [one.source.rstrip() for one in there]
    known = {*before, *(one.text for one in there if one.title.endswith(mark))}
    headings = {(one.date, one.title) for one in there}
    try:
        for one in entries(source):
            if one.source.rstrip() in known or one.anchor in without:
                continue
            title = one.title
            if (one.date, title) in headings:
                if one.text in known:
                    continue
                title = sections.other_version(title, version)
            body = sections.add(body, one.rendered(title=title))
    except Invalid:
        return None
    if [one.source.rstrip() for one in sections.parse(body)[: len(there)]] != before:
        return None
    return (page[:start] + body).encode("utf-8", "surrogateescape")
