"""Who may come in over the network, and how far: a grant is what the store knows of a token.

A token is `hfm_<tenant>_<id>_<secret>`: the tenant in base32, so that a server can look inside that tenant before it
knows whose token it is. The store keeps the SHA-256 of the secret alone. A slow hash is for what people choose, which
can be guessed; a secret of 256 random bits cannot, however fast each guess is, and every request has to be checked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Protocol

import msgspec

from holdfast.errors import Invalid
from holdfast.model.times import iso, now_ms, utc_now

START = "hfm"
_ID_BYTES = 10
_SECRET_BYTES = 32
_LONGEST_TENANT = 1_300
"""Characters in base32 of the longest name that a tenant can have: 200 of up to four bytes each."""
_FORM = re.compile(rf"{START}_([a-z2-7]{{0,{_LONGEST_TENANT}}})_([a-z2-7]{{16}})_([\w-]{{43}})\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}\Z")
_SPAN = re.compile(r"([1-9][0-9]{0,4})([mhdwy])\Z")
_LAST = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 366 * 86_400}


class Grant(msgspec.Struct, frozen=True):
    """What one token allows. Times are ISO 8601; "" is never."""

    id: str
    name: str
    digest: str
    tenant: str = ""
    scope: str = ""
    """The one workspace, domain or repository that it is for; "" is the whole memory."""
    reads_only: bool = False
    created: str = ""
    expires: str = ""
    revoked: str = ""
    used: str = ""
    """The day on which it was used last."""

    @property
    def holds(self) -> bool:
        """Does it allow anything now?"""
        return not self.revoked and (not self.expires or utc_now() < self.expires)


class Token(msgspec.Struct, frozen=True):
    """A token as somebody sent it, in its parts."""

    tenant: str
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.id})"


class Grants(Protocol):
    """Where grants are kept. Looking for one that is not there costs what looking for any other does."""

    def find(self, tenant: str, identifier: str) -> Grant | None:
        """Return a grant of a tenant by its id."""
        ...

    def all(self) -> list[Grant]:
        """Return the grants of the tenant at hand, oldest first."""
        ...

    def add(self, grant: Grant) -> None:
        """Keep a new grant; AlreadyExists when one of its name holds."""
        ...

    def revoke(self, identifier: str) -> None:
        """Let a grant hold no longer."""
        ...

    def note_use(self, tenant: str, identifier: str) -> None:
        """Note that a grant was used today."""
        ...

    def check(self) -> None:
        """See that the store can be reached and is what this program knows; quickly, or raise why not."""
        ...

    def close(self) -> None: ...


def make(
    name: str, tenant: str = "", scope: str = "", *, reads_only: bool = False, expires: str = ""
) -> tuple[Grant, str]:
    """Make a grant and its token, which nobody can make again."""
    if not _NAME.match(name):
        raise Invalid(f"{name[:40]!r} is not a name for a token.", "Use up to 40 letters, digits, dots, - and _.")
    identifier = _base32(secrets.token_bytes(_ID_BYTES))
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    grant = Grant(
        identifier, name, digest(secret), tenant, scope, reads_only, created=utc_now(), expires=until(expires)
    )
    return grant, f"{START}_{_base32(tenant.encode())}_{identifier}_{secret}"


def read(text: str) -> Token | None:
    """Read a token; None for what is none."""
    found = _FORM.match(text)
    if not found:
        return None
    try:
        tenant = base64.b32decode(found[1].upper() + "=" * (-len(found[1]) % 8)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return Token(tenant, found[2], found[3])


def fits(token: Token, grant: Grant | None) -> bool:
    """Is this the token of a grant that holds? Takes the same time whether there is such a grant or not."""
    known = grant.digest if grant else _NOBODY
    same = hmac.compare_digest(digest(token.secret), known)
    return same and grant is not None and grant.holds


def digest(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def until(span: str) -> str:
    """Return when a span from now ends, such as 30d; "" never ends."""
    if not span:
        return ""
    found = _SPAN.match(span.strip())
    if not found:
        raise Invalid(f"{span[:20]!r} is not a span of time.", "Use a number and m, h, d, w or y, like 30d.")
    end = now_ms() + int(found[1]) * _SECONDS[found[2]] * 1000
    if end > _LAST:  # a year of five digits comes before this one where times are compared
        raise Invalid(f"{span[:20]!r} ends after the year 9999.", "Use a shorter one, or none: then it never ends.")
    return iso(end)


def named(grants: list[Grant], wanted: str) -> Grant:
    """Return the grant of this id or name; of several of a name, the one that holds."""
    found = [grant for grant in grants if wanted in (grant.id, grant.name)]
    if not found:
        known = ", ".join(grant.name for grant in grants if grant.holds) or "none"
        raise Invalid(f"There is no token {wanted[:60]!r}.", f"There are: {known}.")
    return next((grant for grant in found if grant.holds), found[-1])


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


_NOBODY = digest("")
