"""Values: large texts of log entries, one file each. The one place that reads and writes these files.

The name of a file is a hash of its text, so a value never changes and is stored once. A large one is compressed
(`.txt.gz`); an encrypted one (`.txt.enc`) has a name that depends on the key as well. The first bytes of a file say
what it is. Values of earlier versions are plain text.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib

from holdfast.errors import AlreadyExists, Damaged, OverBudget
from holdfast.formats import encryption
from holdfast.model.records import version_of
from holdfast.model.settings import Settings
from holdfast.storage.tree import ABSENT, Tree

SUFFIXES = (".txt", ".txt.gz", ".txt.enc", ".json")
_REF = re.compile(r"(?:sessions/[^/]+/)?values/[0-9a-f]{32}\.(?:txt(?:\.gz|\.enc)?|json)")
_GZIP = b"\x1f\x8b"
"""No UTF-8 text begins like this."""
_LEVEL = 3
_MOST = 256 << 20


def is_ref(path: str, memory: str) -> bool:
    """Is this the path of a value? `memory` is the folder of the memory."""
    return path.startswith(f"{memory}/") and bool(_REF.fullmatch(path, len(memory) + 1))


def write(tree: Tree, folder: str, text: str, settings: Settings) -> str:
    """Store a text in a file below a folder, unless it is there already; return the path."""
    data = text.encode("utf-8")
    name, suffix, stored = version_of(data), ".txt", data
    if 0 < settings.limits.compress_bytes <= len(data):
        packed = gzip.compress(data, _LEVEL, mtime=0)
        suffix, stored = (".txt.gz", packed) if len(packed) < len(data) else (suffix, data)
    if "values" in settings.encryption.what:
        name, suffix = encryption.digest(data, b"name").hex(), ".txt.enc"
        stored = b"".join(encryption.encrypt([stored], encryption.digest(stored, b"salt")))
    ref = f"{folder}/values/{name}{suffix}"
    with contextlib.suppress(AlreadyExists):
        tree.write(ref, stored, expect=ABSENT)
    return ref


def read(tree: Tree, ref: str, limit: int = 0) -> str:
    """Return the text of a value; OverBudget when it is longer than `limit` bytes, Locked without its key."""
    return unpack(tree.read(ref, limit).data, ref, limit).decode("utf-8", "replace")


def unpack(data: bytes, ref: str, limit: int = 0) -> bytes:
    """Return the text in the bytes of a file."""
    if data.startswith(encryption.MAGIC):
        data = b"".join(encryption.decrypt([data], ref))
    if not data.startswith(_GZIP):
        return data
    most, packed = limit or _MOST, zlib.decompressobj(31)
    try:
        text = packed.decompress(data, most + 1)
    except zlib.error:
        raise Damaged(f"{ref} is compressed, and damaged.", "Use another copy of it.") from None
    if len(text) > most:
        raise OverBudget(f"{ref} has more than {most:,} bytes; that is the limit.", "Raise limits.document_bytes.")
    if not packed.eof:
        raise Damaged(f"{ref} is compressed, and cut off.", "Use another copy of it.")
    return text
