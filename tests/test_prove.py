"""The fault campaign in its small size: `scripts/prove` is the whole of it."""

from __future__ import annotations

import importlib
import pathlib

import pytest
from prove.__main__ import CAMPAIGNS
from prove.harness import Run

SEED = 20_260_101


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_is_lost(name: str, tmp_path: pathlib.Path) -> None:
    rows = list(importlib.import_module(f"prove.{name}").campaign(Run(True, SEED, str(tmp_path))))
    skipped = [f"{row.fault}: {row.skipped}" for row in rows if row.skipped]
    made = [row for row in rows if not row.skipped]
    for row in made:
        assert row.injected, f"{row.fault}: the fault was never made"
        assert not row.lost, f"{row.fault}: {row.problems}"
        assert not row.problems, f"{row.fault}: {row.problems}"
    if skipped and not made:
        pytest.skip("; ".join(skipped))
