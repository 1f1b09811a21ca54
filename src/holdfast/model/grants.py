"""Tokens for the HTTP server, and grants: what the store records of a token.

A token is `hfm_<tenant>_<id>_<secret>`, with the tenant in base32, so that a server knows in which tenant to look it
up. The store keeps only the SHA-256 of the secret. Slow hashes protect passwords that can be guessed; a secret of 256
random bits cannot be guessed, and every request has to be checked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets

import msgspec

from holdfast.errors import Invalid, NotFound
from holdfast.model.patterns import regex
from holdfast.model.times import LAST_MS, iso, now_ms, utc_now

START = "hfm"
_LONGEST_TENANT = 1_300
"""The longest tenant name in base32: 200 characters of up to four bytes each."""
_FORM = regex(rf"{START}_([a-z2-7]{{0,{_LONGEST_TENANT}}})_([a-z2-7]{{16}})_([\w-]{{43}})\Z", re.ASCII)
_NAME = regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}\Z")
_SPAN = regex(r"([1-9][0-9]{0,4})([mhdwy])\Z")
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 366 * 86_400}


class Grant(msgspec.Struct, frozen=True):
    """The rights of one token. Times are ISO 8601; "" means never."""

    id: str
    name: str
    digest: str
    tenant: str = ""
    scope: str = ""
    """The only workspace, domain or repository that it may see; "" is the whole memory."""
    reads_only: bool = False
    created: str = ""
    expires: str = ""
    revoked: str = ""
    used: str = ""
    """The day of its last use."""

    @property
    def is_valid(self) -> bool:
        return not self.revoked and (not self.expires or utc_now() < self.expires)


class Token(msgspec.Struct, frozen=True):
    tenant: str
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"Token({self.id})"


def create(
    name: str, tenant: str = "", scope: str = "", *, reads_only: bool = False, expires: str = ""
) -> tuple[Grant, str]:
    """Create a grant and its token, which cannot be derived from the grant; `expires` is a span from now, like 30d."""
    if not _NAME.match(name):
        raise Invalid(f"{name[:40]!r} is not a name for a token.", "Use up to 40 letters, digits, dots, - and _.")
    end = ""
    if expires:
        found = _SPAN.match(expires.strip())
        if not found:
            raise Invalid(f"{expires[:20]!r} is not a span of time.", "Use a number and m, h, d, w or y, like 30d.")
        last = now_ms() + int(found[1]) * _SECONDS[found[2]] * 1000
        if last > LAST_MS:  # times are compared as text, which fails for years of five digits
            raise Invalid(
                f"{expires[:20]!r} ends after the year 9999.", "Use a shorter one, or none: then it never ends."
            )
        end = iso(last)
    identifier, secret = _base32(secrets.token_bytes(10)), secrets.token_urlsafe(32)
    grant = Grant(identifier, name, digest(secret), tenant, scope, reads_only, created=utc_now(), expires=end)
    return grant, f"{START}_{_base32(tenant.encode())}_{identifier}_{secret}"


def parse(text: str) -> Token | None:
    """Return the parts of a token, None if the text is not one."""
    found = _FORM.match(text)
    if not found:
        return None
    try:
        tenant = base64.b32decode(found[1].upper() + "=" * (-len(found[1]) % 8)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return Token(tenant, found[2], found[3])


def matches(token: Token, grant: Grant | None) -> bool:
    """Return whether a token belongs to a valid grant; it takes the same time without a grant."""
    same = hmac.compare_digest(digest(token.secret), grant.digest if grant else _NO_DIGEST)
    return same and grant is not None and grant.is_valid


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def by_name(grants: list[Grant], wanted: str) -> Grant:
    """Return the grant with this id or name; of several, the valid one."""
    found = [grant for grant in grants if wanted in (grant.id, grant.name)]
    if not found:
        known = ", ".join(grant.name for grant in grants if grant.is_valid) or "none"
        raise NotFound(f"There is no token {wanted[:60]!r}.", f"There are: {known}.")
    return next((grant for grant in found if grant.is_valid), found[-1])


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


_NO_DIGEST = digest("")
