"""Commands over all tools: which there are, calling one, and what was called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import show
from holdfast.cli.common import common, open_root, read_stdin
from holdfast.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from holdfast.tools.registry import Tool


def _names(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    """Complete the name of a tool."""
    from holdfast.tools import toolsets

    return [name for name in toolsets.registry().tools if name.startswith(start)]


@click.command()
@click.argument("tool", required=False, default="", shell_complete=_names)
@common
def tools(tool: str, root: str | None, as_json: bool) -> None:
    """List the tools that agents can call, or describe TOOL with its parameters."""
    del root  # the tools are the same in every root
    from holdfast.model.names import close_to
    from holdfast.tools import toolsets

    known = toolsets.registry().tools
    if tool and tool not in known:
        raise NotFound(f'There is no tool "{tool}".{close_to(tool, known)}', "Run: holdfast tools")
    if show.wants_json(as_json):
        show.as_json(_described(known[tool]) if tool else [_described(each) for each in known.values()])
    elif tool:
        click.echo(f"{known[tool].agent}: {tool}\n\n{known[tool].about}\n")
        rows = [(_typed(param), "yes" if param.required else "", param.about) for param in known[tool].params.values()]
        show.table(
            ("parameter", "type", "needed", "what"),
            [(name, *row) for name, row in zip(known[tool].params, rows, strict=True)],
        )
    else:
        rows = [(each.agent, each.name, " ".join(each.about.split()).partition(". ")[0]) for each in known.values()]
        show.table(("agent", "tool", "what"), rows)
        click.echo("\nholdfast tools TOOL describes one; holdfast call TOOL --params JSON runs it.")


def _described(tool: Tool) -> dict[str, Any]:
    return {"agent": tool.agent, "name": tool.name, "description": tool.about, "inputSchema": tool.schema}


def _typed(param: Any) -> str:
    """Say in a word or two what a parameter may be."""
    schema = param.schema
    parts = schema.get("anyOf", [schema])
    return " or ".join(
        "|".join(map(str, part["enum"])) if "enum" in part else str(part.get("type", "any")) for part in parts
    )


@click.command()
@click.argument("tool", shell_complete=_names)
@click.option("--params", default="{}", metavar="JSON|@FILE|-", help="The parameters: JSON, a file, or standard input.")
@click.option("--context", metavar="JSON|@FILE", help="For whom: workspaceId, sessionId, goal and others.")
@common
def call(tool: str, params: str, context: str | None, root: str | None, as_json: bool) -> None:
    """Run TOOL and print the reply that an agent would get; the exit code is 1 when the reply is an error."""
    given = _json("--params", params)
    about = None if context is None else _json("--context", context)
    with open_root(root) as memory:
        reply = memory.call(tool, given, about)
    if "text" in reply and not show.wants_json(as_json):
        click.echo(show.printable(str(reply["text"])))
    else:
        show.as_json(reply)
    if reply.get("success") is False:
        sys.exit(1)


def _json(option: str, given: str) -> Any:
    """Read the JSON that an option gives, names the file of, or leaves to standard input."""
    import msgspec

    if given == "-":
        given = read_stdin()
    elif given.startswith("@"):
        try:
            with open(given[1:], encoding="utf-8") as file:
                given = file.read()
        except OSError as error:
            raise Unavailable(f"{given[1:]}: {error.strerror}.", f"Give {option} a file that can be read.") from None
        except UnicodeDecodeError:
            raise Invalid(f"{given[1:]} is not UTF-8.", "Save it as UTF-8.") from None
    try:
        return msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(f"{option} is not JSON: {error}.", 'Write it like {"name": "alpha"}.') from None


@click.command()
@click.option("--workspace", default="", help="Only calls in this workspace.")
@click.option("-n", "--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many.")
@common
def traces(workspace: str, count: int, root: str | None, as_json: bool) -> None:
    """Print the last calls of tools, oldest first: what was done, how it ended, how long it took."""
    with open_root(root) as memory:
        scope = memory.scopes.resolve(workspace) if workspace else None
        found = memory.traces.last(count, scope)
    if show.wants_json(as_json):
        show.as_json(found)
    elif not found:
        click.echo("No tool was called yet.")
    else:
        from holdfast.model.times import local

        show.table(
            ("time", "session", "tool", "ms", "ended", "what"),
            [(local(each["time"]), each["session"], each["tool"], each["ms"], *_ended(each)) for each in found],
            whole=("time", "tool"),
            less=("ms", "session"),
        )


def _ended(trace: dict[str, Any]) -> tuple[str, str]:
    what = str(trace["what"]).removeprefix(trace["tool"]).strip()
    if trace["success"]:
        return "ok", what
    return "error", f"{what}: {trace['error']}" if what else str(trace["error"])
