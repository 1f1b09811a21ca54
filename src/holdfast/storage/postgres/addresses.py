"""The address of a database: `postgresql://user:password@host:port/name?tenant=…`.

Everything but `tenant` is passed to libpq, which knows many forms, such as several hosts. A password is never shown,
neither in an address for people nor in an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus, unquote_plus

import msgspec
import psycopg
from psycopg import conninfo, pq

from holdfast.errors import Invalid, Unavailable

SCHEMES = ("postgresql://", "postgres://")
DEFAULT_TENANT = "default"
_MOST = 200
_EXAMPLE = "Write it as postgresql://user:password@host:5432/name?tenant=team, with % for special characters."
_SECRET = re.compile(r"password|secret|scram_\w+_key")
"""Options whose values are never shown."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SAFE = "/,:"
_CLEAR = ("password", "md5")
"""Authentication methods that reveal the password to the server, or nearly."""
_NOT_CLEAR = ",".join(f"!{each}" for each in _CLEAR)
_REQUIRING = 16_00_00
"""The first libpq that can refuse them."""
_ALIVE = {
    "application_name": "holdfast",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "client_encoding": "utf8",
}


class Address(msgspec.Struct, frozen=True):
    conninfo: str
    """For libpq; it may contain a password."""
    tenant: str
    shown: str
    """For people, without a password."""
    bare: str
    """The address without its secrets, which opens the same memory when they come from elsewhere."""
    secret: bool = False
    """The address contained a secret."""

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def parse(dsn: str) -> Address:
    """Read the address of a database."""
    scheme, colon, rest = dsn.partition(":")
    if not (scheme.lower() + colon + rest).startswith(SCHEMES):
        raise Invalid("This is not the address of a PostgreSQL database.", _EXAMPLE)
    start, _, query = (scheme.lower() + colon + rest).partition("?")
    if "@" in query:  # a password with an unescaped ?
        raise Invalid("The address of the database cannot be read.", _EXAMPLE)
    parts = [part for part in query.split("&") if part]
    tenants = [unquote_plus(part.partition("=")[2]) for part in parts if part.partition("=")[0] == "tenant"]
    others = "&".join(part for part in parts if part.partition("=")[0] != "tenant")
    tenant = check_tenant(tenants[-1] if tenants else DEFAULT_TENANT)
    try:
        given = conninfo.conninfo_to_dict(f"{start}?{others}" if others else start)
        port, name, host = (str(given.get(key) or "") for key in ("port", "dbname", "host"))
        # an unescaped / or @ in a password moves parts of it elsewhere; a host that begins with @ is an abstract socket
        if port.strip("0123456789,") or "@" in name or any("@" in one[1:] for one in host.split(",")):
            raise Invalid("The address of the database cannot be read.", _EXAMPLE)
        whole = conninfo.make_conninfo("", **{**_ALIVE, **given})
        bare = _bare(given, tenants[-1] if tenants else "")
        return Address(whole, tenant, _shown(given, tenant), bare, any(map(_SECRET.search, given)))
    except psycopg.Error:  # its text may quote the password
        raise Invalid("The address of the database cannot be read.", _EXAMPLE) from None


def without_clear_passwords(dsn: str) -> str:
    """Return an address of unknown origin with an option by which its server gets no password in clear or as MD5.

    Nothing in the address can override this; the owner's PGREQUIREAUTH can.
    """
    if pq.version() < _REQUIRING:
        raise Unavailable(
            "libpq is too old to keep a password from a server that asks for it.", "Use libpq 16 or later."
        )
    named = str(conninfo.conninfo_to_dict(parse(dsn).conninfo).get("require_auth") or "")
    strict = named and not any(each.startswith("!") or each in _CLEAR for each in named.split(","))
    wanted = os.environ.get("PGREQUIREAUTH") or (named if strict else _NOT_CLEAR)
    return f"{dsn}{'&' if '?' in dsn else '?'}require_auth={quote(wanted, safe='!,')}"  # libpq uses the last of two


def check_tenant(tenant: str) -> str:
    """Return a tenant's name, or refuse one that no tenant can have."""
    if not tenant or len(tenant) > _MOST or not tenant.isprintable() or tenant != tenant.strip():
        raise Invalid(
            f"{tenant[:40]!r} is not the name of a tenant.", f"Use 1 to {_MOST} characters, without line breaks."
        )
    return tenant


def shown_for(address: Address, tenant: str) -> str:
    """Return the address of another tenant of the same database, for people."""
    return _shown(conninfo.conninfo_to_dict(address.conninfo), tenant)


def for_tenant(dsn: str, tenant: str) -> str:
    """Return the address of another tenant of the same database."""
    start, _, query = dsn.partition("?")
    parts = [part for part in query.split("&") if part and part.partition("=")[0] != "tenant"]
    return f"{start}?{'&'.join([*parts, f'tenant={quote_plus(check_tenant(tenant))}'])}"


def _bare(given: Mapping[str, object], tenant: str) -> str:
    """Return an address made of what libpq understood, without secrets."""
    public = {key: str(value) for key, value in given.items() if not _SECRET.search(key)}
    if public.get("require_auth") == _NOT_CLEAR:  # added by `without_clear_passwords`
        del public["require_auth"]
    user, name = (quote(public.pop(key, ""), safe="") for key in ("user", "dbname"))
    hosts, ports, place = public.get("host", "").split(","), public.get("port", "").split(","), ""
    ports = ports if any(ports) else [""] * len(hosts)
    if len(hosts) == len(ports) and all(map(_HOST.match, hosts)):  # they fit at the front of an address
        place = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True))
        del public["host"]
        public.pop("port", "")
    query = [f"{key}={quote(value, safe=_SAFE)}" for key, value in public.items()]
    query += [f"tenant={quote(tenant, safe='')}"] if tenant else []
    return f"postgresql://{user}{'@' if user else ''}{place}/{name}{'?' if query else ''}{'&'.join(query)}"


def _shown(given: Mapping[str, object], tenant: str) -> str:
    user, host, port, name = (str(given.get(key) or "") for key in ("user", "host", "port", "dbname"))
    place = f"{host}:{port}" if port and "," not in host and not host.startswith("/") else host
    return f"postgresql://{user + '@' if user else ''}{place}/{name}?tenant={tenant}"
