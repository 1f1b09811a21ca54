"""What two memories have of each other: for each document, which version of ours they have, and we of theirs.

A memory has a version of the other when it holds the same text, when its own was made from it, or when it holds it
under a name of its own beside its text. It is kept in the memory at hand, one log for every other memory, and never
moves itself. What is not in it was never seen by the other side, as far as anybody knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from holdfast.formats import jsonl
from holdfast.model.names import short_hash

if TYPE_CHECKING:
    from holdfast.core import Core

FOLDER = "moves"
_AT_ONCE = 200
_LOGIN = re.compile(r"(?<=//)[^@/]*@")


class Pair(msgspec.Struct, frozen=True, array_like=True):
    """Of one document: the version from here that the other memory has, and the one from there that this one has."""

    here: str
    there: str = ""

    @property
    def turned(self) -> Pair:
        return Pair(self.there, self.here)


def place(location: str) -> str:
    """Return where a memory is, whoever asks for it."""
    return _LOGIN.sub("", location)


class Agreements:
    """What this memory and another one have of each other."""

    def __init__(self, here: Core, other: str) -> None:
        self._here = here
        self._other = place(other)
        self._log = f"{here.places.memory}/{FOLDER}/{short_hash(self._other)}.jsonl"

    def read(self) -> dict[str, Pair]:
        """Return what is known of each document, by its path."""
        found: dict[str, Pair] = {}
        if self._here.vault.stat(self._log) is None:
            return found
        for line in self._here.vault.scan(self._log):
            objects = jsonl.parse(line.data)
            for value in objects if isinstance(objects, list) else ():
                agreed = value.get("agreed")
                for path, pair in agreed.items() if isinstance(agreed, dict) else ():
                    if isinstance(pair, list) and len(pair) == 2:
                        found[path] = Pair(*map(str, pair))
        return found

    def note(self, agreed: Mapping[str, Pair]) -> None:
        """Note what both sides have of each other now, durably."""
        told = list(agreed.items())
        for start in range(0, len(told), _AT_ONCE):
            part = {path: [pair.here, pair.there] for path, pair in told[start : start + _AT_ONCE]}
            self._here.add(self._log, [{"with": self._other, "agreed": part}])
