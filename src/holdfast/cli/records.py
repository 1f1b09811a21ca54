"""Commands over single records, and over the index: init, put, get, search, why, related, tail, hide, refresh, …"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import click

from holdfast.cli import show
from holdfast.cli.main import common, open_root, read_stdin
from holdfast.errors import Damaged, Invalid, Unavailable
from holdfast.model.names import amount

_kind = click.option("--kind", "kinds", multiple=True, help="Only this kind; may be given several times.")
_scope = click.option("--scope", help="Only this workspace, domain or repository and below.")
_limit = click.option("--limit", default=20, show_default=True, help="The most results.")
_op = click.option("--op-id", default="", help="A repeated call with the same op id has no effect.")


def _complete_kind(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    from holdfast.model.kinds import KINDS

    return [name for name, row in KINDS.items() if name.startswith(start) and not row.owned]


@click.command()
@click.argument("path", type=click.Path(), required=False)
@click.option("--template", is_flag=True, help="Also write first rules and the save-memory command.")
@common
def init(path: str | None, template: bool, root: str | None, as_json: bool) -> None:
    """Create a memory in PATH (default: here).

    PATH is a folder or the address of a database: postgresql://… Existing files are not overwritten.
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
@click.argument("kind", required=False, default="", shell_complete=_complete_kind)
@click.argument("text", required=False)
@click.option("--title", default="", help="Title; for an overview, the name of the workspace.")
@click.option("--scope", help="workspace[/domain[/repository]], by folder or name.")
@click.option("--session", default="", help="Session of a log entry.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be given several times.")
@click.option("--key", default="", help="Key of a fact; the newest value of a key is current.")
@click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="Another field; VALUE is JSON or text.")
@click.option("--id", "identifier", default="", help="Change this record, or create it at this path.")
@click.option("--expect", default="", help="The version that you have read.")
@_op
@common
def put(kind: str, text: str | None, root: str | None, as_json: bool, **given: Any) -> None:
    """Save a record of KIND, or change one with --id.

    TEXT is read from standard input if it is missing or "-". KIND is note, decision, lesson, fact, episode, plan,
    overview or another; an unknown one lists them all. With --id, KIND may be left out.
    """
    from holdfast.model.kinds import KINDS

    fields = dict(_field(item) for item in given.pop("fields"))
    if key := given.pop("key"):
        fields["key"] = key
    identifier = given.pop("identifier")
    if identifier and text is None and kind not in KINDS:
        kind, text = "", kind or None  # the only argument is the text
    if text == "-" or (text is None and not identifier and not sys.stdin.isatty()):
        text = read_stdin()
    tags = list(given.pop("tags")) or None
    with open_root(root) as memory:
        receipt = memory.put(kind, text, tags=tags, fields=fields, id=identifier, **given)
    show.receipt(receipt, as_json)


def _field(item: str) -> tuple[str, Any]:
    import msgspec

    name, equals, value = item.partition("=")
    if not equals or not name:
        raise Invalid(f"--field {item!r} is not NAME=VALUE.", "Write it like status=done.")
    try:
        return name, msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return name, value


@click.command()
@click.argument("id")
@common
def get(id: str, root: str | None, as_json: bool) -> None:
    """Print a record by its ID.

    An ID is a path, path#entry or the id of a log entry; shared:ID is a record of the shared memory.
    """
    from holdfast.owner import shared

    with open_root(root) as memory:
        record = memory.get(id)
        store = shared.NAME if memory.shared and id.startswith(shared.PREFIX) else ""
    if show.wants_json(as_json):
        import msgspec

        found = msgspec.to_builtins(record)
        show.as_json(found | {"id": f"{shared.PREFIX}{record.id}", "store": store} if store else found)
        return
    fields = {
        "store": store,
        "kind": record.kind,
        "title": record.title,
        "scope": record.scope.path,
        "tags": ", ".join(record.tags),
        "time": record.time,
        "where": record.where,
        "version": record.version,
        "hidden": "yes" if record.hidden else "",
    }
    rows = [row for row in (*fields.items(), *record.fields.items()) if row[1] not in ("", None)]
    show.table(("field", "value"), rows)
    click.echo("\n" + show.printable(record.text))


@click.command()
@click.argument("query", required=False, default="")
@_kind
@_scope
@click.option("--session", default="", help="Only this session.")
@click.option("--tag", "tags", multiple=True, help="Only records with one of these tags.")
@click.option("--since", default="", help="From this date or time on.")
@click.option("--until", default="", help="Up to this date or time.")
@click.option("--hidden", is_flag=True, help="Include hidden records.")
@_limit
@click.option("--budget", default=0, help="The most tokens of text.")
@click.option("--where", type=click.Choice(["here", "shared", "both"]), help="Which memory; default: all there are.")
@common
def search(query: str, root: str | None, as_json: bool, **given: Any) -> None:
    """Search records for QUERY; without words, list the newest.

    Words are literal text. "Quoted words" must be adjacent; tag:NAME and kind:NAME filter.
    """
    with open_root(root) as memory:
        given["where"] = given["where"] or ("both" if memory.shared else "here")
        found = memory.find(query, **given)
    if show.wants_json(as_json):
        show.as_json(found)
        return
    for hit in found:
        show.hit(hit)
    if not found.hits:
        click.echo("Nothing relevant.")
    if found.left_out:
        click.echo(f"{found.left_out} more did not fit the budget.", err=True)
    if found.behind:
        click.echo(f"The index is behind by {amount(found.behind, 'file')}; repeat the search in a moment.", err=True)
    _problems(found.problems)
    if found.damaged:
        damaged = amount(found.damaged, "line or file", "lines or files")
        click.echo(f"{damaged} cannot be read: holdfast verify names them.", err=True)


