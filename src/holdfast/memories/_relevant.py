"""What a prompt gets of the memories: a few lines of each, within one budget of tokens.

Each part has an equal share first, so that none starves; what one leaves over goes to the others. A line that does not
fit is passed over for shorter ones, unless its part would have nothing else: then it is cut. The summary gets its own
share and whatever is left, the sentences that tell most if not all of it fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.formats import summaries
from holdfast.formats.summaries import Entry, Gist
from holdfast.model.tokens import count_tokens

BEFORE = "What happened before"
"""The title of the summary; it stands where the offers have it."""
_LEAST = 5
"""Tokens below which the beginning of a line says nothing."""


class _Part(msgspec.Struct):
    """One part of the prompt: its lines, and those of them that have found room, by their place."""

    title: str
    lines: Sequence[str]
    kept: dict[int, str] = {}

    @property
    def cost(self) -> int:
        return sum(map(_cost, (f"## {self.title}\n", *self.kept.values()))) if self.kept else 0

    def take(self, room: int) -> None:
        """Keep the lines that fit into so many tokens, title included."""
        for place, line in enumerate(self.lines):
            made = f"- {line}"
            if place not in self.kept and (self.cost or _cost(f"## {self.title}\n")) + _cost(made) <= room:
                self.kept[place] = made

    def cut(self, room: int) -> None:
        """Keep the beginning of the first line."""
        made = summaries.head(f"- {self.lines[0]}", room - _cost(f"## {self.title}\n") - 1)
        if count_tokens(made) >= _LEAST:
            self.kept[0] = made

    @property
    def text(self) -> str:
        return "\n".join((f"## {self.title}", *(line for _, line in sorted(self.kept.items()))))


def text(offers: Mapping[str, Sequence[str]], gist: Gist, budget: int) -> str:
    """Return what fits of these lines, each part under its title, in at most so many tokens."""
    summary = _told(gist)
    parts = [_Part(title, lines) for title, lines in offers.items() if lines]
    share = budget // max(1, len(parts) + bool(gist.text))
    for part in parts:
        part.take(share)
    held = min(summary.cost, share)
    for part in parts:
        empty = sum(1 for other in parts if not other.kept and other is not part)
        part.take(room := budget - held - share * empty - sum(other.cost for other in parts if other is not part))
        if not part.kept:
            part.cut(min(room, share))
    room = budget - sum(part.cost for part in parts)
    if summary.cost > room:
        summary = _shortened(gist, room)
    made = {part.title: part for part in (*parts, summary) if part.kept}
    return "\n\n".join(made[title].text for title in offers if title in made)


def _told(gist: Gist) -> _Part:
    """Return all of a summary."""
    return _Part(BEFORE, (), {place: f"- {line}" for place, line in enumerate(gist.text.splitlines())})


def _shortened(gist: Gist, room: int) -> _Part:
    """Return as much of a summary as fits into so many tokens, title included."""
    said = [Entry(str(place), day, text, single=True) for place, (day, text) in enumerate(gist.said)]
    tokens = room - _cost(f"## {BEFORE}\n")
    while (made := summaries.summarise(said, tokens, "earlier sentences")).said:
        part = _told(made)
        if part.cost <= room:
            return part
        tokens -= part.cost - room
    return _Part(BEFORE, ())


def _cost(text: str) -> int:
    """Return what a line costs, its end included."""
    return count_tokens(f"{text}\n")
