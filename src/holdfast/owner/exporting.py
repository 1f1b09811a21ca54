"""A memory as plain files, wherever it is kept: in a folder that is new or empty, and only when all of it is there.

It is written to a folder beside the place first, read as a memory would be and proved; then it gets its name. Logs come
before what their lines refer to and the account of writes comes last, as in a backup. The index and the notes of live
runs are left out, and so is what is remembered of moves.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import msgspec

from holdfast.core import Core
from holdfast.errors import NotFound, Unavailable
from holdfast.formats import jsonl
from holdfast.model import settings
from holdfast.model.records import Problem
from holdfast.model.settings import Paths
from holdfast.model.times import utc_now
from holdfast.owner import agreeing, backing, restoring, unfinished
from holdfast.owner.restoring import Restored
from holdfast.storage.refresh import Progress
from holdfast.storage.tree import Stamp, Vault


def export(memory: Core, target: str, progress: Progress | None = None) -> Restored:
    """Write all files of a memory to a folder, and prove that they are a memory."""
    from holdfast.roots import open_folder  # which knows the engines, and everything below

    made_at = utc_now()
    folder, name = restoring.place(target)
    backing.check_outside(memory.vault.location, os.path.join(folder, name))
    parent = open_folder(folder)
    try:
        _check_something(memory)
        unfinished.sweep(folder)
        with unfinished.made(parent) as made:
            there = open_folder(made.location)
            try:
                source = _Source(memory, there, progress)
                source.copy()
            finally:
                there.close()
            _complete(made.location, memory)
            records, damage = restoring.proved(made.location)
            parent.settle()
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(os.path.join(folder, name))  # it was empty, or this refuses
            made.offer(name)
    except OSError as error:
        raise Unavailable(f"{target} was not written: {error.strerror}.", "Nothing was left there.") from None
    finally:
        parent.close()
    damage = [*source.left_out, *damage]
    return Restored(os.path.join(folder, name), source.files, source.bytes, records, made_at, damage)


def _check_something(memory: Core) -> None:
    """Refuse to give nothing: a tenant whose name was misspelt looks like one without a file."""
    vault = memory.vault
    if not any(map(vault.stat, backing.ROOT_FILES)) and not backing.every_file(vault, memory.settings.paths, []):
        raise NotFound(f"There is nothing at {memory.root}.", "Look at the address, and at the tenant in it.")


class _Source:
    """The files of a memory, each copied once."""

    def __init__(self, memory: Core, there: Vault, progress: Progress | None) -> None:
        self._vault, self._paths, self._there, self._progress = memory.vault, memory.settings.paths, there, progress
        self.left_out: list[Problem] = []
        self.files = self.bytes = 0

    def copy(self) -> None:
        """Copy them in the order in which they refer to each other; what came meanwhile may be referred to."""
        done: set[str] = set()
        writes, moves = f"{self._paths.memory}/writes/", f"{self._paths.memory}/{agreeing.FOLDER}/"
        for turn in range(3):
            found = self._listed([] if turn else self.left_out)
            for path, stamp in found.items():
                log, account = path.endswith(".jsonl"), path.startswith(writes)
                if path in done or path.startswith(moves) or (2 if log and account else 0 if log else 1) != turn:
                    continue
                done.add(path)
                with contextlib.suppress(NotFound):  # removed meanwhile
                    self._there.create(path, self._chunks(path), mtime=stamp.mtime, durable=False)
                    self.files += 1
                if self._progress:
                    self._progress(len(done), max(len(found), len(done)))

    def _listed(self, left_out: list[Problem]) -> dict[str, Stamp]:
        stamps = {name: stamp for name in backing.ROOT_FILES if (stamp := self._vault.stat(name))}
        return stamps | backing.every_file(self._vault, self._paths, left_out)

    def _chunks(self, path: str) -> Iterator[bytes]:
        for chunk in self._lines(path) if path.endswith(".jsonl") else (self._vault.read(path).data,):
            self.bytes += len(chunk)
            yield chunk

    def _lines(self, path: str) -> Iterator[bytes]:
        for line in self._vault.scan(path):
            if line.cut:
                self.left_out.append(Problem(path, f"a line at byte {line.offset:,} is longer than lines may be"))
            elif line.whole:
                yield line.data + b"\n"
            elif not isinstance(jsonl.parse(line.data), str):
                yield line.data


def _complete(location: str, memory: Core) -> None:
    """Add what makes a folder a root, where the memory has none of it: settings, and folders without files."""
    from holdfast.roots import make_root

    paths = memory.settings.paths
    if paths != Paths() and not os.path.exists(os.path.join(location, settings.FILE)):
        told = [
            f"{name} = {msgspec.json.encode(value).decode()}" for name, value in msgspec.structs.asdict(paths).items()
        ]
        with open(os.path.join(location, settings.FILE), "x", encoding="utf-8") as file:
            file.write("\n".join((f"format = {settings.FORMAT}", "", "[paths]", *told, "")))
    make_root(location)
    for scope in backing.scopes(memory.vault, paths.workspaces):
        os.makedirs(os.path.join(location, scope), exist_ok=True)
