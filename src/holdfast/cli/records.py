"""The commands over single records, and over the index and its files."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import show
from holdfast.cli.common import common, open_root, read_stdin
from holdfast.errors import Damaged, Invalid, Unavailable
from holdfast.model.names import amount

if TYPE_CHECKING:
    from holdfast.model.records import Receipt, Record


def _kinds(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Complete the name of a kind."""
    from holdfast.model.kinds import KINDS

    return [name for name, row in KINDS.items() if name.startswith(start) and not row.owned]


@click.command()
@click.argument("path", type=click.Path(), required=False)
@click.option("--template", is_flag=True, help="Also write first rules, and the command that saves what was learned.")
@common
def init(path: str | None, template: bool, root: str | None, as_json: bool) -> None:
    """Make a memory root in PATH (default: here), a folder or the address of a database: postgresql://…

    Nothing that is there is overwritten.
    """
    from holdfast.roots import is_address, make_root, set_up

    given = path or root or "."
    if is_address(given):
        location, written = set_up(given, template)
    else:
        location = os.path.realpath(os.path.expanduser(given))
        written = make_root(location, template)
    if show.wants_json(as_json):
        show.as_json({"root": location, "written": written})
    elif written:
        click.echo(f"{location} is a memory root now. Written: {', '.join(written)}.")
        if template:
            click.echo("Next: fill in the rules, then run holdfast hot link, which makes them known to clients.")
        else:
            click.echo('Next: holdfast put note "What should be remembered" --title "A title"')
    else:
        click.echo(f"{location} was a memory root already; nothing was changed.")


@click.command()
@click.argument("kind", required=False, default="", shell_complete=_kinds)
@click.argument("text", required=False)
@click.option("--title", default="", help="Title of the record; for an overview, the workspace's name.")
@click.option("--scope", help="workspace[/domain[/repository]], by folder or name.")
@click.option("--session", default="", help="Session that a line belongs to.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be given several times.")
@click.option("--key", default="", help="Key of a fact; the newest value of a key holds.")
@click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="Another field; VALUE is JSON or text.")
@click.option("--id", "identifier", default="", help="Change this record (or create at this path).")
@click.option("--expect", default="", help="Version that the change was made from.")
@click.option("--op-id", default="", help="Repeating a call with the same op id has no further effect.")
@common
def put(kind: str, text: str | None, root: str | None, as_json: bool, **given: Any) -> None:
    """Keep a record of KIND with TEXT (default or "-": standard input), or change one with --id, which needs no KIND.

    KIND is note, decision, lesson, fact, episode, plan, overview or another; an unknown one lists them all.
    """
    from holdfast.model.kinds import KINDS

    fields = dict(_field(item) for item in given.pop("fields"))
    if key := given.pop("key"):
        fields["key"] = key
    if given["identifier"] and text is None and kind not in KINDS:
        kind, text = "", kind or None  # a change needs no kind
    if text == "-" or (text is None and not given["identifier"] and not sys.stdin.isatty()):
        text = read_stdin()
    with open_root(root) as memory:
        receipt = memory.put(
            kind, text, title=given["title"], scope=given["scope"], session=given["session"],
            tags=list(given["tags"]) or None, fields=fields, id=given["identifier"],
            expect=given["expect"], op_id=given["op_id"],
        )  # fmt: skip
    _receipt(receipt, as_json)


@click.command()
@click.argument("id")
@common
def get(id: str, root: str | None, as_json: bool) -> None:
    """Print one record by its ID (a path, path#entry or the id of a line; shared:ID is one of the shared memory)."""
    from holdfast.owner import shared

    with open_root(root) as memory:
        record = memory.get(id)
        store = shared.NAME if memory.shared and id.startswith(shared.PREFIX) else ""
    if show.wants_json(as_json):
        show.as_json(_told_of(record, shared.PREFIX, store) if store else record)
        return
    head = [
        ("store", store),
        ("kind", record.kind),
        ("title", record.title),
        ("scope", record.scope.path),
        ("tags", ", ".join(record.tags)),
        ("time", record.time),
        ("where", record.where),
        ("version", record.version),
        ("hidden", "yes" if record.hidden else ""),
    ]
    show.table(("field", "value"), [row for row in (*head, *record.fields.items()) if row[1] not in ("", None)])
    click.echo("\n" + show.printable(record.text))


