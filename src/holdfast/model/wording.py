"""How numbers are said in sentences for people and models."""

from __future__ import annotations


def amount(number: int, one: str, many: str = "") -> str:
    """Return a number with what it counts: `1 token`, `2,000 tokens`; `many` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
