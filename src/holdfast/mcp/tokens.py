"""The tokens that the HTTP door asks for: one that may do everything, and one that may only read.

Each lies in a file that only its owner can read, outside the memory root, which may be shared. A token is made at
first use and stays; removing its file makes a new one at the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat

from holdfast.errors import Damaged, Unavailable
from holdfast.roots import driver, is_address

READ_ONLY = ".read"
"""What the name of the file ends with that holds the token which may only read."""


def token_for(root: str, *, read_only: bool = False) -> tuple[str, str]:
    """Return a token of a memory root and the file that holds it, made at first use."""
    path = path_for(root) + (READ_ONLY if read_only else "")
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            _make(path)
        return _read(path), path
    except OSError as error:
        raise Unavailable(f"The token file {path}: {error.strerror}.", "Check its permissions.") from None


def path_for(root: str) -> str:
    """Return the file of the token of a memory root, or of the address of a database, however that is logged in to."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    name = hashlib.sha256(os.fsencode(_location(root))).hexdigest()[:16]
    return os.path.join(config, "holdfast", "tokens", name)


def _location(root: str) -> str:
    if not is_address(root):
        return os.path.realpath(os.path.expanduser(root))
    with driver():
        from holdfast.storage.postgres.addresses import parse
    return parse(root).shown


def _make(path: str) -> None:
    """Write a new token under its final name, whole or not at all; an existing one stays."""
    if os.path.lexists(path):
        return
    unfinished = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, secrets.token_urlsafe(32).encode() + b"\n")
        os.fsync(fd)
        os.link(unfinished, path)
    finally:
        os.close(fd)
        os.unlink(unfinished)


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise Unavailable(f"The token file {path} is not a file of yours.", "Remove it, and start again.")
        if found.st_mode & 0o077:
            raise Unavailable(f"The token file {path} can be read by others.", f"Run: chmod 600 {path}")
        token = os.read(fd, 1000).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    if len(token) < 16 or not token.isascii():
        raise Damaged(f"The token file {path} holds no token.", "Remove it, and start again.")
    return token