@click.command()
@click.argument("query", required=False, default="")
@click.option("--kind", "kinds", multiple=True, help="Only this kind; may be given several times.")
@click.option("--scope", help="Only this workspace, domain or repository and what is below it.")
@click.option("--session", default="", help="Only this session.")
@click.option("--tag", "tags", multiple=True, help="Only records with one of these tags.")
@click.option("--since", default="", help="From this date or time on.")
@click.option("--until", default="", help="Up to this date or time.")
@click.option("--hidden", is_flag=True, help="Also what was hidden.")
@click.option("--limit", default=20, show_default=True, help="At most this many.")
@click.option("--budget", default=0, help="At most this many tokens of text.")
@click.option(
    "--where", type=click.Choice(["here", "shared", "both"]), help="In which memory; default: both, if one is shared."
)
@common
def search(query: str, root: str | None, as_json: bool, **given: Any) -> None:
    """Find records by the words of QUERY; without words, list the newest.

    Words are literal text. "Quoted words" must stand together; tag:NAME and kind:NAME filter.
    """
    with open_root(root) as memory:
        given["where"] = given["where"] or ("both" if memory.shared else "here")
        found = memory.find(query, **given)
    if show.wants_json(as_json):
        show.as_json(found)
        return
    if not found.hits:
        click.echo("Nothing relevant.")
    else:
        for hit in found:
            show.hit(hit)
    if found.left_out:
        click.echo(f"{found.left_out} more did not fit the budget.", err=True)
    if found.behind:
        click.echo(f"The index is behind by {amount(found.behind, 'file')}; repeat the search in a moment.", err=True)
    _problems(found.problems)
    if found.damaged:
        click.echo(
            f"{amount(found.damaged, 'line or file', 'lines or files')} cannot be read: holdfast verify names them.",
            err=True,
        )


@click.command()
@click.argument("query")
@click.argument("id")
@click.option("--kind", "kinds", multiple=True, help="As if only this kind were searched; may be given several times.")
@click.option("--scope", help="As if only this workspace, domain or repository, and those above it, were searched.")
@click.option("--asked", default="", help="As if it were asked at this date or time.")
@click.option(
    "--level", type=click.Choice(["records", "sessions"]), default="records", help="As if sessions were asked for."
)
@common
def why(query: str, id: str, root: str | None, as_json: bool, **given: Any) -> None:
    """Show how recall ranks the record ID for QUERY, step by step, or why it leaves it out."""
    from holdfast.model.queries import Query

    with open_root(root) as memory:
        told = memory.explain(Query(text=query, associate=True, above=True, **given), id)
    if show.wants_json(as_json):
        show.as_json(told)
        return
    if told.steps:
        show.table(
            ("step", "change", "score"),
            [(one.step, f"{one.change:+.3f}", f"{one.score:.3f}") for one in told.steps],
        )
    facts = (
        ("place", f"{told.rank}" if told.rank else told.left_out),
        ("words", ", ".join(told.words)),
        ("missing", ", ".join(told.missing)),
        ("because", ", ".join(told.because)),
        (
            "found",
            f"{told.matched:.0%} of the query; the floor is {told.floor:.0%}" if told.missing or told.words else "",
        ),
    )
    show.table(("", ""), [fact for fact in facts if fact[1]])


@click.command()
@click.argument("what")
@click.option("--scope", help="Only this workspace, domain or repository and what is below it.")
@click.option("--limit", default=20, show_default=True, help="At most this many.")
@common
def related(what: str, scope: str | None, limit: int, root: str | None, as_json: bool) -> None:
    """List what has to do with WHAT, a record's id or a name: by links, by what both speak of, by tags."""
    from holdfast.model.queries import Query

    with open_root(root) as memory:
        found = memory.related(what, Query(scope=scope, limit=limit))
    if show.wants_json(as_json):
        show.as_json(found)
    elif not found:
        click.echo(f"Nothing has to do with {show.printable(what)}.")
    else:
        for tied in found:
            show.tied(tied)


@click.command()
@click.argument("kind", shell_complete=_kinds)
@click.option("-n", "--count", default=20, show_default=True, help="How many.")
@click.option("--session", default="", help="Session, for kinds that are kept per session.")
@click.option("--scope", help="Only this workspace, domain or repository and what is below it.")
@common
def tail(kind: str, count: int, session: str, scope: str | None, root: str | None, as_json: bool) -> None:
    """Print the last records of a log of KIND (message, episode, fact, …), oldest first."""
    with open_root(root) as memory:
        records = memory.tail(kind, count, session=session, scope=scope)
    if show.wants_json(as_json):
        show.as_json(records)
    elif not records:
        where = f" in session {session or 'default'}; name another one with --session" if kind == "episode" else ""
        click.echo(f"No {kind} was kept yet{where}.")
    else:
        from holdfast.model.times import local

        show.table(("time", "id", "what"), [(local(r.time), r.id, _headline(r.title, r.text)) for r in records])


