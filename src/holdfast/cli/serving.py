"""The commands that serve the memory to agents: over standard input and output, and over HTTP to a team."""

from __future__ import annotations

import click

from holdfast.cli.common import common, nearest, store_of


@click.command()
@click.option("--toolset", default="core", show_default=True, help="core, all, or names of agents, with commas.")
@click.option("--workspace", default="", help="Workspace of calls that name none; default: default.")
@click.option("--session", default="", help="Session of calls that name none; default: default.")
@click.option("--http", is_flag=True, help="Serve over HTTP instead of standard input and output.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on, with --http.")
@click.option("--port", default=8899, show_default=True, type=click.IntRange(0, 65535), help="Port, with --http.")
@common
def mcp(root: str | None, as_json: bool, toolset: str, http: bool, host: str, port: int, **given: str) -> None:
    """Serve the memory to an agent over the Model Context Protocol.

    A client starts this command itself: holdfast install CLIENT sets it up.
    """
    del as_json  # what the server prints is the protocol's
    from holdfast.tools.context import Context

    location = root or nearest()
    defaults = Context(workspaceId=given["workspace"], sessionId=given["session"])
    if http:
        from holdfast.mcp.http import main as serve_http

        serve_http(location, toolset, defaults, host, port)
    else:
        from holdfast.mcp.stdio import main as serve_stdio

        serve_stdio(location, toolset, defaults)


@click.command()
@click.option("--store", default="", help="A folder, or postgresql://user@host/name; default: the memory root.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8899, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--toolset", default="core", show_default=True, help="core, all, or names of agents, with commas.")
@click.option("--workspace", default="", help="Workspace of calls that name none; default: default.")
@click.option("--session", default="", help="Session of calls that name none; default: default.")
@click.option("--name", "names", multiple=True, help="Another name that clients use, as that of a proxy; repeatable.")
@click.option(
    "--log", default="text", show_default=True, type=click.Choice(["text", "json", "none"]), help="Log lines."
)
@click.option("--open-metrics", is_flag=True, help="Show /metrics to whoever asks, without a token.")
@common
def serve(
    root: str | None, as_json: bool, store: str, host: str, port: int, toolset: str, names: tuple[str, ...], log: str,
    open_metrics: bool, **given: str,
) -> None:  # fmt: skip
    """Serve one memory to a team over HTTP; holdfast token says who may come in.

    It starts while the database is away, says so at /readyz, and finds it again.
    """
    del as_json  # what the server prints is the log's
    from holdfast.mcp.http import Serving
    from holdfast.mcp.journal import FORMS
    from holdfast.mcp.team import run
    from holdfast.roots import is_address
    from holdfast.tools.context import Context

    location = store_of(root, store)
    form = next(one for one in FORMS if one == log)
    how = Serving(toolset, host, port, log=form, names=names, open_metrics=open_metrics)
    defaults = Context(workspaceId=given["workspace"], sessionId=given["session"])
    run(location, how, defaults, fixed=not is_address(location))
