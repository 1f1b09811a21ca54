"""Reading and writing a client's configuration file.

A write keeps the text of before beside the file, replaces the file in one step and keeps its mode. A link is kept:
what is changed is the file that it leads to.
"""

from __future__ import annotations

import contextlib
import os
import time

from holdfast.errors import Conflict, Invalid, Unavailable

_MARK = ".before-holdfast-"


def read(path: str) -> str | None:
    """Return the text of a file, None when it is not there."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not UTF-8.", "Save it as UTF-8.") from None
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}.", "Check what it is, and its permissions.") from None


def backups(path: str) -> list[str]:
    """Return the texts that were kept of a file, newest first."""
    folder, name = os.path.split(os.path.realpath(path))
    try:
        kept = sorted((each for each in os.listdir(folder) if each.startswith(name + _MARK)), reverse=True)
    except OSError:
        return []
    return [text for each in kept if (text := read(os.path.join(folder, each))) is not None]


def replace(path: str, old: str | None, new: str | None) -> str:
    """Write a text in place of `old` (None: no file), or remove the file; return where the old text is kept now."""
    target = os.path.realpath(path)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if read(target) != old:
            raise Conflict(f"{path} was changed at the same moment; nothing was written.", "Try again.")
        mode = None if old is None else os.stat(target).st_mode & 0o7777
        if new is None:
            os.unlink(target)
            return ""
        kept = "" if old is None else _create(f"{target}{_MARK}{time.strftime('%Y%m%dT%H%M%S')}", old, mode)
        _put(target, new, mode)
        return kept
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}; it was not changed.", "Check its permissions.") from None


def _put(target: str, text: str, mode: int | None) -> None:
    temporary = _create(f"{target}.holdfast-tmp-{os.getpid()}", text, mode)
    try:
        os.replace(temporary, target)
    except OSError:
        _remove(temporary)
        raise


def _create(path: str, text: str, mode: int | None) -> str:
    """Write a new file, durably; when the name is taken, take one beside it."""
    taken, number = path, 1
    while True:
        try:
            fd = os.open(taken, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600)
            break
        except FileExistsError:
            number += 1
            taken = f"{path}-{number}"
    try:
        with open(fd, "w", encoding="utf-8", newline="") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            file.write(text)
            file.flush()
            os.fsync(fd)
    except OSError:
        _remove(taken)
        raise
    return taken


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