@click.command()
@click.argument("id")
@click.option("--restore", is_flag=True, help="Show it again.")
@click.option("--op-id", default="", help="Repeating a call with the same op id has no further effect.")
@common
def hide(id: str, restore: bool, op_id: str, root: str | None, as_json: bool) -> None:
    """Hide the record ID from search and lists. Its text stays in its file."""
    with open_root(root) as memory:
        _receipt(memory.hide(id, restore=restore, op_id=op_id), as_json)


@click.command()
@click.option("--rebuild", is_flag=True, help="Throw the index away and read every file again.")
@common
def refresh(rebuild: bool, root: str | None, as_json: bool) -> None:
    """Bring the index up to the files, and with an embedder the vectors too."""
    with open_root(root) as memory:
        with show.progress("reading") as progress:
            done = memory.refresh(rebuild=rebuild, progress=progress)
        if memory.embedder:
            with show.progress("embedding") as progress, contextlib.suppress(Unavailable):
                memory.embed(progress)
    if show.wants_json(as_json):
        show.as_json(done)
        return
    click.echo(
        f"{amount(done.files, 'file')} looked at, {done.changed} read, {done.removed} gone, "
        f"{amount(done.records, 'record')} indexed."
    )
    _problems(done.problems)


@click.command()
@click.option("--status", is_flag=True, help="Only say how far the vectors are.")
@common
def embed(status: bool, root: str | None, as_json: bool) -> None:
    """Make the vectors by which records are found by meaning.

    Needs an extra: pip install 'holdfast[semantic]', or 'holdfast[quality]', which is slower and finds more.
    """
    with open_root(root) as memory:
        if status:
            told = memory.embedded()
        else:
            with show.progress("embedding") as progress:
                told = memory.embed(progress)
    if show.wants_json(as_json):
        show.as_json({name: getattr(told, name) for name in told.__struct_fields__})
    elif not told.embedder:
        click.echo(told.problem or "There is no embedder: records are found by words alone.")
    else:
        click.echo(
            f"{told.embedder} ({told.model} {told.version}): {told.vectors} records have vectors, {told.missing} lack"
            f" one; {told.bytes / 1e6:.1f} MB." + ("" if status else f" Made now: {told.made}.")
        )


@click.command()
@common
def verify(root: str | None, as_json: bool) -> None:
    """Prove that index and files agree, and name what is damaged. Changes nothing."""
    with open_root(root) as memory, show.progress("comparing") as progress:
        report = memory.verify(progress)
    if show.wants_json(as_json):
        show.as_json({"sound": report.sound, "files": report.files, "records": report.records,
                      "differences": report.differences, "damage": report.damage}
                     | ({} if report.sound else {"next": report.next_step}))  # fmt: skip
    else:
        size = f"{amount(report.files, 'file')}, {amount(report.records, 'record')}"
        click.echo(f"{size}: {'all sound' if report.sound else 'not sound'}.")
        _problems([*report.differences, *report.damage], most=1000)
        if not report.sound:
            click.echo(report.next_step, err=True)
    if not report.sound:
        sys.exit(Damaged.exit_code)


@click.command()
@common
def stats(root: str | None, as_json: bool) -> None:
    """Say what is kept, where, and how far the index is behind."""
    with open_root(root) as memory:
        numbers = memory.stats()
    if show.wants_json(as_json):
        show.as_json(numbers)
        return
    kinds = numbers.pop("kinds")
    show.warnings(numbers.pop("vanished"))
    show.table(("what", "value"), [(name.replace("_", " "), value) for name, value in numbers.items()])
    if kinds:
        click.echo()
        show.table(("kind", "records"), list(kinds.items()))


def _field(item: str) -> tuple[str, Any]:
    name, equals, value = item.partition("=")
    if not equals or not name:
        raise Invalid(f"--field {item!r} is not NAME=VALUE.", "Write it like status=done.")
    import msgspec

    try:
        return name, msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return name, value


def _receipt(receipt: Receipt, as_json: bool) -> None:
    if show.wants_json(as_json):
        show.as_json(receipt)
    else:
        click.echo(
            f"{receipt.status}: {receipt.id}" + (f" in {receipt.path}" if receipt.path not in receipt.id else "")
        )


def _told_of(record: Record, prefix: str, store: str) -> dict[str, Any]:
    """Return a record of another store as data, with the id by which it is found here."""
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(record)
    return told | {"id": f"{prefix}{record.id}", "store": store}


def _headline(title: str, text: str) -> str:
    flat = " ".join(text.split())
    return f"{title}: {flat}"[:300] if title else flat[:300]


def _problems(problems: list[Any], most: int = 5) -> None:
    show.warnings(problems[:most])
    if len(problems) > most:
        click.secho(f"… and {len(problems) - most} more; holdfast verify lists them all.", fg="yellow", err=True)
