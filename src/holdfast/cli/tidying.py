"""The commands that keep the tree tidy: `lint`, `migrate front-matter`, `learnings archive`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli import show
from holdfast.cli.common import common, open_root

if TYPE_CHECKING:
    from holdfast.memories.front_matter import Change, Result
    from holdfast.memories.learnings import Moved
    from holdfast.memories.lint import Report

_COLOURS = {"error": "red", "warning": "yellow", "fixed": "green"}


@click.command()
@click.argument("scope", required=False)
@click.option("--fix", is_flag=True, help="Mend what can only mean one thing: spellings of a status, forms of a date.")
@click.option("--strict", is_flag=True, help="Let warnings count as errors.")
@common
def lint(scope: str | None, fix: bool, strict: bool, root: str | None, as_json: bool) -> None:
    """Name what is wrong in the Markdown files of SCOPE (default: all), with file and line.

    Exit code 1 when errors are left.
    """
    from holdfast.memories import lint

    with open_root(root) as memory, show.progress("reading") as progress:
        report = lint.lint(memory, scope, fix, progress)
    if show.wants_json(as_json):
        show.as_json(
            {"files": report.files, "errors": report.errors, "warnings": report.warnings, "fixed": report.fixed,
             "faults": report.faults}
        )  # fmt: skip
    else:
        _report(report, tried=fix)
    if report.errors or (strict and report.warnings):
        sys.exit(1)


def _report(report: Report, *, tried: bool) -> None:
    for fault in report.faults:
        state = "fixed" if fault.fixed else fault.level
        where = click.style(show.printable(f"{fault.path}:{fault.line}:"), bold=True)
        click.echo(f"{where} {click.style(state, fg=_COLOURS[state])}: {show.printable(fault.what)} [{fault.rule}]")
    fixed = f", {report.fixed} fixed" if report.fixed else ""
    found = f"{_count(report.errors, 'error')}, {_count(report.warnings, 'warning')}{fixed}"
    click.echo(f"{_count(report.files, 'file')}: {found if report.faults else 'nothing is wrong'}.")
    if fixable := sum(fault.fixable for fault in report.faults):
        click.echo(f"{fixable} could not be mended." if tried else f"{fixable} can be mended: holdfast lint --fix")


@click.group()
def migrate() -> None:
    """Bring older files up to the standard."""


@migrate.command("front-matter")
@click.argument("scope", required=False)
@click.option("--apply", "really", is_flag=True, help="Make the changes; without it they are only shown.")
@click.option("--status", default="", help="Status of plans that do not show theirs; default: new.")
@common
def front_matter(scope: str | None, really: bool, status: str, root: str | None, as_json: bool) -> None:
    """Add what plans and overviews of SCOPE (default: all) lack, and fold ABSTRACT.md into OVERVIEW.md.

    Exit code 1 when a file could not be changed.
    """
    from holdfast.memories import front_matter

    results: list[Result] = []
    with open_root(root) as memory:
        changes = front_matter.plan_changes(memory, scope, status)
        if really:
            with show.progress("writing") as progress:
                results = front_matter.apply(memory, changes, progress)
    if show.wants_json(as_json):
        show.as_json({"applied": really, "changes": changes, "results": results})
    else:
        for change in changes:
            _change(change)
        if not changes:
            click.echo("Nothing is missing.")
        elif really:
            _results(results)
        else:
            click.echo(f"{_count(len(changes), 'file')}. Nothing was changed; add --apply.")
    if any(result.status == "skipped" for result in results):
        sys.exit(1)


def _change(change: Change) -> None:
    from holdfast.formats.markdown import scalar

    click.secho(show.printable(change.path), bold=True)
    if change.fault:
        click.secho(f"  skipped: {show.printable(change.fault)}", fg="yellow")
    for name, value in change.fields.items():
        guess = click.style("  (a guess)", dim=True) if name in change.guessed else ""
        click.echo(click.style(show.printable(f"  + {name}: {scalar(value)}"), fg="green") + guess)
    for line in (["## Abstract", "", *change.section.splitlines()]) if change.section else ():
        click.secho(show.printable(f"  + {line}"), fg="green")
    if change.folds:
        click.secho(show.printable(f"  - {change.folds}"), fg="red")


def _results(results: list[Result]) -> None:
    skipped = [result for result in results if result.status == "skipped"]
    for result in skipped:
        click.secho(show.printable(f"{result.path}: {result.why}"), fg="yellow", err=True)
    click.echo(f"{_count(len(results) - len(skipped), 'file')} changed, {len(skipped)} skipped.")


@click.command()
@click.argument("scope", required=False)
@click.option("--keep", type=click.IntRange(0), help="Entries that stay in each file; default: learnings.entries.")
@click.option("--dry-run", is_flag=True, help="Only show what would move.")
@common
def archive(scope: str | None, keep: int | None, dry_run: bool, root: str | None, as_json: bool) -> None:
    """Move the oldest decisions and lessons of SCOPE (default: all) to files by year, like decisions-2024.md."""
    from holdfast.memories import learnings

    with open_root(root) as memory:
        moved = learnings.archive(memory, scope, keep, dry_run)
    if show.wants_json(as_json):
        show.as_json({"dry_run": dry_run, "moved": moved})
    else:
        _moved(moved, dry_run)
    if any(one.fault for one in moved):
        sys.exit(1)


def _moved(moved: list[Moved], dry_run: bool) -> None:
    for one in moved:
        if one.fault:
            click.secho(show.printable(f"{one.path}: {one.fault}"), fg="yellow", err=True)
            continue
        click.secho(show.printable(f"{one.path} → {one.archive}"), bold=True)
        for entry in one.entries:
            click.echo(show.printable(f"  {entry}"))
    count = sum(len(one.entries) for one in moved)
    if not moved:
        click.echo("No file has more entries than should stay.")
    elif dry_run:
        click.echo(f"{_count(count, 'entry', 'entries')} would move. Nothing was changed.")
    else:
        click.echo(f"{_count(count, 'entry', 'entries')} moved.")


def _count(number: int, noun: str, many: str = "") -> str:
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"
