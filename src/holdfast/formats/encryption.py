"""Encryption of values and backups, with the owner's key in `HOLDFAST_ENCRYPTION_KEY`.

The variable has one key, or several with spaces between them: the first one encrypts, all of them decrypt. A file is
MAGIC, 8 bytes that identify the key, 16 bytes of salt, then blocks of 64 KiB, each encrypted with AES-256-GCM. The key
of a file is derived from the salt; the nonce of a block is its number and whether it is the last one, so that no block
can be moved, removed or cut off unnoticed.
"""

from __future__ import annotations

import binascii
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.errors import Damaged, Unavailable

VARIABLE = "HOLDFAST_ENCRYPTION_KEY"
MAGIC = b"\x89holdfast-encrypted-1\n"
"""No UTF-8 text and no gzip file begins like this."""
_BLOCK, _TAG, _KEY, _ID, _SALT = 1 << 16, 16, 32, 8, 16
_MAKE = "To make a new key: openssl rand -base64 32"
_HEAD = len(MAGIC) + _ID + _SALT


class Locked(Unavailable):
    """The key or the library is missing, or the key is a different one."""


def encrypt(chunks: Iterable[bytes], salt: bytes = b"") -> Iterator[bytes]:
    """Yield these bytes encrypted. The salt is random unless it is the `digest` of the bytes."""
    key, salt = _keys()[0], salt or os.urandom(_SALT)
    cipher, _ = _cipher(key, salt)
    yield MAGIC + _derived(key, b"id", _ID) + salt
    for number, (block, last) in enumerate(_blocks(chunks, _BLOCK)):
        yield cipher.encrypt(_nonce(number, last), block, None)


def decrypt(chunks: Iterable[bytes], what: str) -> Iterator[bytes]:
    """Yield the decrypted bytes; Locked without the key, Damaged if the data was changed."""
    source, head = iter(chunks), b""
    while len(head) < _HEAD and (chunk := next(source, b"")):
        head += chunk
    identity, salt = head[len(MAGIC) : _HEAD - _SALT], head[_HEAD - _SALT : _HEAD]
    key = next((key for key in _keys(what) if _derived(key, b"id", _ID) == identity), None)
    if key is None:
        raise Locked(f"{what} was encrypted with another key than the one in {VARIABLE}.", "Set that key.")
    cipher, invalid = _cipher(key, salt)
    for number, (block, last) in enumerate(_blocks(itertools.chain([head[_HEAD:]], source), _BLOCK + _TAG)):
        try:
            yield cipher.decrypt(_nonce(number, last), block, None)
        except invalid:
            raise Damaged(f"{what} is encrypted, and damaged or cut off.", "Use another copy of it.") from None


def digest(data: bytes, purpose: bytes) -> bytes:
    """Return 16 bytes that depend on the data and on the key, and reveal neither."""
    return hashlib.blake2b(data, key=_derived(_keys()[0], purpose, _KEY), digest_size=_SALT).digest()


def _keys(what: str = "") -> list[bytes]:
    given = os.environ.get(VARIABLE, "").split()
    if not given:
        if what:
            raise Locked(f"{what} is encrypted, and {VARIABLE} is not set.", "Set it to the key of its owner.")
        raise Locked(f"Encryption needs a key, and {VARIABLE} is not set.", _MAKE)
    try:
        keys = [binascii.a2b_base64(key, strict_mode=True) for key in given]
    except (binascii.Error, ValueError):
        keys = []
    if not keys or any(len(key) != _KEY for key in keys):
        raise Locked(f"{VARIABLE} is not 32 bytes in base64.", _MAKE)
    return keys


def _derived(key: bytes, purpose: bytes, size: int) -> bytes:
    return hashlib.blake2b(purpose, key=key, digest_size=size).digest()


def _cipher(key: bytes, salt: bytes) -> tuple[Any, type[Exception]]:
    """Return the cipher of one file, and the error for a changed block."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise Locked("Encryption needs a library.", "Run: pip install 'holdfast[encryption]'") from None
    return AESGCM(_derived(key, b"file" + salt, _KEY)), InvalidTag


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _blocks(chunks: Iterable[bytes], size: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the bytes in blocks of this size, and whether a block is the last one, which may be shorter."""
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        while len(rest) > size:
            yield bytes(rest[:size]), False
            del rest[:size]
    yield bytes(rest), True
