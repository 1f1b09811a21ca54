"""The commands over hot memory: what the rules cost, which to look at, and getting text in, out and to clients."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli import show
from holdfast.cli.common import common, open_root
from holdfast.model.names import amount

if TYPE_CHECKING:
    from holdfast.memories.hot import Order
    from holdfast.model.records import Receipt

_op = click.option("--op-id", default="", help="Repeating a call with the same op id has no further effect.")


@click.group()
def hot() -> None:
    """The rules that every conversation loads, and their budgets."""


@hot.command()
@common
def check(root: str | None, as_json: bool) -> None:
    """Measure the rules against their budgets. Exits with 1 when one is over, or has none."""
    with open_root(root) as memory:
        total, found = memory.hot.total(), memory.hot.check()
    failed = any(finding.level == "error" for finding in found)
    if show.wants_json(as_json):
        show.as_json({"ok": not failed, "lines": total.lines, "most_lines": total.most_lines, "tokens": total.tokens,
                      "most_tokens": total.most_tokens, "problems": found})  # fmt: skip
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
@click.option("--by", type=click.Choice(["age", "size", "share"]), default="age", show_default=True,
              help="Oldest, largest, or greatest part of the budget of all rules first.")  # fmt: skip
@common
def review(by: Order, root: str | None, as_json: bool) -> None:
    """List the rules in the order in which to look at them."""
    with open_root(root) as memory:
        rules = memory.hot.review(by)
    if show.wants_json(as_json):
        show.as_json(rules)
    elif not rules:
        click.echo("There are no rules yet: holdfast init --template writes some to start from.")
    else:
        rows = [
            (rule.age, f"{rule.lines}/{rule.most_lines or '–'}", f"{rule.tokens}/{rule.most_tokens or '–'}",
             f"{rule.share:.0%}", f"{rule.part:.0%}", rule.path)
            for rule in rules
        ]  # fmt: skip
        show.table(("changed", "lines", "tokens", "of its own", "of all", "rule"), rows)


@hot.command()
@click.option("--into", default="", type=click.Path(), help="Folder of a project; default: the memory root itself.")
@click.option("--remove", is_flag=True, help="Take back what was made, and nothing else.")
@common
def link(into: str, remove: bool, root: str | None, as_json: bool) -> None:
    """Make rules and commands known to Cursor, Codex, Claude Code and whoever reads AGENTS.md. Overwrites nothing."""
    from holdfast.clients import rules

    with open_root(root) as memory:
        done = rules.unlink(memory, into) if remove else rules.link(memory, into)
    if show.wants_json(as_json):
        show.as_json(done)
    elif not done:
        click.echo("There is nothing to take back." if remove else "There are no rules and no commands yet.")
    else:
        show.table(("what", "path", "why"), [(made.what, made.path, made.why) for made in done], whole=("path",))


@hot.command()
@click.argument("id")
@click.option("--into", default="", metavar="RULE", help="Add it to this rule, as a section; default: a new rule.")
@click.option("--budget", default=0, metavar="LINES", help="Budget of the new rule; default: some room to grow.")
@_op
@common
def promote(id: str, into: str, budget: int, op_id: str, root: str | None, as_json: bool) -> None:
    """Copy the record ID into hot memory, if the budgets allow it. The record stays as it is."""
    with open_root(root) as memory:
        _told(memory.hot.promote(id, into, budget, op_id), as_json)


@hot.command()
@click.argument("name")
@click.option("--scope", help="Workspace, domain or repository of the note; default: the workspace default.")
@click.option("--heading", default="", help="Only this section of the rule.")
@_op
@common
def demote(name: str, scope: str | None, heading: str, op_id: str, root: str | None, as_json: bool) -> None:
    """Take the rule NAME out of hot memory. Its text becomes a note, unless the record it came from still has it."""
    with open_root(root) as memory:
        _told(memory.hot.demote(name, scope, heading, op_id), as_json)


def _told(receipt: Receipt, as_json: bool) -> None:
    if show.wants_json(as_json):
        show.as_json(receipt)
    else:
        click.echo(f"{receipt.status}: {receipt.id}")
        click.echo("Next: holdfast hot link, if clients have links to the rules.")
