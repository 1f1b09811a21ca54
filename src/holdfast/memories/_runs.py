"""The files of runs: one per run, claimed by the process that the run lives in, removed when it ends.

A file that nobody claims was left by a process that is gone, and whoever meets it removes it. Files are claimed and
removed only while their log is held: so nobody takes a sweeper for a living run, and nothing is added to a file that
is about to go. Where another process has claimed a run, this one uses its file as well, and claims it once that one is
gone.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable

import msgspec

from holdfast.errors import HoldfastError, NotFound
from holdfast.memories._following import copies
from holdfast.model import names
from holdfast.model.layout import session_folder
from holdfast.storage.tree import LogEnd, Vault

_FOLDER = "runs"


class Claim(msgspec.Struct, frozen=True):
    inode: int
    """Of the file that was claimed; the path may name another one by now."""
    release: Callable[[], None]


class Runs:
    """The runs that this process takes part in. `memory` is the folder of all that was said and done."""

    def __init__(self, vault: Vault, memory: str) -> None:
        self._vault = vault
        self._sessions = f"{memory}/sessions"
        self._claims: dict[str, Claim] = {}
        self._shared: set[str] = set()
        self._lock = threading.Lock()

    def path(self, session: str, run: str) -> str:
        """Return the file of a run."""
        return f"{self._sessions}/{session_folder(session)}/{_FOLDER}/{names.unique(run, 'run')}.jsonl"

    def join(self, path: str) -> None:
        """Take part in a run, before its file is read: what dead runs of the session left is removed first."""
        stamp = self._vault.stat(path)
        claim = self._claims.get(path)
        if path in self._shared or (claim and stamp and claim.inode == stamp.inode):
            return
        self.sweep(path.rpartition("/")[0])
        if self._vault.stat(path):  # somebody lives in it
            self._shared.add(path)

    def claim(self, path: str) -> None:
        """Claim the file of a run while its log is held, so that nobody removes it; nothing where that is done."""
        stamp = self._vault.stat(path)
        with self._lock:
            claim = self._claims.get(path)
            if stamp is None or (claim and claim.inode == stamp.inode):
                return
            if claim:  # of a file that somebody removed
                del self._claims[path]
                claim.release()
            release = self._vault.hold(path)
            if release:
                self._claims[path] = Claim(stamp.inode, release)
                self._shared.discard(path)
            else:
                self._shared.add(path)

    def end(self, path: str, last_look: Callable[[], None] = lambda: None) -> None:
        """Remove the file of a run, whoever uses it; `last_look` happens while nothing can be added, and may refuse."""

        def remove(_end: LogEnd) -> bytes:
            last_look()
            self._remove(path)
            return b""

        if self._vault.stat(path):
            self._vault.append(path, remove)
        self._forget(path)

    def sweep_all(self) -> None:
        """Remove what dead runs left in any session; what cannot be removed now is left to the next look."""
        for name in self._vault.folders(self._sessions):
            with contextlib.suppress(HoldfastError):
                self.sweep(f"{self._sessions}/{name}/{_FOLDER}")

    def sweep(self, folder: str) -> None:
        """Remove what dead runs left in the folder of a session's runs."""
        if not self._vault.folder_stamp(folder):
            return
        for path, _ in self._vault.walk(folder, (".jsonl",), lambda _path, _why: None):
            if path not in self._claims and path not in self._shared:
                self._vault.append(path, functools.partial(self._remove_dead, path))

    def close(self, run: str = "") -> None:
        """End the runs that live here, or the one of this name in any session; those of other processes go on."""
        name = f"/{names.unique(run, 'run')}.jsonl" if run else ""
        for path in [path for path in self._claims if path.endswith(name)]:
            with contextlib.suppress(HoldfastError):
                self.end(path)
            self._forget(path)

    def _remove_dead(self, path: str, _end: LogEnd) -> bytes:
        release = self._vault.hold(path)
        if release:
            try:
                self._remove(path)
            finally:
                release()
        return b""

    def _remove(self, path: str) -> None:
        for copy in list(copies(self._vault, path)):
            self._vault.remove(copy)
        with contextlib.suppress(NotFound):
            self._vault.remove(path)

    def _forget(self, path: str) -> None:
        with self._lock:
            self._shared.discard(path)
            claim = self._claims.pop(path, None)
        if claim:
            claim.release()