@click.command()
@click.argument("query")
@click.argument("id")
@_kind
@click.option("--scope", help="Only this workspace, domain or repository, and those above.")
@click.option("--asked", default="", help="As if asked at this date or time.")
@click.option("--level", type=click.Choice(["records", "sessions"]), default="records", help="Rank these.")
@common
def why(query: str, id: str, root: str | None, as_json: bool, **given: Any) -> None:
    """Explain the rank of the record ID for QUERY, step by step."""
    from holdfast.model.queries import Query

    with open_root(root) as memory:
        found = memory.explain(Query(text=query, associate=True, above=True, **given), id)
    if show.wants_json(as_json):
        show.as_json(found)
        return
    if found.steps:
        rows = [(one.step, f"{one.change:+.3f}", f"{one.score:.3f}") for one in found.steps]
        show.table(("step", "change", "score"), rows)
    share = f"{found.matched:.0%} of the query; the floor is {found.floor:.0%}"
    facts = {
        "place": f"{found.rank}" if found.rank else found.left_out,
        "words": ", ".join(found.words),
        "missing": ", ".join(found.missing),
        "because": ", ".join(found.because),
        "found": share if found.missing or found.words else "",
    }
    show.table(("", ""), [fact for fact in facts.items() if fact[1]])


@click.command()
@click.argument("what")
@_scope
@_limit
@common
def related(what: str, scope: str | None, limit: int, root: str | None, as_json: bool) -> None:
    """List records related to WHAT, an id or a name.

    Records are related by links, by the names they mention, and by tags.
    """
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
@click.argument("kind", shell_complete=_complete_kind)
@click.option("-n", "--count", default=20, show_default=True, help="How many.")
@click.option("--session", default="", help="Session, for kinds that are stored per session.")
@_scope
@common
def tail(kind: str, count: int, session: str, scope: str | None, root: str | None, as_json: bool) -> None:
    """Print the last entries of a log (message, fact, …), oldest first."""
    with open_root(root) as memory:
        records = memory.tail(kind, count, session=session, scope=scope)
    if show.wants_json(as_json):
        show.as_json(records)
    elif not records:
        where = f" in session {session or 'default'}; name another one with --session" if kind == "episode" else ""
        click.echo(f"No {kind} was kept yet{where}.")
    else:
        from holdfast.model.times import local

        texts = [" ".join(record.text.split()) for record in records]
        heads = [f"{one.title}: {text}" if one.title else text for one, text in zip(records, texts, strict=True)]
        rows = [(local(one.time), one.id, head[:300]) for one, head in zip(records, heads, strict=True)]
        show.table(("time", "id", "what"), rows)


@click.command()
@click.argument("id")
@click.option("--restore", is_flag=True, help="Show it again.")
@_op
@common
def hide(id: str, restore: bool, op_id: str, root: str | None, as_json: bool) -> None:
    """Hide the record ID from search and lists. Its text stays in its file."""
    with open_root(root) as memory:
        show.receipt(memory.hide(id, restore=restore, op_id=op_id), as_json)


@click.command()
@click.option("--rebuild", is_flag=True, help="Delete the index and read every file again.")
@common
def refresh(rebuild: bool, root: str | None, as_json: bool) -> None:
    """Update the index and, with an embedder, the vectors."""
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
@click.option("--status", is_flag=True, help="Only show the state of the vectors.")
@common
def embed(status: bool, root: str | None, as_json: bool) -> None:
    """Create the vectors for search by meaning.

    Needs an extra: pip install 'holdfast[semantic]', or 'holdfast[quality]', which is slower and finds more.
    """
    with open_root(root) as memory:
        if status:
            found = memory.embedded()
        else:
            with show.progress("embedding") as progress:
                found = memory.embed(progress)
    if show.wants_json(as_json):
        show.as_json({name: getattr(found, name) for name in found.__struct_fields__})
    elif not found.embedder:
        click.echo(found.problem or "There is no embedder: records are found by words alone.")
    else:
        click.echo(
            f"{found.embedder} ({found.model} {found.version}): {found.vectors} records have vectors, {found.missing}"
            f" lack one; {found.bytes / 1e6:.1f} MB." + ("" if status else f" Made now: {found.made}.")
        )


@click.command()
@common
def verify(root: str | None, as_json: bool) -> None:
    """Compare index and files, and list damage. Changes nothing."""
    with open_root(root) as memory, show.progress("comparing") as progress:
        report = memory.verify(progress)
    if show.wants_json(as_json):
        names = ("sound", "files", "records", "differences", "damage")
        fields = {name: getattr(report, name) for name in names}
        show.as_json(fields | ({} if report.sound else {"next": report.next_step}))
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
    """Show what the memory contains and the state of its index."""
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


def _problems(problems: list[Any], most: int = 5) -> None:
    show.warnings(problems[:most])
    if len(problems) > most:
        click.secho(f"… and {len(problems) - most} more; holdfast verify lists them all.", fg="yellow", err=True)
