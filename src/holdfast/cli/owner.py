"""The owner's commands: history, undo, forget, rollback, watch, review, usage, settings and trust, and those for the
upkeep of files: `lint`, `migrate`, `learnings archive` and `hot`, the rules.

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
from holdfast.cli.main import Commands, command, kinds_option, locate, op_option, open_root, scope_option
from holdfast.clients import rules
from holdfast.errors import Conflict, HoldfastError, Invalid
from holdfast.formats.markdown import scalar
from holdfast.memories import corrections
from holdfast.memories.hot import Order
from holdfast.memories.lint import lint as lint_files
from holdfast.memories.upkeep import Result, apply, plan_changes
from holdfast.memories.upkeep import archive as archive_learnings
from holdfast.model.names import amount
from holdfast.model.times import local

if TYPE_CHECKING:
    from holdfast.owner.forget import Forgotten

_SHOWN = 20
_COLOURS = {"added": "green", "changed": "yellow", "removed": "red", "hidden": "red", "restored": "green"}
_LINK = "Next: holdfast hot link, if clients have links to the rules."
_LEVELS = {"error": "red", "warning": "yellow", "fixed": "green"}
_yes = click.option("--yes", is_flag=True, help="Make the change; without this, only show it.")
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
        missing = "text damaged" if one.damaged else "text not stored"
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
        click.echo("Nothing was found.")
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
        click.echo("No file below the root contains its bytes any more.")
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
        raise Invalid("--approve and --reject were both given.", "Leave one of them out.")
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
            raise Invalid("No proposal was named.", "Give their ids, or --all.")
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
    size = f"{amount(found.calls, 'call')}, {amount(found.tokens, 'token')} of replies"
    click.echo(f"{size} since {local(found.first)}.")
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
    location, source = locate()
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
        found.insert(0, roots.Setting("root", roots.shown(location), source))
        rows = [(one.name, one.source, msgspec.json.encode(one.value).decode()) for one in found]
        show.listing(found, "", ("setting", "from", "value"), rows, whole=("setting",))


@command()
@click.argument("location", metavar="[ROOT]", required=False, default="")
def trust(location: str) -> None:
    """Let the settings of ROOT run programs and send text.

    Commands for jobs, the model and the shared memory in holdfast.toml are ignored until you trust them, and again
    after each change. Settings in the environment are always used; with HOLDFAST_TRUST=all, those of every root.
    """
    found = secrets.redact_all(roots.trust(location or locate()[0]))
    rows = [(name, msgspec.json.encode(value).decode()) for name, value in found.items()]
    show.listing(found, "", ("trusted setting", "value"), rows or [("nothing new", "")])


# upkeep of the files


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
        click.echo(f"{where} {click.style(state, fg=_LEVELS[state])}: {show.printable(fault.what)} [{fault.rule}]")
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
        click.secho(show.printable(f"{one.level}: {where} {one.what}"), fg=_LEVELS[one.level])
    sys.exit(int(failed))


@hot.command("review")
@click.option(
    "--by",
    type=click.Choice(["age", "size", "share"]),
    default="age",
    show_default=True,
    help="Oldest, largest, or largest share of the total budget first.",
)
def hot_review(by: Order) -> None:
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
    nothing = "There is nothing to remove." if remove else "There are no rules and no commands yet."
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
