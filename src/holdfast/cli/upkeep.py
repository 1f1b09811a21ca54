"""The commands that keep a memory in order: `lint`, `migrate`, `learnings archive`, and `hot`, the rules."""

from __future__ import annotations

import sys

import click

from holdfast.cli import show
from holdfast.cli.main import Commands, command, op_option, open_root
from holdfast.clients import rules
from holdfast.formats.markdown import scalar
from holdfast.memories.hot import Order
from holdfast.memories.lint import lint as lint_files
from holdfast.memories.upkeep import Result, apply, plan_changes
from holdfast.memories.upkeep import archive as archive_learnings
from holdfast.model.names import amount

_LINK = "Next: holdfast hot link, if clients have links to the rules."
_COLOURS = {"error": "red", "warning": "yellow", "fixed": "green"}


@command()
@click.argument("scope", required=False)
@click.option("--fix", is_flag=True, help="Fix what is unambiguous: status spellings, date formats.")
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
def lint(scope: str | None, fix: bool, strict: bool) -> None:
    """Check the Markdown files of SCOPE (default: all).

    The exit code is 1 if errors are left.
    """
    with open_root() as memory, show.progress("reading") as progress:
        report = lint_files(memory, scope, fix, progress)
    names = ("files", "errors", "warnings", "fixed", "faults")
    code = 1 if report.errors or (strict and report.warnings) else 0
    show.json_and_exit({name: getattr(report, name) for name in names}, code)
    for fault in report.faults:
        state = "fixed" if fault.fixed else fault.level
        where = click.style(show.printable(f"{fault.path}:{fault.line}:"), bold=True)
        click.echo(f"{where} {click.style(state, fg=_COLOURS[state])}: {show.printable(fault.what)} [{fault.rule}]")
    fixed = f", {report.fixed} fixed" if report.fixed else ""
    found = f"{amount(report.errors, 'error')}, {amount(report.warnings, 'warning')}{fixed}"
    click.echo(f"{amount(report.files, 'file')}: {found if report.faults else 'nothing is wrong'}.")
    if fixable := sum(fault.fixable for fault in report.faults):
        click.echo(f"{fixable} could not be fixed." if fix else f"{fixable} can be fixed: holdfast lint --fix")
    sys.exit(code)


@click.group(cls=Commands)
def migrate() -> None:
    """Update older files to the current format."""


@migrate.command("front-matter")
@click.argument("scope", required=False)
@click.option("--apply", "really", is_flag=True, help="Make the changes; without it they are only shown.")
@click.option("--status", default="", help="Status of plans that do not show theirs; default: new.")
def front_matter(scope: str | None, really: bool, status: str) -> None:
    """Add missing front matter to plans and overviews of SCOPE.

    Also moves ABSTRACT.md into OVERVIEW.md. The default is all scopes. The exit code is 1 if a file could not be
    changed.
    """
    results: list[Result] = []
    with open_root() as memory:
        changes = plan_changes(memory, scope, status)
        if really:
            with show.progress("writing") as progress:
                results = apply(memory, changes, progress)
    skipped = [result for result in results if result.status == "skipped"]
    show.json_and_exit({"applied": really, "changes": changes, "results": results}, code=1 if skipped else 0)
    for change in changes:
        click.secho(show.printable(change.path), bold=True)
        guessed = dict.fromkeys(change.guessed, "  (a guess)")
        abstract = ["## Abstract", "", *change.section.splitlines()] if change.section else []
        left = "left behind, OVERVIEW.md has another value"
        for color, lines in (
            ("yellow", [f"skipped: {change.fault}"] if change.fault else []),
            ("green", [f"+ {name}: {scalar(value)}{guessed.get(name, '')}" for name, value in change.fields.items()]),
            ("green", [f"+ {line}" for line in abstract]),
            ("red", [f"- {change.folds}"] if change.folds else []),
            ("yellow", [f"{left}: {name}: {scalar(value)}" for name, value in change.differs.items()]),
        ):
            for line in lines:
                click.secho(show.printable(f"  {line}"), fg=color)
    if not changes:
        click.echo("Nothing is missing.")
    elif really:
        show.warnings([f"{result.path}: {result.why}" for result in skipped])
        click.echo(f"{amount(len(results) - len(skipped), 'file')} changed, {len(skipped)} skipped.")
    else:
        click.echo(f"{amount(len(changes), 'file')}. Nothing was changed; add --apply.")
    if skipped:
        sys.exit(1)


