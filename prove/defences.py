"""Defences that can be taken out of a worker, to see that a campaign notices: each is named, and what it is is said.

`scripts/prove --defences` runs, for each of them, the campaign that should lose something without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from prove import hostile_defences
from prove.harness import WITHOUT


@dataclass(frozen=True)
class Defence:
    what: str
    """What Holdfast does, so that nothing is lost."""
    campaign: str
    """The module that must notice when it is not done."""
    remove: Callable[[], None]


DEFENCES: dict[str, Defence] = {}
DEFENCES |= {name: Defence(*rest) for name, rest in hostile_defences.TAKEN.items()}


def take_out() -> None:
    """Take the defence out that the environment names, if any."""
    if name := os.environ.get(WITHOUT, ""):
        DEFENCES[name].remove()
