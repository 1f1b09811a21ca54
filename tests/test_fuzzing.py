"""Parsers and any bytes: the targets of `prove/fuzz.py`, with inputs that hypothesis makes from the corpus."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prove.fuzz import TARGETS, seeds

PIECES = (
    b"---\n", b"\r\n", b"### [2026-01-02] x\n", b"```\n", b'"', b"\\", b"\0", b"\xef\xbb\xbf", b"\xff", b"{", b"}", b"[", b": ",
    b"# ", b"- ", b"'", b"\xe2\x80\xa8", b"\x85", b"|\n  ", b'"id":', b"1e999", b"<<<<<<< a\n", b"**Tags:** ", b"\t", b"\x0c",
)  # fmt: skip


def inputs(target: str) -> st.SearchStrategy[bytes]:
    """Bytes, inputs of the corpus with a part replaced, and any sequence of pieces that mean something."""
    corpus = st.sampled_from(seeds(target))
    piece = st.sampled_from(PIECES) | st.binary(max_size=8)
    cut = st.integers(0, 400)
    changed = st.builds(
        lambda one, at, new, gone: one[:at] + new + one[at + gone :], corpus, cut, piece, st.integers(0, 9)
    )
    spliced = st.builds(lambda one, two, at, other: one[:at] + two[other:], corpus, corpus, cut, cut)
    return st.one_of(changed, spliced, st.lists(piece, max_size=12).map(b"".join), st.binary(max_size=60))


@pytest.mark.parametrize("target", TARGETS)
def test_every_input_of_the_corpus_is_handled(target: str) -> None:
    assert seeds(target)
    for data in seeds(target):
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_a_parser(target: str) -> None:
    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=inputs(target))
    def run(data: bytes) -> None:
        TARGETS[target](data)

    run()
