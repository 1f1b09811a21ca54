"""The command that serves the memory to agents."""

from __future__ import annotations

import click

from holdfast.cli.common import common, nearest


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
