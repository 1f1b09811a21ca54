"""The files of runs: one per run, claimed by the process that the run lives in, removed when the run ends.

An unclaimed file was left by a process that is gone; it is removed when a memory is opened and when its session's runs
are used. Files are claimed and removed only while their log is locked, so that a sweep is not mistaken for a live run
and nothing is added to a file that is about to be removed. A process may use a run that another process has claimed;
it claims the file once the other process is gone.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable

from holdfast.errors import HoldfastError, NotFound
from holdfast.model import names
from holdfast.model.layout import session_folder
from holdfast.storage.folds import copies
from holdfast.storage.tree import LogEnd, Tree

_FOLDER = "runs"


class Runs:
    """The runs that this process takes part in. `memory` is the folder of all sessions' logs."""

    def __init__(self, tree: Tree, memory: str) -> None:
        self._tree = tree
        self._sessions = f"{memory}/sessions"
        self._claims: dict[str, tuple[int, Callable[[], None]]] = {}
        """The inode of each claimed file, since the path may name another file by now, and how to release it."""
        self._shared: set[str] = set()
        """Runs that another process has claimed."""
        self._lock = threading.Lock()

    def path(self, session: str, run: str) -> str:
        return f"{self._sessions}/{session_folder(session)}/{_FOLDER}/{names.unique(run, 'run')}.jsonl"

    def join(self, path: str) -> None:
        """Take part in a run before its file is read; remove first what dead runs of the session left."""
        stamp = self._tree.stat(path)
        claim = self._claims.get(path)
        if path in self._shared or (claim and stamp and claim[0] == stamp.inode):
            return
        self.sweep(path.rpartition("/")[0])
        if self._tree.stat(path):
            self._shared.add(path)

    def claim(self, path: str) -> None:
        """Hold the file of a run, unless that is done, so that no other process removes it. Its log must be locked."""
        stamp = self._tree.stat(path)
        with self._lock:
            claim = self._claims.get(path)
            if stamp is None or (claim and claim[0] == stamp.inode):
                return
            if claim:  # of a file that was removed since
                del self._claims[path]
                claim[1]()
            if release := self._tree.hold(path):
                self._claims[path] = (stamp.inode, release)
                self._shared.discard(path)
            else:
                self._shared.add(path)

    def end(self, path: str, keep: Callable[[], bool] = lambda: False) -> bool:
        """Remove the file of a run, whichever process uses it; not if `keep`, called with its log locked, says so."""
        kept = False

        def remove(_end: LogEnd) -> bytes:
            nonlocal kept
            kept = keep()
            if not kept:
                self._remove(path)
            return b""

        if self._tree.stat(path):
            self._tree.append(path, remove)
        if not kept:
            self._release(path)
        return not kept

    def sweep_all(self) -> None:
        """Remove what dead runs left in all sessions; what cannot be removed now is left to the next sweep."""
        for name in self._tree.folders(self._sessions):
            with contextlib.suppress(HoldfastError):
                self.sweep(f"{self._sessions}/{name}/{_FOLDER}")

    def sweep(self, folder: str) -> None:
        """Remove what dead runs left in the folder of a session's runs."""

        def remove_dead(_end: LogEnd, path: str) -> bytes:
            if release := self._tree.hold(path):
                try:
                    self._remove(path)
                finally:
                    release()
            return b""

        if not self._tree.folder_stamp(folder):
            return
        for path, _ in self._tree.walk(folder, (".jsonl",), lambda _path, _why: None):
            if path not in self._claims and path not in self._shared:
                self._tree.append(path, functools.partial(remove_dead, path=path))

    def close(self, run: str = "") -> None:
        """End the runs that live in this process, or the one of this name in any session."""
        name = f"/{names.unique(run, 'run')}.jsonl" if run else ""
        for path in [path for path in self._claims if path.endswith(name)]:
            with contextlib.suppress(HoldfastError):
                self.end(path)
            self._release(path)

    def _remove(self, path: str) -> None:
        for copy in list(copies(self._tree, path)):
            self._tree.remove(copy)
        with contextlib.suppress(NotFound):
            self._tree.remove(path)

    def _release(self, path: str) -> None:
        with self._lock:
            self._shared.discard(path)
            claim = self._claims.pop(path, None)
        if claim:
            claim[1]()
