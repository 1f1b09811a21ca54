"""The embedder `semantic`: a table of word vectors (WordLlama, 256 numbers for each of 32,000 word pieces).

A text is the mean of its pieces. In a question, each word weighs by how much it tells in this memory. Table and
tokenizer are read from the files of the installed package, whose own code is not run: it would try to download.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy
from tokenizers import Tokenizer

from holdfast.recall.embedders import folder_of

if TYPE_CHECKING:
    from holdfast.recall.embedders import Floats

_TABLE = ("weights", "l2_supercat_256.safetensors")
_TOKENIZER = ("tokenizers", "l2_supercat_tokenizer_config.json")


class Static:
    name = "wordllama"
    at_once = 100_000
    near = 0.35

    def __init__(self, folder: str, version: str) -> None:
        self.version = version
        self._table = _table(os.path.join(folder, *_TABLE))
        self.size = int(self._table.shape[1])
        self._tokenizer = Tokenizer.from_file(os.path.join(folder, *_TOKENIZER))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def texts(self, texts: Sequence[str]) -> Floats:
        found = numpy.zeros((len(texts), self.size), numpy.float32)
        for number, text in enumerate(texts):  # each on its own: sums of floats depend on their order
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


def load() -> Static:
    return Static(folder_of("wordllama"), importlib.metadata.version("wordllama"))


def _table(path: str) -> numpy.memmap[tuple[int, int], numpy.dtype[numpy.float16]]:
    """Map the one table of a safetensors file: its length, a header in JSON, the numbers."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    entry = next(value for name, value in header.items() if name != "__metadata__")
    if entry["dtype"] != "F16":
        raise ImportError(f"{path} has numbers of another kind: {entry['dtype']}")
    rows, columns = entry["shape"]
    start = 8 + size + entry["data_offsets"][0]
    return numpy.memmap(path, numpy.float16, "r", start, (rows, columns))


def _to_length_one(vectors: Floats) -> Floats:
    lengths = numpy.sqrt((vectors * vectors).sum(1, keepdims=True))
    return numpy.asarray(vectors / numpy.maximum(lengths, 1e-9))
