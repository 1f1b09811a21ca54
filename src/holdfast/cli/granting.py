"""`token`: who may come to the server over HTTP, and how far. The owner's, never a model's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import click

from holdfast.cli import show
from holdfast.cli.common import Command, common, store_of
from holdfast.errors import Invalid, NotFound
from holdfast.model.grants import Grant


def _placed(command: Command) -> Command:
    """Add the options that say which store is meant."""
    tenant = click.option("--tenant", default=None, help="Of a database; default: that of its address.")
    store = click.option("--store", default="", help="A folder, or postgresql://…; default: the memory root.")
    return common(store(tenant(command)))


def _store(root: str | None, store: str, tenant: str | None) -> str:
    from holdfast.mcp.granting import for_tenant

    if tenant == "":
        raise Invalid("--tenant is empty.", "Name a tenant, or leave --tenant out for that of the address.")
    return for_tenant(store_of(root, store), tenant or "")


@click.group()
def token() -> None:
    """Say who may come to holdfast serve, and how far."""


@token.command()
@click.option("--name", required=True, help="Whose it is; noted beside everything that is written with it.")
@click.option("--scope", default=None, help="The one workspace[/domain[/repository]] that it may see; default: all.")
@click.option("--read-only", is_flag=True, help="It may change nothing.")
@click.option("--expires", default="", help="After how long it ends, like 12h, 30d or 1y; default: never.")
@_placed
def create(
    root: str | None,
    as_json: bool,
    store: str,
    tenant: str | None,
    name: str,
    scope: str | None,
    read_only: bool,
    expires: str,
) -> None:  # fmt: skip
    """Make a token and print it, this once: the store keeps no more than is needed to know it again."""
    from holdfast.mcp.granting import issue

    location = _store(root, store, tenant)
    path = "" if scope is None else _scope(location, scope)
    grant, made = issue(location, name, path, reads_only=read_only, expires=expires)
    if as_json:
        show.as_json(_told(grant) | {"token": made})
        return
    click.echo(made)
    click.echo(f"{_allows(grant)}. It is not shown again.", err=True)


@token.command(name="list")
@_placed
def list_(root: str | None, as_json: bool, store: str, tenant: str | None) -> None:
    """List the tokens: what each one allows, until when, and when it was used last."""
    found = _with(_store(root, store, tenant), lambda kept: kept.all())
    rows = [_told(grant) for grant in found]
    if show.wants_json(as_json):
        show.as_json(rows)
    elif not rows:
        click.echo("No tokens yet. Make one: holdfast token create --name NAME")
    else:
        columns = ("name", "id", "rights", "scope", "state", "expires", "used")
        show.table(columns, [_row(grant) for grant in found], less=("used",))


@token.command()
@click.argument("wanted", metavar="ID|NAME")
@_placed
def revoke(root: str | None, as_json: bool, store: str, tenant: str | None, wanted: str) -> None:
    """Take a token back: a running server refuses it within seconds."""
    from holdfast.model import grants

    def work(kept: Any) -> Grant:
        try:
            grant = grants.named(kept.all(), wanted)
        except Invalid as error:  # it has no such name
            raise NotFound(error.message, error.next_step) from None
        kept.revoke(grant.id)
        return grant

    grant = _with(_store(root, store, tenant), work)
    if show.wants_json(as_json):
        show.as_json({"id": grant.id, "name": grant.name, "revoked": True})
    else:
        click.echo(f"Revoked: {grant.name} ({grant.id}). Running servers refuse it within seconds.")


def _with(store: str, work: Callable[[Any], Any]) -> Any:
    from holdfast.mcp import granting

    with contextlib.closing(granting.of(store)) as kept:
        return work(kept)


def _scope(store: str, scope: str) -> str:
    """Return the path of a scope that there is: a token for one that is not would show what comes to be there."""
    from holdfast.memory import open_memory

    if not scope.strip():  # as of a variable that is not set
        raise Invalid("--scope names nothing.", "Name a workspace, or leave it out: then the token sees everything.")
    with open_memory(store, writer="cli") as memory:
        return memory.scopes.resolve(scope).path


def _allows(grant: Grant) -> str:
    where = grant.scope or "everything"
    tenant = f" of {grant.tenant}" if grant.tenant else ""
    return f"{'Reads' if grant.reads_only else 'Reads and writes'} {where}{tenant}"


def _row(grant: Grant) -> tuple[str, ...]:
    """Return what a line of the list says of a token, so that it fits a terminal."""
    told = _told(grant)
    rights, scope = "r" if grant.reads_only else "rw", grant.scope or "all"
    return grant.name, grant.id, rights, scope, told["state"], _day(told["expires"]), _day(told["used"])


def _day(time: str) -> str:
    return time.partition("T")[0]


def _told(grant: Grant) -> dict[str, str]:
    state = "revoked" if grant.revoked else "holds" if grant.holds else "expired"
    return {
        "id": grant.id, "name": grant.name, "allows": _allows(grant), "tenant": grant.tenant, "scope": grant.scope,
        "state": state, "created": grant.created, "expires": grant.expires or "never", "used": grant.used or "never",
    }  # fmt: skip