@command()
@click.argument("scope", required=False)
@click.option("--keep", type=click.IntRange(0), help="Entries that stay in each file; default: learnings.entries.")
@click.option("--dry-run", is_flag=True, help="Only show what would move.")
def archive(scope: str | None, keep: int | None, dry_run: bool) -> None:
    """Move old decisions and lessons of SCOPE to files by year.

    The files are named like decisions-2024.md. The default is all scopes.
    """
    with open_root() as memory:
        moved = archive_learnings(memory, scope, keep, dry_run)
    code = 1 if any(one.fault for one in moved) else 0
    show.json_and_exit({"dry_run": dry_run, "moved": moved}, code)
    for one in moved:
        if one.fault:
            show.warnings([f"{one.path}: {one.fault}"])
            continue
        click.secho(show.printable(f"{one.path} → {one.archive}"), bold=True)
        for entry in one.entries:
            click.echo(show.printable(f"  {entry}"))
    count = amount(sum(len(one.entries) for one in moved), "entry", "entries")
    if not moved:
        click.echo("No file has more entries than should stay.")
    else:
        click.echo(f"{count} would move. Nothing was changed." if dry_run else f"{count} moved.")
    sys.exit(code)


@click.group(cls=Commands)
def hot() -> None:
    """Manage the rules that every conversation loads."""


@hot.command()
def check() -> None:
    """Check the rules against their budgets.

    The exit code is 1 if a rule is over its budget or has none.
    """
    with open_root() as memory:
        total, found = memory.hot.total(), memory.hot.check()
    failed = any(finding.level == "error" for finding in found)
    names = ("lines", "most_lines", "tokens", "most_tokens")
    numbers = {name: getattr(total, name) for name in names}
    show.json_and_exit({"ok": not failed, **numbers, "problems": found}, code=int(failed))
    lines, tokens = amount(total.most_lines, "line"), amount(total.most_tokens, "token")
    used = f"{total.lines} of {lines}, {total.tokens} of {tokens}"
    click.echo(f"{used}." if failed else f"{used}: within budget.")
    for one in found:
        where = f"{one.path}:{one.line}" if one.line else one.path
        click.secho(show.printable(f"{one.level}: {where} {one.what}"), fg=_COLOURS[one.level])
    sys.exit(int(failed))


@hot.command()
@click.option(
    "--by",
    type=click.Choice(["age", "size", "share"]),
    default="age",
    show_default=True,
    help="Oldest, largest, or largest share of the total budget first.",
)
def review(by: Order) -> None:
    """List the rules in the order in which to review them."""
    with open_root() as memory:
        found = memory.hot.review(by)
    rows = []
    for rule in found:
        lines, tokens = f"{rule.lines}/{rule.most_lines or '–'}", f"{rule.tokens}/{rule.most_tokens or '–'}"
        rows.append((rule.age, lines, tokens, f"{rule.share:.0%}", f"{rule.part:.0%}", rule.path))
    nothing = "There are no rules yet: holdfast init --template writes some to start from."
    show.listing(found, nothing, ("changed", "lines", "tokens", "of its own", "of all", "rule"), rows)


@hot.command()
@click.option("--into", default="", type=click.Path(), help="Folder of a project; default: the memory root.")
@click.option("--remove", is_flag=True, help="Remove the links and blocks again.")
def link(into: str, remove: bool) -> None:
    """Link rules and commands to Cursor, Codex and Claude Code.

    Tools that read AGENTS.md or CLAUDE.md get a block there. Nothing is overwritten.
    """
    with open_root() as memory:
        done = rules.unlink(memory, into) if remove else rules.link(memory, into)
    nothing = "There is nothing to take back." if remove else "There are no rules and no commands yet."
    rows = [(made.what, made.path, made.why) for made in done]
    show.listing(done, nothing, ("what", "path", "why"), rows, whole=("path",))


@hot.command()
@click.argument("id")
@click.option("--into", default="", metavar="RULE", help="Add it to this rule as a section; default: a new rule.")
@click.option("--budget", default=0, metavar="LINES", help="Budget of the new rule; default: some room to grow.")
@op_option
def promote(id: str, into: str, budget: int, op_id: str) -> None:
    """Copy the record ID into a rule, if the budgets allow it."""
    with open_root() as memory:
        show.receipt(memory.hot.promote(id, into, budget, op_id), _LINK)


@hot.command()
@click.argument("name")
@click.option("--scope", help="Scope of the note; default: the workspace default.")
@click.option("--heading", default="", help="Only this section of the rule.")
@op_option
def demote(name: str, scope: str | None, heading: str, op_id: str) -> None:
    """Turn the rule NAME into a note.

    If the record that it was promoted from still has the text, no note is made.
    """
    with open_root() as memory:
        show.receipt(memory.hot.demote(name, scope, heading, op_id), _LINK)
