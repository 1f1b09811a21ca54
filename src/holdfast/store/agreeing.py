"""What two memories had in common when something last moved between them: the versions of each document, on both sides.

It is kept in the memory at hand, one log for every other memory, and never moves itself. What is not in it was never
the same on both sides, as far as anybody knows. An agreement of two different versions says that one side has seen the
other's and goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.formats import logs
from holdfast.names import short_hash

if TYPE_CHECKING:
    from holdfast.store.memory import Memory

FOLDER = "moves"
_AT_ONCE = 200
_LOGIN = re.compile(r"(?<=//)[^@/]*@")


class Pair(msgspec.Struct, frozen=True, array_like=True):
    """The versions of one document: here, and in the other memory."""

    here: str
    there: str

    @property
    def turned(self) -> Pair:
        return Pair(self.there, self.here)


class Agreements:
    """What this memory and another one agreed on."""

    def __init__(self, here: Memory, other: str) -> None:
        self._here = here
        self._other = _LOGIN.sub("", other)  # whoever asks for it, it is the same memory
        self._log = f"{here.places.memory}/{FOLDER}/{short_hash(self._other)}.jsonl"

    def read(self) -> dict[str, Pair]:
        """Return the last agreement about each document, by its path."""
        found: dict[str, Pair] = {}
        if self._here.vault.stat(self._log) is None:
            return found
        for line in self._here.vault.scan(self._log):
            objects = logs.parse(line.data)
            for value in objects if isinstance(objects, list) else ():
                agreed = value.get("agreed")
                for path, pair in agreed.items() if isinstance(agreed, dict) else ():
                    if isinstance(pair, list) and len(pair) == 2:
                        found[path] = Pair(*map(str, pair))
        return found

    def note(self, agreed: Mapping[str, Pair]) -> None:
        """Note what both sides have now, durably."""
        told = list(agreed.items())
        for start in range(0, len(told), _AT_ONCE):
            part = {path: [pair.here, pair.there] for path, pair in told[start : start + _AT_ONCE]}
            self._here.add(self._log, [{"with": self._other, "agreed": part}])
