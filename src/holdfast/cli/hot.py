"""The commands for hot memory: measure the rules, promote and demote text, and link the rules to clients."""

from __future__ import annotations

import sys

import click

from holdfast.cli import show
from holdfast.cli.main import Commands, op_option, open_root
from holdfast.clients import rules
from holdfast.memories.hot import Order
from holdfast.model.names import amount

_NEXT = "Next: holdfast hot link, if clients have links to the rules."


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
    if show.wants_json():
        names = ("lines", "most_lines", "tokens", "most_tokens")
        show.as_json({"ok": not failed, **{name: getattr(total, name) for name in names}, "problems": found})
    else:
        lines, tokens = amount(total.most_lines, "line"), amount(total.most_tokens, "token")
        used = f"{total.lines} of {lines}, {total.tokens} of {tokens}"
        click.echo(f"{used}." if failed else f"{used}: within budget.")
        for one in found:
            where = f"{one.path}:{one.line}" if one.line else one.path
            color = "red" if one.level == "error" else "yellow"
            click.secho(show.printable(f"{one.level}: {where} {one.what}"), fg=color)
    if failed:
        sys.exit(1)


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
        show.receipt(memory.hot.promote(id, into, budget, op_id), _NEXT)


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
        show.receipt(memory.hot.demote(name, scope, heading, op_id), _NEXT)
