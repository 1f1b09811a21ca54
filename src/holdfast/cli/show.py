"""What the commands print: tables for people, JSON for programs, progress for who waits."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import msgspec


def wants_json(asked: bool) -> bool:
    return asked or not sys.stdout.isatty()


def as_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8"))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; the last column takes what room is left."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for number, name in enumerate(columns):
        grid.add_column(
            name, overflow="fold" if number == len(columns) - 1 else "ellipsis", no_wrap=number < len(columns) - 1
        )
    for row in rows:
        grid.add_row(*(Text(printable(str(cell))) for cell in row))
    Console().print(grid)


def printable(text: str) -> str:
    """Keep stored text from steering the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)


@contextlib.contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give a function that moves a bar, if somebody is there to see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
