"""Archives of plain files: `tar`, a member after the other, with bounded memory.

Writing gives the header of a member; reading takes nothing but regular files and folders, and no name that is longer
than a path may be. Links, devices and whatever else an archive can hold are refused, not passed over: an archive that
has them was not made here.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Protocol

from holdfast.errors import Damaged, Invalid

_BLOCK = 512
_CHUNK = 1 << 20
_LONGEST_NAME = 8192
_FILE, _OLD_FILE, _FOLDER, _LONG_NAME = b"0", b"\0", b"5", b"L"
END = bytes(2 * _BLOCK)


class Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


def header(name: str, size: int, mtime: int) -> bytes:
    """Return what stands before the bytes of a file; `mtime` is in seconds."""
    told = tarfile.TarInfo(name)
    told.size, told.mtime, told.mode = size, mtime, 0o644
    return told.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """Return what stands behind the bytes of a file."""
    return bytes(-size % _BLOCK)


class Reader:
    """Reads an archive from its start: each member's bytes must be taken before the next one is asked for."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._left = 0
        self._padding = 0

    def members(self) -> Iterator[tuple[str, int]]:
        """Yield name and size of each regular file."""
        name = ""
        while block := self._block():
            kind, size = block[156:157], _size(block[124:136])
            if kind == _LONG_NAME:
                name = self._long_name(size)
                continue
            here = name or _name(block)
            name = ""
            if kind == _FOLDER and not size:
                continue
            if kind not in (_FILE, _OLD_FILE):
                raise Invalid(
                    f"{here[:200]!r} in the archive is no regular file: links, devices and the like are refused.",
                    "Use an archive that holdfast backup made.",
                )
            self._left, self._padding = size, -size % _BLOCK
            yield here, size
            for _ in self.chunks():
                pass
            self._exactly(self._padding)
        while rest := self._source.read(_CHUNK):  # to the end, so that a checksum behind all of it is looked at
            if rest.strip(b"\0"):
                raise Invalid("The archive goes on behind its end.", "Use an archive that holdfast backup made.")

    def chunks(self) -> Iterator[bytes]:
        """Yield what is left of the bytes of the member at hand."""
        while self._left:
            chunk = self._source.read(min(self._left, _CHUNK))
            if not chunk:
                raise _cut_off()
            self._left -= len(chunk)
            yield chunk

    def _block(self) -> bytes:
        """Return the next header, nothing at the end."""
        block = self._exactly(_BLOCK)
        if not block.strip(b"\0"):
            return b""
        told, made = _size(block[148:156]), sum(block) - sum(block[148:156]) + 8 * 32
        if told != made:
            raise Damaged("The archive is damaged: a header has a wrong checksum.", "Use another backup.")
        return block

    def _long_name(self, size: int) -> str:
        if size > _LONGEST_NAME:
            raise Invalid("A name in the archive is longer than a path can be.", "It is no backup.")
        data = self._exactly(size + -size % _BLOCK)[:size]
        return _text(data)

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self._source.read(size)
            if not part:
                raise _cut_off()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _name(block: bytes) -> str:
    name = _text(block[:100])
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(data: bytes) -> str:
    try:
        return data.split(b"\0", 1)[0].decode("utf-8")
    except UnicodeDecodeError:
        raise Invalid("A name in the archive is not UTF-8.", "It is no backup.") from None


def _size(field: bytes) -> int:
    """Read a number of a header: octal digits, or bytes where the number is large."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b"\0 ") or b"0"
    if not set(digits) <= set(b"01234567"):
        raise Damaged("The archive is damaged: a header has no size.", "Use another backup.")
    return int(digits, 8)


def _cut_off() -> Damaged:
    return Damaged("The archive is cut off.", "Use another backup.")
