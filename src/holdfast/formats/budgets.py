"""What a rule may cost: `<!-- budget: N lines -->` or `<!-- budget: N lines, M tokens -->` at the head of its file.

The comment is the first thing in the file, or the first thing after the front matter. A budget counts the whole file,
front matter included: that is what every conversation loads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from holdfast.formats import markdown, sections
from holdfast.model.tokens import count_tokens

NEARLY = 0.9
"""Above this share of a budget it is time to review."""
_COMMENT = re.compile(r"\s*<!--[ \t]*budget:[ \t]*(\d{1,6})[ \t]*lines?(?:,[ \t]*(\d{1,7})[ \t]*tokens?)?[ \t]*-->")


class Budget(msgspec.Struct, frozen=True):
    """What a rule costs, and what it may; 0 is no limit. `line` is where the comment stands, 0 when there is none."""

    lines: int
    tokens: int
    most_lines: int = 0
    most_tokens: int = 0
    line: int = 0

    @property
    def share(self) -> float:
        """How much of its budget it uses, 1.0 being all; 0 without one."""
        parts = ((self.lines, self.most_lines), (self.tokens, self.most_tokens))
        return max((used / most for used, most in parts if most), default=0.0)


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with a budget, and what to do; `line` is where it is declared, 0 when nowhere."""

    level: Literal["error", "warning"]
    what: str
    line: int = 0


def read(text: str) -> Budget:
    """Measure a rule's text."""
    start = markdown.body_start(text)
    found = _COMMENT.match(text, start)
    lines, tokens = len(sections.lines_of(text)), count_tokens(text)
    if not found:
        return Budget(lines, tokens)
    line = text.count("\n", 0, text.index("<!--", start)) + 1
    return Budget(lines, tokens, int(found[1]), int(found[2] or 0), line)


def comment(lines: int) -> str:
    """Write the comment that declares a budget."""
    return f"<!-- budget: {lines} lines -->"


def without_comment(body: str) -> str:
    """Return what stands below the front matter without the comment that declares a budget."""
    found = _COMMENT.match(body)
    return body[found.end() :].lstrip("\r\n") if found else body


def faults(budget: Budget) -> list[Fault]:
    """Say what is wrong with one rule: no budget declared, or more used than is declared, or nearly."""
    if not budget.line:
        return [Fault("error", f"declares no budget; write `{comment(50)}` at its head, after any front matter")]
    return list(_faults("has", "its budget", budget, budget))


def total_faults(budgets: Iterable[Budget], most_lines: int, most_tokens: int) -> list[Fault]:
    """Say what is wrong with all rules together, measured against the budget of hot memory."""
    return list(_faults("all rules together have", "the budget", total(budgets), Budget(0, 0, most_lines, most_tokens)))


def total(budgets: Iterable[Budget]) -> Budget:
    """Add up what rules cost."""
    every = list(budgets)
    return Budget(sum(one.lines for one in every), sum(one.tokens for one in every))


def _faults(who: str, whose: str, used: Budget, allowed: Budget) -> Iterator[Fault]:
    parts = ((used.lines, allowed.most_lines, "lines"), (used.tokens, allowed.most_tokens, "tokens"))
    for count, most, unit in parts:
        if not most or count / most <= NEARLY:
            continue
        said = f"{who} {count} {unit}; {most} is {whose}"
        if count > most:
            advice = f"{count - most} too many: see `holdfast hot review`, then `holdfast hot demote`"
            yield Fault("error", f"{said}, {advice}", allowed.line)
        else:
            yield Fault("warning", f"{said}, {most - count} left: see `holdfast hot review`", allowed.line)
