"""Where a database is: `postgresql://user:password@host:port/name?tenant=…`.

Everything but `tenant` is for libpq, which knows many forms, several hosts among them. A password is never shown:
not in an address for people, not in an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote_plus, unquote_plus

import msgspec
import psycopg
from psycopg import conninfo

from holdfast.errors import Invalid

SCHEMES = ("postgresql://", "postgres://")
DEFAULT_TENANT = "default"
_MOST = 200
_EXAMPLE = "Write it as postgresql://user:password@host:5432/name?tenant=team, with % for special characters."
_SECRETS = ("password", "sslpassword")
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

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def parse(dsn: str) -> Address:
    """Read the address of a database."""
    scheme, colon, rest = dsn.partition(":")
    if not (scheme.lower() + colon + rest).startswith(SCHEMES):
        raise Invalid("This is not the address of a PostgreSQL database.", _EXAMPLE)
    start, _, query = (scheme.lower() + colon + rest).partition("?")
    parts = [part for part in query.split("&") if part]
    tenants = [unquote_plus(part.partition("=")[2]) for part in parts if part.partition("=")[0] == "tenant"]
    others = "&".join(part for part in parts if part.partition("=")[0] != "tenant")
    tenant = check_tenant(tenants[-1] if tenants else DEFAULT_TENANT)
    try:
        given = conninfo.conninfo_to_dict(f"{start}?{others}" if others else start)
        _check_misread(given)
        whole = conninfo.make_conninfo("", **{**_ALIVE, **given})
        return Address(whole, tenant, _shown(given, tenant), _bare(start, parts))
    except psycopg.Error:  # its text may quote the password
        raise Invalid("The address of the database cannot be read.", _EXAMPLE) from None


def with_tenant(dsn: str, tenant: str) -> str:
    """Return the address of another tenant of the same database."""
    start, _, query = dsn.partition("?")
    kept = [part for part in query.split("&") if part and part.partition("=")[0] != "tenant"]
    return f"{start}?{'&'.join([*kept, f'tenant={quote_plus(tenant)}'])}"


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
    """Refuse what a password with an unescaped / or @ makes of an address: parts of it would pass for other things."""
    port, name = str(given.get("port") or ""), str(given.get("dbname") or "")
    if port.strip("0123456789,") or "@" in name:
        raise Invalid("The address of the database cannot be read.", _EXAMPLE)


def _bare(start: str, parts: list[str]) -> str:
    scheme, _, rest = start.partition("://")
    place, slash, name = rest.partition("/")
    user, at, host = place.rpartition("@")
    query = "&".join(part for part in parts if part.partition("=")[0] not in _SECRETS)
    return f"{scheme}://{user.partition(':')[0]}{at}{host}{slash}{name}{'?' + query if query else ''}"


def _shown(given: Mapping[str, object], tenant: str) -> str:
    user, host, port, name = (str(given.get(key) or "") for key in ("user", "host", "port", "dbname"))
    place = f"{host}:{port}" if port and "," not in host and not host.startswith("/") else host
    return f"postgresql://{user + '@' if user else ''}{place}/{name}?tenant={tenant}"
