"""Where a database is: `postgresql://user:password@host:port/name?tenant=…`.

Everything but `tenant` is for libpq, which knows many forms, several hosts among them. A password is never shown:
not in an address for people, not in an error.
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
"""Names of options whose values nobody is shown."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SAFE = "/,:"
_CLEAR = ("password", "md5")
"""Ways to log in by which a server learns the password, or nearly."""
_UNCLEAR = ",".join(f"!{each}" for each in _CLEAR)
_REQUIRING = 16_00_00
"""The libpq that can refuse them."""
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
    """What libpq is given. It may hold a password."""
    tenant: str
    shown: str
    """For people, without a password."""
    bare: str
    """What opens the same memory, for whoever has the password from elsewhere."""
    secret: bool = False
    """Was there anything in it that nobody is shown?"""

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def parse(dsn: str) -> Address:
    """Read the address of a database."""
    scheme, colon, rest = dsn.partition(":")
    if not (scheme.lower() + colon + rest).startswith(SCHEMES):
        raise Invalid("This is not the address of a PostgreSQL database.", _EXAMPLE)
    start, _, query = (scheme.lower() + colon + rest).partition("?")
    if "@" in query:  # of a password with a ? in it, or as good as that
        raise Invalid("The address of the database cannot be read.", _EXAMPLE)
    parts = [part for part in query.split("&") if part]
    tenants = [unquote_plus(part.partition("=")[2]) for part in parts if part.partition("=")[0] == "tenant"]
    others = "&".join(part for part in parts if part.partition("=")[0] != "tenant")
    tenant = check_tenant(tenants[-1] if tenants else DEFAULT_TENANT)
    try:
        given = conninfo.conninfo_to_dict(f"{start}?{others}" if others else start)
        _check_misread(given)
        whole = conninfo.make_conninfo("", **{**_ALIVE, **given})
        bare = _bare(given, tenants[-1] if tenants else "")
        return Address(whole, tenant, _shown(given, tenant), bare, any(map(_SECRET.search, given)))
    except psycopg.Error:  # its text may quote the password
        raise Invalid("The address of the database cannot be read.", _EXAMPLE) from None


def without_clear_passwords(dsn: str) -> str:
    """Return an address that anybody may have written so that its server gets no password in clear or as MD5.

    Nothing in the address changes that; PGREQUIREAUTH does, which is the owner's.
    """
    if pq.version() < _REQUIRING:
        raise Unavailable(
            "libpq is too old to keep a password from a server that asks for it.", "Use libpq 16 or later."
        )
    named = str(conninfo.conninfo_to_dict(parse(dsn).conninfo).get("require_auth") or "")
    strict = named and not any(each.startswith("!") or each in _CLEAR for each in named.split(","))
    wanted = os.environ.get("PGREQUIREAUTH") or (named if strict else _UNCLEAR)
    return f"{dsn}{'&' if '?' in dsn else '?'}require_auth={quote(wanted, safe='!,')}"  # of two, libpq takes the last


def check_tenant(tenant: str) -> str:
    """Refuse a name that no tenant can have."""
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


def _check_misread(given: Mapping[str, object]) -> None:
    """Refuse what a password with an unescaped / or @ makes of an address: parts of it would pass for other things.

    A name that begins with @ is that of a socket without a file.
    """
    port, name, host = (str(given.get(key) or "") for key in ("port", "dbname", "host"))
    if port.strip("0123456789,") or "@" in name or any("@" in one[1:] for one in host.split(",")):
        raise Invalid("The address of the database cannot be read.", _EXAMPLE)


def _bare(given: Mapping[str, object], tenant: str) -> str:
    """Return an address of what libpq understood, without what is secret: no text of the original is in it."""
    kept = {key: str(value) for key, value in given.items() if not _SECRET.search(key)}
    if kept.get("require_auth") == _UNCLEAR:  # which `without_clear_passwords` added
        del kept["require_auth"]
    user, name = (quote(kept.pop(key, ""), safe="") for key in ("user", "dbname"))
    place = _place(kept)
    query = [f"{key}={quote(value, safe=_SAFE)}" for key, value in kept.items()]
    query += [f"tenant={quote(tenant, safe='')}"] if tenant else []
    return f"postgresql://{user}{'@' if user else ''}{place}/{name}{'?' if query else ''}{'&'.join(query)}"


def _place(parts: dict[str, str]) -> str:
    """Take hosts and ports out of the parts if they can stand at the front of an address, and return them so."""
    hosts, ports = parts.get("host", "").split(","), parts.get("port", "").split(",")
    ports = ports if any(ports) else [""] * len(hosts)
    if len(hosts) != len(ports) or not all(map(_HOST.match, hosts)):
        return ""
    parts.pop("host"), parts.pop("port", "")
    return ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=True))


def _shown(given: Mapping[str, object], tenant: str) -> str:
    user, host, port, name = (str(given.get(key) or "") for key in ("user", "host", "port", "dbname"))
    place = f"{host}:{port}" if port and "," not in host and not host.startswith("/") else host
    return f"postgresql://{user + '@' if user else ''}{place}/{name}?tenant={tenant}"
