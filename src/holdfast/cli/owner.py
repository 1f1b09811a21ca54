"""The owner's commands: history, undo, forget, rollback, watch, usage, settings and trust.

None of them is a tool that a model can call. Commands that remove something show it first and act with --yes; for many
records they also ask for the number.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from holdfast import roots, secrets
from holdfast.cli import show
from holdfast.cli.main import command, find_root, kinds_option, locate, op_option, open_root, scope_option
from holdfast.errors import Conflict, HoldfastError, Invalid
from holdfast.memories import corrections
from holdfast.model.names import amount
from holdfast.model.times import local

if TYPE_CHECKING:
    from holdfast.owner.forget import Forgotten

_SHOWN = 20
_COLOURS = {"added": "green", "changed": "yellow", "removed": "red", "hidden": "red", "restored": "green"}
_yes = click.option("--yes", is_flag=True, help="Do it; without this, only show it.")
_count = click.option("--count", default=0, help="Number of records; asked for if there are many.")


@command()
@click.argument("id")
@click.option("--version", default="", help="Print the text of this version; a prefix is enough.")
def history(id: str, version: str) -> None:
    """List the changes of ID, a document or log entry."""
    with open_root() as memory:
        if version:
            text = memory.text_at(id, version)
            show.json_and_exit({"id": id, "version": version, "text": text})
            click.echo(show.printable(text), nl=not text.endswith("\n"))
            return
        found = memory.versions(id)
    show.json_and_exit(found)
    rows = []
    for one in found:
        missing = "text damaged" if one.damaged else "text not kept"
        note = "current" if one.current else "" if one.kept or not one.version else missing
        note = " · ".join(filter(None, (note, one.reason, one.path and f"from {one.path}")))
        rows.append((local(one.time) if one.time else "?", one.what, one.writer, one.version[:36], note))
    show.table(("time", "what", "writer", "version", ""), rows, whole=("version",))


@command()
@click.argument("id")
@click.option("--to", default="", metavar="VERSION", help="Restore this version; a prefix is enough.")
@op_option
def undo(id: str, to: str, op_id: str) -> None:
    """Undo the last write to the document ID.

    Repeat it to undo the write before that. A change made by hand is only undone with --to.
    """
    with open_root() as memory:
        show.receipt(memory.undo(id, op_id, to))


@command()
@click.argument("ids", nargs=-1)
@click.option("--query", default="", metavar="TEXT", help="All records with exactly this text.")
@_yes
@_count
def forget(ids: tuple[str, ...], query: str, yes: bool, count: int) -> None:
    """Erase the text of IDS for good.

    It is erased from files, earlier versions, traces, summaries, the write log and the index. Without --yes, this only
    shows what would be erased. Afterwards every file is searched for the bytes, and what is left is reported.
    """
    with open_root() as memory:
        with show.progress("proving") if yes else contextlib.nullcontext() as progress:
            done = memory.forget(*ids, query=query, yes=yes, count=count, progress=progress)
        show.json_and_exit(done, code=1 if done.remains else 0)
        records = [] if yes else [memory.get(each) for each in done.records[:_SHOWN]]
    if yes:
        _forgotten(done)
    elif not records:
        click.echo("There is nothing like that.")
    else:
        rows = [
            (local(one.time), one.kind, one.id, " ".join(f"{one.title} {one.text}".split())[:120]) for one in records
        ]
        show.table(("time", "kind", "id", "what"), rows)
        if done.count > _SHOWN:
            click.echo(f"… and {done.count - _SHOWN} more.")
        _would("forgotten", done.count, done.needs_count)
    if done.remains:
        sys.exit(1)


def _would(what: str, count: int, needs_count: bool) -> None:
    option = f" --count {count}" if needs_count else ""
    click.echo(f"{amount(count, 'record')} would be {what}; nothing was changed. Repeat it with --yes{option}.")


def _forgotten(done: Forgotten) -> None:
    before = f"{amount(len(done.already), 'record was', 'records were')} forgotten before." if done.already else ""
    now = f"{amount(done.count, 'record')} forgotten." if done.count or not before else ""
    click.echo(" ".join(filter(None, (now, before))))
    if done.changed:
        rows = [(one.what, one.count, one.path) for one in done.changed]
        show.table(("what", "count", "path"), rows, whole=("path",))
    if done.remains:
        click.secho(f"Still found in {amount(len(done.remains), 'file')}:", fg="red")
        for problem in done.remains[:_SHOWN]:
            click.echo(f"  {show.printable(str(problem))}")
        click.echo("Forget those records too, or edit the files; then search again: holdfast forget --query TEXT --yes")
    elif not done.looked:
        click.echo("No file was searched, because its text is not known. To search: holdfast forget --query TEXT --yes")
    else:
        click.echo("No file below the root has its bytes any more.")
    for each in done.named:
        click.echo(f"Its name stays in the write log and in traces: {show.printable(each)}")
    if done.too_short:
        click.echo(f"{amount(done.too_short, 'text was', 'texts were')} too short to search for in other files.")
    for each in done.speaking:
        click.echo(f"A summary may still mention it: holdfast forget {each}")
    click.echo("Out of reach: " + "; ".join(done.out_of_reach) + ".")


@command()
@click.option("--writer", default="", help="The writer, as history and get show it.")
@click.option("--since", default="", help="Only writes from this date or time on.")
@click.option("--back", default="", metavar="ID", help="Undo the rollback with this id instead, at once.")
@_yes
@_count
def rollback(yes: bool, **given: Any) -> None:
    """Undo everything that one writer wrote.

    Documents get their earlier text, log entries are hidden; nothing is erased. Without --yes, this only shows what
    would be done. Records that another writer has changed since are left alone and reported.
    """
    with open_root() as memory:
        done = memory.rollback(yes=yes, **given)
    show.json_and_exit(done)
    rows = [(step.act, "derived" if step.derived else "", step.id) for step in done.steps]
    if rows:
        show.table(("what", "", "id"), rows, most=0 if yes else _SHOWN)
    show.warnings([f"left as it is: {step.id}: {step.conflict}" for step in done.conflicts])
    show.warnings([f"derived from it, left as it is: {each}" for each in done.named])
    if not done.count:
        click.echo("There is nothing to undo.")
    elif given["back"]:
        click.echo(f"{amount(len(done.steps), 'step')} done: the rollback was undone.")
    elif done.done:
        click.echo(f"{amount(len(done.steps), 'step')} done. Undo it with: holdfast rollback --back {done.id}")
    else:
        _would("undone", done.count, done.needs_count)


@command()
@scope_option
@kinds_option
@click.option("--since", default="", metavar="ID", help="First print the changes after the record ID.")
@click.option("--count", default=0, metavar="N", help="End after N changes; default: never.")
def watch(scope: str | None, kinds: tuple[str, ...], since: str, count: int) -> None:
    """Print changes to the memory as they happen.

    In a pipe, or with --json, every change is one line of JSON.
    """
    in_json = show.wants_json()
    with open_root() as memory, memory.changes(scope, kinds, since) as changes:
        click.secho(f"Following {memory.root}; stop with Ctrl-C.", dim=True, err=True)
        for number, change in enumerate(changes, 1):
            if in_json:
                click.echo(msgspec.json.encode(change))
            else:
                where = " · ".join(part for part in (change.scope or "-", change.session) if part)
                text = ": ".join(part for part in (change.title, change.text) if part) or change.id or change.path
                about = f"{change.kind}  {where}{' by ' + change.writer if change.writer else ''}  {text}"
                what = click.style(f"{change.what:8}", fg=_COLOURS[change.what])
                click.echo(f"{local(change.noticed)}  {what}  {show.printable(about.replace(chr(10), ' '))}")
            if number == count:
                break


@command()
@click.argument("ids", nargs=-1)
@click.option("--approve", is_flag=True, help="Write them to the memory.")
@click.option("--reject", is_flag=True, help="Hide them; their text stays in its log.")
@click.option("--all", "every", is_flag=True, help="All that are pending.")
@click.option("--reason", default="", help="Why they are rejected.")
@scope_option
def review(ids: tuple[str, ...], approve: bool, reject: bool, every: bool, reason: str, scope: str | None) -> None:
    """Show what agents proposed; approve or reject the IDS.

    Kinds that need approval are set in holdfast.toml: [review] kinds = ["decision"]. No tool can approve.
    """
    if approve and reject:
        raise Invalid("Approve or reject, not both.", "Leave one of them out.")
    with open_root() as memory:
        waiting = corrections.pending(memory, scope)
        chosen = [one for one in waiting if one.id in ids] if ids else waiting
        if unknown := set(ids) - {one.id for one in waiting}:
            raise Invalid(f"{min(unknown)} is not pending.", "Run: holdfast review")
        if not (approve or reject):
            rows = [(local(one.time), one.id, one.fields.get("proposed"), one.title or one.text[:60]) for one in chosen]
            show.listing(chosen, "Nothing is pending.", ("time", "id", "kind", "what"), rows)
            for one in chosen if ids else ():
                show.table(("", ""), list(corrections.changes(memory, one).items()))
            return
        if not ids and not every:
            raise Invalid("Which ones?", "Give their ids, or --all.")
        failed = 0
        for one in chosen:
            try:
                show.receipt(corrections.approve(memory, one) if approve else corrections.reject(memory, one, reason))
            except HoldfastError as error:
                failed += 1
                click.echo(f"{one.id}: {error.message} To drop it: holdfast review {one.id} --reject", err=True)
    if failed:
        raise Conflict(f"{amount(failed, 'proposal')} could not be approved.", "Run: holdfast review")


@command()
@click.option("--since", default="", help="Only calls from this date or time on.")
@click.option("--prune", is_flag=True, help="Remove traces older than limits.trace_months.")
def usage(since: str, prune: bool) -> None:
    """Show what agents recalled and the tokens of replies.

    Counted from the traces of tool calls. --json lists everything.
    """
    with open_root() as memory:
        old = memory.traces.old()
        for log in old if prune else ():
            memory.store.discard(log)
        found = memory.usage(since)
    show.json_and_exit(found)
    if old:
        said = ("Removed", "") if prune else ("Older than limits.trace_months", " To remove: holdfast usage --prune")
        click.echo(f"{said[0]}: {amount(len(old), 'log')} of traces.{said[1]}")
    if not found.calls:
        click.echo("No tool was called yet." if not since else "No tool was called since then.")
        return
    more = f" ({amount(found.unmeasured, 'earlier call')} not measured)" if found.unmeasured else ""
    more += f" since {local(found.first)}"
    click.echo(f"{amount(found.calls, 'call')}, {amount(found.tokens, 'token')} of replies{more}.")
    tools = [(one.tool, one.calls, one.failed or "", one.tokens) for one in found.tools]
    recalled = [(one.count, local(one.last), one.kind, one.title or one.id) for one in found.recalled]
    unanswered = [(one.count, local(one.last), one.query) for one in found.unanswered]
    never = [(one.kind, one.title or one.id) for one in found.never]
    for heading, columns, rows in (
        ("Replies", ("tool", "calls", "failed", "tokens"), tools),
        ("Recalled", ("times", "last", "kind", "what"), recalled),
        ("Questions that found nothing", ("times", "last", "question"), unanswered),
        (f"Never recalled: {len(never)} of {amount(found.kept, 'record')}", ("kind", "what"), never),
    ):
        click.secho(f"\n{heading}", bold=True)
        show.table(columns, rows, nothing="None.", most=_SHOWN)


@command()
@click.option("--text", is_flag=True, help="Print holdfast.toml as it is.")
@click.option("--put", type=click.File("rb"), help="Replace holdfast.toml by this file (- for standard input).")
def settings(text: bool, put: BinaryIO | None) -> None:
    """Show the current settings and where each comes from.

    To change the settings of a memory in a database: holdfast settings --text > new.toml, edit it, then holdfast
    settings --put new.toml. Invalid settings are refused, and the previous text is kept in the history.
    """
    location = find_root()
    if put:
        try:
            new = put.read(roots.MOST_SETTINGS + 1).decode("utf-8")
        except UnicodeDecodeError:
            raise Invalid("The new settings are not UTF-8.", "Save them as UTF-8.") from None
        roots.put_settings(location, new)
        click.echo("Done; programs that have the memory open go on as before until they open it again.")
    elif text:
        with roots.open_tree(location) as tree:
            click.echo(roots.settings_text(tree), nl=False)
    else:
        found = roots.settings_in_effect(location)
        found.insert(0, roots.Setting("root", roots.shown(location), locate()[1]))
        rows = [(one.name, one.source, msgspec.json.encode(one.value).decode()) for one in found]
        show.listing(found, "", ("setting", "from", "value"), rows, whole=("setting",))


@command()
@click.argument("location", metavar="[ROOT]", required=False, default="")
def trust(location: str) -> None:
    """Let the settings of ROOT run programs and send text.

    Commands for jobs, the model and the shared memory in holdfast.toml are ignored until you trust them, and again
    after each change. Settings in the environment are always used; with HOLDFAST_TRUST=all, those of every root.
    """
    found = secrets.redact_all(roots.trust(location or find_root()))
    rows = [(name, msgspec.json.encode(value).decode()) for name, value in found.items()]
    show.listing(found, "", ("trusted setting", "value"), rows or [("nothing new", "")])
