"""The files of runs: one per run, claimed by the process that the run lives in, removed when the run ends.

A claim needs no open file of its own: a server may have any number of runs.
An unclaimed file was left by a process that is gone; it is removed when a memory is opened and when its session's runs
are used. Files are claimed and removed only while their log is locked, so that a sweep is not mistaken for a live run
and nothing is added to a file that is about to be removed. A process may use a run that another process has claimed;
it claims the file once the other process is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.model import names
from holdfast.model.kinds import session_folder
from holdfast.storage.store import Store

FOLDER = "runs"


class Runs:
    """The runs that this process takes part in."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions = f"{store.layout.memory}/sessions"
        self._claimed: set[str] = set()
        self._shared: set[str] = set()
        """Runs that another process has claimed."""

    def path(self, session: str, run: str) -> str:
        return f"{self._sessions}/{session_folder(session)}/{FOLDER}/{names.unique(run, 'run')}.jsonl"

    def join(self, path: str) -> None:
        """Take part in a run before its file is read; remove first what dead runs of the session left."""
        if path in self._shared or (path in self._claimed and self._store.exists(path)):
            return
        self.sweep(path.rpartition("/")[0])
        if self._store.exists(path):
            self._shared.add(path)

    def claim(self, path: str) -> None:
        """Claim the file of a run, so that no other process removes it. Its log must be locked."""
        if self._store.claim(path):
            self._claimed.add(path)
            self._shared.discard(path)
        else:
            self._claimed.discard(path)
            self._shared.add(path)

    def end(self, path: str, keep: Callable[[], bool] = lambda: False) -> bool:
        """Remove the file of a run, whichever process uses it; not if `keep`, called with its log locked, says so."""
        gone = self._store.discard(path, keep)
        if gone:
            self._leave(path)
        return gone

    def sweep_all(self) -> None:
        """Remove what dead runs left in all sessions; what cannot be removed now is left to the next sweep."""
        for name in self._store.tree.folders(self._sessions):
            with contextlib.suppress(HoldfastError):
                self.sweep(f"{self._sessions}/{name}/{FOLDER}")

    def sweep(self, folder: str) -> None:
        """Remove what dead runs left in the folder of a session's runs."""
        for path, _ in self._store.tree.walk(folder, (".jsonl",), lambda _path, _why: None):
            if path not in self._claimed and path not in self._shared:
                self._store.discard(path, dead=True)

    def close(self, run: str = "") -> None:
        """End the runs that live in this process, or the one of this name in any session."""
        name = f"/{names.unique(run, 'run')}.jsonl" if run else ""
        for path in [path for path in list(self._claimed) if path.endswith(name)]:
            with contextlib.suppress(HoldfastError):
                self.end(path)
            self._leave(path)

    def _leave(self, path: str) -> None:
        self._shared.discard(path)
        self._claimed.discard(path)
        self._store.release(path)
