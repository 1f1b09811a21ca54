"""The commands for servers: `mcp` and `serve` run one, `token` issues the tokens for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import show
from holdfast.cli.main import Command, Commands, command, locate, open_root
from holdfast.errors import Invalid, Unavailable
from holdfast.roots import folder_of, is_address
from holdfast.tools.calling import Context

if TYPE_CHECKING:
    from holdfast.model.grants import Grant


def _server_options(command: Command) -> Command:
    for option in (
        click.option("--session", default="", help="Session of calls that name none; default: default."),
        click.option("--workspace", default="", help="Workspace of calls that name none; default: default."),
        click.option("--toolset", default="core", show_default=True, help="core, all, or agents separated by commas."),
        click.option("--port", default=8899, show_default=True, type=click.IntRange(0, 65535), help="HTTP port."),
        click.option("--host", default="127.0.0.1", show_default=True, help="HTTP address to listen on."),
    ):
        command = option(command)
    return command


@command()
@click.option("--http", is_flag=True, help="Serve over HTTP instead of standard input and output.")
@_server_options
def mcp(http: bool, toolset: str, host: str, port: int, workspace: str, session: str) -> None:
    """Serve the memory to an agent over MCP.

    Clients of the Model Context Protocol start this command themselves: holdfast install CLIENT sets it up.
    """
    location = locate(create=True)[0]
    defaults = Context(workspaceId=workspace, sessionId=session)
    if http:
        _http_server()(location, toolset, defaults, folder=os.getcwd(), host=host, port=port)
    else:
        from holdfast.mcp.stdio import main as serve_stdio

        serve_stdio(location, toolset, defaults)


@command()
@click.option("--store", default="", help="A folder or postgresql://user@host/name; default: the memory root.")
@click.option("--name", "names", multiple=True, help="Another host name that clients use; repeatable.")
@click.option("--log", default="text", show_default=True, type=click.Choice(["text", "json", "none"]), help="Log form.")
@click.option("--open-metrics", is_flag=True, help="Serve /metrics without a token.")
@_server_options
def serve(store: str, workspace: str, session: str, **given: Any) -> None:
    """Serve one memory to a team over HTTP.

    The server starts while the database is down, reports it at /readyz, and reconnects by itself.
    """
    location = _store_of(store)
    defaults = Context(workspaceId=workspace, sessionId=session)
    _http_server()(location, defaults=defaults, owner_tokens=not is_address(location), **given)


def _http_server() -> Callable[..., None]:
    try:
        from holdfast.mcp.http import main
    except ModuleNotFoundError:
        raise Unavailable(
            "HTTP needs the MCP SDK, which is not installed.", "Run: pip install 'holdfast[http]'"
        ) from None
    return main


def _store_of(given: str, tenant: str | None = None) -> str:
    """Return a store, by default the root, as it was given or for a tenant; a folder has to exist."""
    if tenant == "":
        raise Invalid("--tenant is empty.", "Name a tenant, or leave --tenant out for that of the address.")
    store = given or locate(create=True)[0]
    if not is_address(store):
        folder_of(store)
    if not tenant:
        return store
    from holdfast.mcp.auth import for_tenant

    return for_tenant(store, tenant)


def _token_options(command: Command) -> Command:
    tenant = click.option("--tenant", default=None, help="Tenant of a database; default: that of its address.")
    store = click.option("--store", default="", help="A folder or postgresql://…; default: the memory root.")
    return store(tenant(command))


@click.group(cls=Commands)
def token() -> None:
    """Manage the tokens for holdfast serve."""


@token.command()
@click.option("--name", required=True, help="Name of the token; recorded with everything it writes.")
@click.option("--scope", default=None, help="The only workspace[/domain[/repository]] it sees; default: all.")
@click.option("--read-only", is_flag=True, help="Allow reading only.")
@click.option("--expires", default="", help="Lifetime, like 12h, 30d or 1y; default: unlimited.")
@_token_options
def create(store: str, tenant: str | None, name: str, scope: str | None, **given: Any) -> None:
    """Create a token and print it. It is shown only once."""
    location, path = _store_of(store, tenant), ""
    if scope is not None:
        if not scope.strip():  # for example from an unset variable
            step = "Name a workspace, or leave --scope out for a token that sees everything."
            raise Invalid("--scope is empty.", step)
        with open_root(location) as memory:
            path = memory.scopes.resolve(scope).path
    from holdfast.mcp.auth import issue

    grant, made = issue(location, name, path, reads_only=given["read_only"], expires=given["expires"])
    if show.asked_for_json():
        show.as_json(_fields(grant) | {"token": made})
    else:
        click.echo(made)
        click.echo(f"{_allows(grant)}. It is not shown again.", err=True)


@token.command(name="list")
@_token_options
def list_(store: str, tenant: str | None) -> None:
    """List tokens with their rights, expiry and last use."""
    from holdfast.mcp.auth import open_grants

    with contextlib.closing(open_grants(_store_of(store, tenant))) as grants:
        found = grants.all()
    rows, listed = [], [_fields(grant) for grant in found]
    for grant, fields in zip(found, listed, strict=True):
        days = (fields[name].partition("T")[0] for name in ("expires", "used"))
        rights = "r" if grant.reads_only else "rw"
        rows.append((grant.name, grant.id, rights, grant.scope or "all", fields["state"], *days))
    columns = ("name", "id", "rights", "scope", "state", "expires", "used")
    nothing = "No tokens yet. Make one: holdfast token create --name NAME"
    show.listing(listed, nothing, columns, rows)


@token.command()
@click.argument("wanted", metavar="ID|NAME")
@_token_options
def revoke(store: str, tenant: str | None, wanted: str) -> None:
    """Revoke a token. Running servers refuse it within seconds."""
    from holdfast.mcp.auth import open_grants

    with contextlib.closing(open_grants(_store_of(store, tenant))) as grants:
        from holdfast.model.grants import by_name

        grant = by_name(grants.all(), wanted)
        grants.revoke(grant.id)
    show.json_and_exit({"id": grant.id, "name": grant.name, "revoked": True})
    click.echo(f"Revoked: {grant.name} ({grant.id}). Running servers refuse it within seconds.")


def _allows(grant: Grant) -> str:
    tenant = f" of {grant.tenant}" if grant.tenant else ""
    return f"{'Reads' if grant.reads_only else 'Reads and writes'} {grant.scope or 'everything'}{tenant}"


def _fields(grant: Grant) -> dict[str, str]:
    return {
        "id": grant.id,
        "name": grant.name,
        "allows": _allows(grant),
        "tenant": grant.tenant,
        "scope": grant.scope,
        "state": "revoked" if grant.revoked else "holds" if grant.is_valid else "expired",
        "created": grant.created,
        "expires": grant.expires or "never",
        "used": grant.used or "never",
    }
