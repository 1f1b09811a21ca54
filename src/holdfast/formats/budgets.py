"""What a rule may cost: `<!-- budget: N lines -->` or `<!-- budget: N lines, M tokens -->` at the head of its file.

The comment is the first thing in the file, or the first thing after the front matter. A budget counts the whole file,
front matter included: that is what every conversation loads.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.formats import markdown
from holdfast.tokens import count_tokens

NEARLY = 0.9
"""From this share of a budget on it is time to review."""
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


def read(text: str) -> Budget:
    """Measure a rule's text."""
    start = markdown.body_start(text)
    found = _COMMENT.match(text, start)
    lines, tokens = len(markdown.lines_of(text)), count_tokens(text)
    if not found:
        return Budget(lines, tokens)
    line = text.count("\n", 0, text.index("<!--", start)) + 1
    return Budget(lines, tokens, int(found[1]), int(found[2] or 0), line)


def comment(lines: int) -> str:
    """Write the comment that declares a budget."""
    return f"<!-- budget: {lines} lines -->"
