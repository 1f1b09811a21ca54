"""`holdfast bench`: the benchmark of recall. Its code is in `bench/` of a clone, beside the other benchmarks."""

from __future__ import annotations

import importlib
import os
import sys

import click

from holdfast.cli.main import Commands
from holdfast.errors import Unavailable

_CLONE = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


class _Benchmarks(Commands):
    """A group whose command is in a clone of the repository; the installed package alone does not have it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["recall"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name != "recall":
            return None
        if not os.path.isfile(os.path.join(_CLONE, "bench", "quality.py")):
            raise Unavailable("The benchmarks are not part of the package.", "Run it in a clone of the repository.")
        if _CLONE not in sys.path:
            sys.path.insert(0, _CLONE)
        found: click.Command = importlib.import_module("bench.quality").recall
        return found


@click.group(cls=_Benchmarks)
def bench() -> None:
    """Measure how good recall is."""
