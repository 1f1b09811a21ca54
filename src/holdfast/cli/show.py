"""What the commands print: tables for people, JSON for programs, progress for who waits."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.globals import resolve_color_default

if TYPE_CHECKING:
    from holdfast.recall.answers import Hit
    from holdfast.storage.index import Tied


_GAP = 2
_LAST, _NARROW, _NARROWEST = 24, 8, 4
"""How wide the last column, and the others, should be at least; and how narrow they become before anything breaks."""


def wants_json(asked: bool) -> bool:
    return asked or not sys.stdout.isatty()


def as_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8"))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, whole: Collection[str] = ("id",),
    less: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print a table; the last column takes what room is left, and goes on in the next line.

    What is in the columns `whole` is never cut: a person copies it. A column without anything in it is left out, and so
    are those of `less`, one after the other, where there is no room.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    texts = [[printable(str(cell)) for cell in row] for row in rows]
    natural = {
        name: max(cell_len(line) for text in (name, *(row[number] for row in texts)) for line in text.split("\n"))
        for number, name in enumerate(columns)
        if number == 0 or any(row[number] for row in texts)
    }
    console = Console(color_system=None if resolve_color_default() is False else "auto")
    widths = _widths(natural, console.width, whole, less)
    grid = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for number, (name, width) in enumerate(widths.items(), 1):
        is_last = number == len(widths) and name not in whole
        grid.add_column(name, overflow="fold" if is_last else "ellipsis", no_wrap=not is_last, width=width)
    for row in texts:
        grid.add_row(*(Text(text) for name, text in zip(columns, row, strict=True) if name in widths))
    console.width = max(
        console.width, _total(widths)
    )  # the terminal breaks a line that holds more than it has room for
    console.print(grid)


def _widths(natural: dict[str, int], room: int, whole: Collection[str], less: Sequence[str]) -> dict[str, int]:
    """Return how wide each column is, of those that there is room for."""
    last = next(reversed(natural))
    least = {
        name: size if name in whole else min(size, _LAST if name == last else max(len(name), _NARROW))
        for name, size in natural.items()
    }
    for name in less:
        if _total(least) <= room:
            break
        least.pop(name, None)
    widths = {name: natural[name] for name in least}
    for floor in (_NARROW, _NARROWEST):
        while (over := _total(widths) - room) > 0:
            wide = max((name for name in widths if name not in whole), key=lambda name: widths[name], default="")
            if not wide or widths[wide] <= floor:
                break
            second = max((size for name, size in widths.items() if name not in (wide, *whole)), default=0)
            widths[wide] -= max(1, min(over, widths[wide] - max(second, floor)))
    return widths


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def reply(value: Mapping[str, Any], nothing: str = "Done.") -> None:
    """Print a tool's reply for a person: its text, else its data as a table; its warnings go to stderr."""
    data = value.get("data")
    if "text" in value:
        click.echo(printable(str(value["text"])))
    elif isinstance(data, list):
        items(data)
    elif isinstance(data, dict):
        table(("field", "value"), [(name, told) for name, inner in data.items() if (told := _lines(inner))])
    else:
        click.echo(nothing if data is None else printable(_lines(data)))
    warnings([told for told in value.get("warnings", ()) if str(told) not in str(value.get("text", ""))])


def lists(value: Mapping[str, Any], columns: Mapping[str, Sequence[str]]) -> None:
    """Print lists of a reply as tables, each with some of its fields, and its warnings to stderr."""
    for name, fields in columns.items():
        if len(columns) > 1:
            click.secho(name, bold=True)
        if value.get(name):
            table(fields, [[_flat(_field(item, field)) for field in fields] for item in value[name]])
        else:
            click.echo("None.")
    warnings(value.get("warnings", ()))


def warnings(told: Sequence[object]) -> None:
    """Print what could not be read, apart from the answer."""
    for warning in told:
        click.secho(printable(str(warning)), fg="yellow", err=True)


def _field(item: Mapping[str, Any], name: str) -> Any:
    """Return a field of an entry; its id is in what is told about it."""
    return item.get("_meta", {}).get("document_id", item.get("id")) if name == "id" else item.get(name)


def items(found: Sequence[Mapping[str, Any]]) -> None:
    """Print a list of equal objects."""
    if not found:
        click.echo("None yet.")
        return
    columns = list(dict.fromkeys(name for item in found for name in item))
    table(columns, [[_lines(item.get(name)) for name in columns] for item in found])


def _lines(value: Any) -> str:
    """Put a JSON value into lines that a person reads."""
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_flat(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return "\n".join(f"- {_flat(inner)}" for inner in value)
    return _flat(value)


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return " · ".join(_flat(inner) for inner in value.values() if inner not in ("", None, [], {}))
    if isinstance(value, list):
        return ", ".join(_flat(inner) for inner in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def hit(found: Hit) -> None:
    """Print a hit: what it is and how old, its text, and the id to get it by."""
    record = found.record
    parts = (record.kind, found.age, record.scope.path, ", ".join(record.tags), found.store)
    about = " · ".join(part for part in parts if part)
    title = record.title or " ".join(found.snippet.split())[:60]
    click.echo(click.style(printable(title), bold=True) + click.style(f"  {printable(about)}", dim=True))
    width = max(40, min(shutil.get_terminal_size().columns, 120)) - 4
    for line in textwrap.wrap(" ".join(printable(found.snippet).split()), width)[:3]:
        click.echo(f"    {line}")
    store = f"{found.store}:" if found.store else ""
    click.secho(f"    {store}{record.id if record.path in record.id else record.where}", fg="cyan")


def tied(found: Tied) -> None:
    """Print what has to do with something: what it is, how it is related, and the id to get it by."""
    record = found.record
    title = record.title or " ".join(record.text.split())[:60]
    about = f"{record.kind} · {', '.join(found.how)}"
    click.echo(click.style(printable(title), bold=True) + click.style(f"  {printable(about)}", dim=True))
    click.secho(f"    {record.id if record.path in record.id else record.where}", fg="cyan")


def printable(text: str) -> str:
    """Keep stored text from steering the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text.replace("\r\n", "\n"))


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
