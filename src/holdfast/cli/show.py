"""Output of the commands: tables on a terminal, JSON for programs, progress bars for slow work."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.globals import resolve_color_default

if TYPE_CHECKING:
    from holdfast.core import Source
    from holdfast.model.records import Receipt, Record
    from holdfast.recall.answers import Hit
    from holdfast.storage.results import Tied


_NARROW, _GAP = 8, 2
"""The least width of a column that is wider, and the space between columns."""


def asked_for_json() -> bool:
    return bool(click.get_current_context().meta["holdfast.json"])


def wants_json() -> bool:
    """Return whether to print JSON: with --json, and in a pipe without --plain."""
    return asked_for_json() or not (sys.stdout.isatty() or click.get_current_context().meta["holdfast.plain"])


def json_and_exit(value: Any, code: int = 0) -> None:
    """End the command here if JSON is wanted: print a value, and exit."""
    if wants_json():
        as_json(value)
        click.get_current_context().exit(code)


def as_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode("utf-8"))


def printable(text: str) -> str:
    """Replace control characters, so that stored text cannot control the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text.replace("\r\n", "\n"))


def warnings(found: Sequence[object], most: int = 1000, all_of_them: str = "--json lists them all") -> None:
    """Print warnings to standard error; above `most`, the number of the others."""
    more = [f"… and {len(found) - most} more; {all_of_them}."] if len(found) > most else []
    for warning in (*found[:most], *more):
        click.secho(printable(str(warning)), fg="yellow", err=True)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, whole: Collection[str] = ("id",), nothing: str = "",
    most: int = 0,
) -> None:  # fmt: skip
    """Print a table of at most so many rows, or the sentence `nothing` if it has none.

    Empty columns are left out. The others wrap, except for those in `whole`, so that these can be copied.
    """
    if nothing and not rows:
        click.echo(nothing)
        return
    left_out, rows = (len(rows) - most, rows[:most]) if 0 < most < len(rows) else (0, rows)
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    shown, total = list[list[Text]](), -_GAP
    for number, name in enumerate(columns):
        texts = [printable(str(row[number])) for row in rows]
        if number and not any(texts):
            continue
        size = max(cell_len(line) for text in (name, *texts) for line in text.split("\n"))
        size = size if name in whole else min(size, max(len(name), _NARROW))
        grid.add_column(name, overflow="fold", no_wrap=name in whole, min_width=size)
        shown.append([Text(text) for text in texts])
        total += size + _GAP
    for cells in zip(*shown, strict=True):
        grid.add_row(*cells)
    console = Console(color_system=None if resolve_color_default() is False else "auto")
    console.width = max(console.width, total)  # a line that is too long is wrapped by the terminal
    console.print(grid)
    if left_out:
        click.echo(f"… and {left_out} more; --json lists them all.")


def listing(
    found: Collection[object], nothing: str, columns: Sequence[str], rows: Sequence[Sequence[object]], **layout: Any
) -> None:
    """Print a result: as JSON, as a table, or as the sentence `nothing` if it is empty."""
    json_and_exit(found)
    table(columns, rows, nothing=nothing, **layout)


def reply(value: Mapping[str, Any], nothing: str = "Done.") -> None:
    """Print a tool's reply: its text, else its data as a table; its warnings to standard error."""
    data = value.get("data")
    if "text" in value:
        click.echo(printable(str(value["text"])))
    elif isinstance(data, list):
        columns = list(dict.fromkeys(name for item in data for name in item))
        table(columns, [[_lines(item.get(name)) for name in columns] for item in data], nothing="None yet.")
    elif isinstance(data, dict) and data.keys() == {"workspace", "where"}:
        click.echo(printable(f"Done in {data['workspace']}: {data['where']}"))
    elif isinstance(data, dict):
        table(("field", "value"), [(name, text) for name, inner in data.items() if (text := _lines(inner))])
    else:
        click.echo(nothing if data is None else printable(_lines(data)))
    warnings([each for each in value.get("warnings", ()) if str(each) not in str(value.get("text", ""))])


def receipt(made: Receipt, next_step: str = "") -> None:
    if wants_json():  # a command may print several
        as_json(made)
        return
    where = f" in {made.path}" if made.path not in made.id else ""
    click.echo(printable(f"{made.status}: {made.id}{where}"))
    if next_step:
        click.echo(next_step)


def lists(value: Mapping[str, Any], columns: Mapping[str, Sequence[str]]) -> None:
    """Print lists of a reply as tables with these fields; its warnings to standard error."""
    for name, fields in columns.items():
        if len(columns) > 1:
            click.secho(name, bold=True)
        items = value.get(name) or ()
        rows = [item | {"id": item.get("_meta", {}).get("document_id", item.get("id"))} for item in items]
        table(fields, [[_flat(row.get(field)) for field in fields] for row in rows], nothing="None.")
    warnings(value.get("warnings", ()))


def _lines(value: Any) -> str:
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


def hit(found: Hit, source: Source, *, full: bool = False) -> None:
    import shutil
    import textwrap

    from holdfast.model.records import label

    record = found.record
    parts = (record.kind, label(record), found.age, record.scope.path, ", ".join(record.tags), found.store, str(source))
    width = max(40, min(shutil.get_terminal_size().columns, 120)) - 4
    text = printable(record.text if full else " ".join(found.snippet.split()))
    lines = textwrap.wrap(text, width)[:3] if sys.stdout.isatty() and not full else text.splitlines()
    _record(record, found.snippet, " · ".join(part for part in parts if part), lines, found.store)


def tied(found: Tied) -> None:
    _record(found.record, found.record.text, f"{found.record.kind} · {', '.join(found.how)}")


def _record(record: Record, text: str, about: str, lines: Sequence[str] = (), store: str = "") -> None:
    title = record.title or " ".join(text.split())[:60]
    click.echo(click.style(printable(title), bold=True) + click.style(f"  {printable(about)}", dim=True))
    for line in lines:
        click.echo(f"    {line}" if sys.stdout.isatty() else f"> {line}")
    name = record.id if record.path in record.id else record.where
    click.secho(f"    {store}{':' if store else ''}{name}" + ("" if sys.stdout.isatty() else "\n"), fg="cyan")


@contextlib.contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give a function that moves a progress bar; None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
