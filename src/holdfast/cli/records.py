"""Commands over single records, and over the index: init, put, get, search, why, related, tail, hide, refresh, …"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.main import (
    command,
    given_root,
    json_or_text,
    kinds_option,
    op_option,
    open_root,
    read_stdin,
    scope_option,
)
from holdfast.errors import Damaged, HoldfastError, Invalid, Unavailable
from holdfast.formats.prompts import QUOTED
from holdfast.model.kinds import KINDS
from holdfast.model.names import amount
from holdfast.model.queries import Query, parse
from holdfast.model.records import DEFAULT, Receipt, Scope
from holdfast.model.times import local
from holdfast.recall.answers import Hit
from holdfast.roots import is_address, make_root, set_up
from holdfast.storage.writer import draft

if TYPE_CHECKING:
    from holdfast.memory import Memory

_ALL = "holdfast verify lists them all"
_CLOSEST = 3
_LAYER = click.Choice(["hot", "warm", "cold"])
_limit = click.option("--limit", default=20, show_default=True, help="The most results.")


@contextlib.contextmanager
def _traced(memory: Memory, tool: str, scope: str | Scope | None, **params: Any) -> Iterator[dict[str, Any]]:
    """Trace a command like the tool of this name; yield the fields to add to the trace."""
    from holdfast.memories.workspaces import Trace, Traces

    begin, more = time.perf_counter(), dict[str, Any](params={name: value for name, value in params.items() if value})
    try:
        more["workspace"] = memory.scopes.resolve(scope or DEFAULT).path
        yield more
    except HoldfastError as error:
        more |= {"success": False, "error": str(error)}
        raise
    finally:
        ms = round((time.perf_counter() - begin) * 1000, 3)
        Traces(memory).add(Trace(tool=tool, ms=ms, **more))


def _complete_kind(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    return [name for name, row in KINDS.items() if name.startswith(start) and not row.owned]


@command()
@click.argument("path", type=click.Path(), required=False)
@click.option("--template", is_flag=True, help="Also write first rules and the save-memory command.")
def init(path: str | None, template: bool) -> None:
    """Create a memory in PATH (default: here).

    PATH is a folder or the address of a database: postgresql://… Existing files are not overwritten.
    """
    from holdfast.owner import git

    given = path or given_root() or "."
    if is_address(given):
        location, written = set_up(given, template)
    else:
        location = os.path.realpath(os.path.expanduser(given))
        written = make_root(location, template)
        with contextlib.suppress(Unavailable):  # doctor reports it
            written += git.setup(location) if git.lacks_driver(location) else []
    show.json_and_exit({"root": location, "written": written})
    following = 'holdfast remember "Something worth remembering."'
    if template:
        following = "fill in the rules, then run holdfast hot link, which links them to clients."
    if written:
        click.echo(f"{location} is a memory root now. Written: {', '.join(written)}.\nNext: {following}")
    else:
        click.echo(f"{location} was a memory root already; nothing was changed.")


@command()
@click.argument("words", nargs=-1, metavar="[KIND] [TEXT]", shell_complete=_complete_kind)
@click.option("--kind", default="", help="The kind, if TEXT is the only argument; default: note.")
@click.option("--title", default="", help="Title; default for notes, decisions and lessons: from the text.")
@click.option("--scope", "--workspace", help="workspace[/domain[/repository]], by folder or name.")
@click.option("--session", default="", help="Session of a log entry.")
@click.option("--tag", "--tags", "tags", multiple=True, help="A tag; may be given several times.")
@click.option("--key", default="", help="What a fact or procedure is about; the newest value of a fact is current.")
@click.option("--field", "fields", multiple=True, metavar="NAME=VALUE", help="Another field; VALUE is JSON or text.")
@click.option("--id", "identifier", default="", help="Change this record, or create it at this path.")
@click.option("--expect", default="", help="The version that you have read.")
@click.option("--supersedes", default="", help="The id of the record that this one replaces.")
@click.option("--until", default="", help="The last day on which it is valid.")
@click.option("--reason", default="", help="Why it is changed; kept in its history.")
@op_option
def put(words: Sequence[str], kind: str, key: str, identifier: str, **given: Any) -> None:
    """Save a record, or change one with --id.

    KIND is note (the default), decision, lesson, fact, procedure, episode, plan, overview or another; an unknown one
    lists them all. TEXT is read from standard input if it is missing or "-". Saving the same again changes nothing.
    """
    from holdfast.memories import corrections

    fields = {}
    for item in given.pop("fields"):
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise Invalid(f"--field {item!r} is not NAME=VALUE.", "Write it like status=done.")
        fields[name] = json_or_text(value)
    if not kind and (words[1:] or (words and words[0] in KINDS)):
        kind, *words = words
    if words[1:]:
        raise click.UsageError("Give one TEXT: put it in quotes.")
    text = words[0] if words else None
    if text == "-" or (text is None and not identifier and not sys.stdin.isatty()):
        text = read_stdin()
    kind = kind or ("" if identifier else "note")
    given |= {"tags": list(given["tags"]) or None, "id": identifier}
    with open_root(create=True) as memory:
        if identifier or kind not in corrections.REMEMBERED:
            fields |= {"key": key} if key else {}
            show.receipt(memory.put_draft(draft(kind=kind, text=text, fields=fields, **given)))
            return
        if KINDS[kind].shape != "line" or given["scope"]:
            given["scope"] = memory.scopes.resolve(given["scope"] or DEFAULT)
        made = draft(kind=kind, text=text, fields=fields, **given)
        with _traced(memory, "remember", made.scope, kind=kind, title=made.title, key=key, text=text) as trace:
            reply = corrections.remember(memory, made, key)
            trace["result"] = f"{reply['status']}: {reply['where']}"
    reply["path"] = reply.pop("where")
    show.json_and_exit(reply)
    show.receipt(Receipt(reply["status"], reply["id"], reply["path"]))
    was = [f"It supersedes: {reply.get('was') or reply['supersedes']}"] if "supersedes" in reply else []
    for line in (*was, *corrections.shown_similar(reply.get("similar", ()))):
        click.echo(show.printable(line))


@command()
@click.argument("id")
def get(id: str) -> None:
    """Print a record by its ID.

    An ID is a path, path#entry or the id of a log entry; shared:ID is a record of the shared memory.
    """
    from holdfast.owner import shared

    with open_root() as memory:
        record = memory.get(id)
        store = shared.NAME if memory.shared and id.startswith(shared.PREFIX) else ""
    if show.wants_json():
        found = msgspec.to_builtins(record)
        show.as_json(found | {"id": f"{shared.PREFIX}{record.id}", "store": store} if store else found)
        return
    fields = {"store": store} | {name: getattr(record, name) for name in ("kind", "title", "time", "where", "version")}
    fields |= {"scope": record.scope.path, "tags": ", ".join(record.tags), "hidden": "yes" if record.hidden else ""}
    rows = [row for row in (*fields.items(), *record.fields.items()) if row[1] not in ("", None)]
    show.table(("field", "value"), rows)
    click.echo("\n" + show.printable(record.text))


@command()
@click.argument("query", required=False, default="")
@click.option("--kind", "--kinds", "kinds", multiple=True, help="Only this kind; may be given several times.")
@click.option("--layer", "--layers", "layers", multiple=True, type=_LAYER, help="Default: hot and warm.")
@click.option("--scope", "--workspace", help="This workspace, domain or repository, those above and below; * for all.")
@click.option("--session", default="", help="Only this session.")
@click.option("--tag", "--tags", "tags", multiple=True, help="Only records with one of these tags.")
@click.option("--since", default="", help="From this date or time on.")
@click.option("--until", default="", help="Up to this date or time.")
@click.option("--asked", default="", help="As if asked at this date or time.")
@click.option("--level", type=click.Choice(["records", "sessions"]), default="records", help="sessions: one hit each.")
@click.option("--hidden", is_flag=True, help="Include hidden records.")
@_limit
@click.option("--budget", default=0, help="The most tokens of text.")
@click.option("--where", type=click.Choice(["here", "shared", "both"]), help="Which memory; default: all there are.")
@click.option("--full", is_flag=True, help="Show whole texts, not the parts that match.")
def search(query: str, full: bool, layers: tuple[str, ...], **given: Any) -> None:
    """Find records for a question or words, or list the newest.

    Words are literal text. "Quoted words" must be adjacent; tag:NAME and kind:NAME filter. Several words are ranked as
    a question: also by meaning and by neighbouring records. A single word is only looked up. If nothing is relevant,
    the closest records by words are shown and marked as weak.
    """
    if layers and not given["kinds"]:
        given["kinds"] = [row.name for row in KINDS.values() if row.searchable and row.layer in layers]
    with open_root() as memory:
        given["scope"] = None if given["scope"] == "*" else given["scope"]
        given["where"] = given["where"] or ("both" if memory.shared else "here")
        with _traced(memory, "recall", given["scope"], query=query) as trace:
            asks = len(parse(query).tokens) > 1
            found = memory.find(query, above=True, associate=asks, **given)
            trace |= {"read": True, "ids": [hit.record.id for hit in found], "result": f"{len(found.hits)} found"}
        if weak := asks and not found.hits:  # a person can judge the closest records
            found = memory.find(query, above=True, **given | {"limit": _CLOSEST})
        own = memory.sources(hit.record for hit in found if not hit.store)
        theirs = memory.shared.sources([hit.record for hit in found if hit.store]) if memory.shared else {}
    hits = [(hit, (theirs if hit.store else own)[hit.record.id]) for hit in found]
    if show.wants_json():
        shown = [_shown(hit, full=full) | msgspec.to_builtins(source) for hit, source in hits]
        marked = {"weak": True} if weak and hits else {}
        show.as_json(msgspec.to_builtins(msgspec.structs.replace(found, hits=[])) | {"hits": shown} | marked)
        return
    if weak and hits:
        click.echo("Nothing relevant. The closest, by words alone:")
    for hit, source in hits:
        show.hit(hit, source, full=full)
    if not found.hits:
        click.echo("Nothing relevant.")
    elif not sys.stdout.isatty():
        click.echo(QUOTED)
    if found.left_out:
        click.echo(f"{found.left_out} more did not fit the budget.", err=True)
    if found.behind:
        click.echo(f"The index is behind by {amount(found.behind, 'file')}; repeat the search in a moment.", err=True)
    show.warnings(found.problems, 5, _ALL)
    if found.damaged:
        damaged = amount(found.damaged, "line or file", "lines or files")
        click.echo(f"{damaged} cannot be read: holdfast verify names them.", err=True)


def _shown(hit: Hit, *, full: bool) -> dict[str, Any]:
    """Return a hit as JSON: its record has the id that `get` takes, and its whole text only with `full`."""
    shown: dict[str, Any] = msgspec.to_builtins(hit)
    shown["record"]["id"] = f"{hit.store}:{hit.record.id}" if hit.store else hit.record.id
    shown["record"]["text"] = hit.record.text if full else hit.snippet
    return shown


@command()
@click.argument("query")
@click.argument("id")
@kinds_option
@click.option("--scope", help="Only this workspace, domain or repository, and those above.")
@click.option("--asked", default="", help="As if asked at this date or time.")
@click.option("--level", type=click.Choice(["records", "sessions"]), default="records", help="Rank these.")
def why(query: str, id: str, **given: Any) -> None:
    """Explain the rank of the record ID for QUERY, step by step."""
    with open_root() as memory:
        found = memory.explain(Query(text=query, associate=True, above=True, **given), id)
    show.json_and_exit(found)
    if found.steps:
        rows = [(one.step, f"{one.change:+.3f}", f"{one.score:.3f}") for one in found.steps]
        show.table(("step", "change", "score"), rows)
    share = f"{found.matched:.0%} of the query; the floor is {found.floor:.0%}"
    facts = {"place": f"{found.rank}" if found.rank else found.left_out}
    facts |= {name: ", ".join(getattr(found, name)) for name in ("words", "missing", "because")}
    facts["found"] = share if found.missing or found.words else ""
    show.table(("", ""), [fact for fact in facts.items() if fact[1]])


@command()
@click.argument("what")
@scope_option
@_limit
def related(what: str, scope: str | None, limit: int) -> None:
    """List records related to WHAT, an id or a name.

    Records are related by links, by the names they mention, and by tags.
    """
    with open_root() as memory:
        found = memory.related(what, Query(scope=scope, limit=limit))
    show.json_and_exit(found)
    for tied in found:
        show.tied(tied)
    if not found:
        click.echo(f"No record is related to {show.printable(what)}.")


@command()
@click.argument("kind", shell_complete=_complete_kind)
@click.option("-n", "--count", default=20, show_default=True, help="How many.")
@click.option("--session", default="", help="Session, for kinds that are stored per session.")
@scope_option
def tail(kind: str, count: int, session: str, scope: str | None) -> None:
    """Print the last entries of a log, oldest first.

    KIND is message, fact, episode or another kind that is stored in a log.
    """
    with open_root() as memory:
        records = memory.tail(kind, count, session=session, scope=scope)
    where = f" in session {session or 'default'}; name another one with --session" if kind == "episode" else ""
    rows = []
    for one in records:
        text = " ".join(one.text.split())
        rows.append((local(one.time), one.id, (f"{one.title}: {text}" if one.title else text)[:300]))
    show.listing(records, f"No {kind} was stored yet{where}.", ("time", "id", "what"), rows)


@command()
@click.argument("id")
@click.option("--restore", is_flag=True, help="Show it again.")
@click.option("--reason", default="", help="Why; kept in its history.")
@op_option
def hide(id: str, **given: Any) -> None:
    """Hide the record ID from search and lists. Its text stays in its file."""
    with open_root() as memory:
        made = memory.hide(id, **given)
    show.receipt(made, "" if given["restore"] else f"Its text stays. To erase it: holdfast forget {made.id}")


@command()
@click.option("--rebuild", is_flag=True, help="Delete the index and read every file again.")
def refresh(rebuild: bool) -> None:
    """Update the index and, with an embedder, the vectors."""
    with open_root() as memory:
        with show.progress("reading") as progress:
            done = memory.refresh(rebuild=rebuild, progress=progress)
        if memory.embedder:
            with show.progress("embedding") as progress, contextlib.suppress(Unavailable):
                memory.embed(progress)
    show.json_and_exit(done)
    click.echo(
        f"{amount(done.files, 'file')} checked, {done.changed} read, {done.removed} removed, "
        f"{amount(done.records, 'record')} indexed."
    )
    show.warnings(done.problems, 5, _ALL)


@command()
@click.option("--status", is_flag=True, help="Only show the state of the vectors.")
def embed(status: bool) -> None:
    """Create the vectors for search by meaning.

    Needs an extra: pip install 'holdfast[semantic]', or 'holdfast[quality]', which is slower and finds more.
    """
    with open_root() as memory:
        if status:
            found = memory.embedded()
        else:
            with show.progress("embedding") as progress:
                found = memory.embed(progress)
    show.json_and_exit(msgspec.structs.asdict(found))
    if not found.embedder:
        click.echo(found.problem or "There is no embedder: search uses words alone.")
    else:
        click.echo(
            f"{found.embedder} ({found.model} {found.version}): {found.vectors} records have vectors, {found.missing}"
            f" lack one; {found.bytes / 1e6:.1f} MB." + ("" if status else f" Made now: {found.made}.")
        )


@command()
@click.option("--repair", is_flag=True, help="Get back entries that logs lost, from git.")
@click.option("--backup", multiple=True, type=click.Path(), help="With --repair: also from this backup.")
def verify(repair: bool, backup: tuple[str, ...]) -> None:
    """Compare index and files, and list damage. Changes nothing without --repair."""
    with open_root() as memory, show.progress("comparing") as progress:
        if repair:
            from holdfast.owner.history import repair as get_back

            for path, done in get_back(memory, backup).items():
                click.echo(f"{path}: {done}", err=True)
        report = memory.verify(progress)
    names = ("sound", "files", "records", "differences", "damage")
    fields = {name: getattr(report, name) for name in names} | ({} if report.sound else {"next": report.next_step})
    show.json_and_exit(fields, code=0 if report.sound else Damaged.exit_code)
    size = f"{amount(report.files, 'file')}, {amount(report.records, 'record')}"
    click.echo(f"{size}: {'all sound' if report.sound else 'not sound'}.")
    show.warnings([*report.differences, *report.damage], all_of_them=_ALL)
    if not report.sound:
        click.echo(report.next_step, err=True)
        sys.exit(Damaged.exit_code)


@command()
def stats() -> None:
    """Show what the memory contains and the state of its index."""
    with open_root() as memory:
        numbers = memory.stats()
    show.json_and_exit(numbers)
    kinds, compartments = numbers.pop("kinds"), numbers.pop("compartments")
    show.warnings(numbers.pop("vanished"))
    show.table(("what", "value"), [(name.replace("_", " "), value) for name, value in numbers.items()])
    if kinds:
        click.echo()
        show.table(("kind", "records"), list(kinds.items()))
    if any(sizes["entries"] for sizes in compartments.values()):
        click.echo()
        columns = ("entries", "chars", "fullest", "limit")
        rows = [(name, *(sizes[column] for column in columns)) for name, sizes in compartments.items()]
        show.table(("compartment", *columns), rows)
