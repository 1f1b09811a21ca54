"""Watch the files of a root in a thread, for long-lived processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from holdfast.model.times import now_ms
from holdfast.storage.files.refresh import SUFFIXES

_LAG_MS = 100
Tell = Callable[[list[str], set[str]], None]
"""Receives the files that changed, and the folders below which every file must be checked; "" means all of them."""


class Watcher:
    """Reports changed paths below some folders of a root about 50 ms after the change.

    `alive` turns False when the system stops reporting.
    """

    def __init__(self, root: str, folders: tuple[str, ...], tell: Tell) -> None:
        self._folders = [os.path.join(root, folder) for folder in folders]
        for folder in self._folders:
            os.makedirs(folder, exist_ok=True)
        self.alive = True
        self.told_ms = now_ms()
        """Every change up to this time was reported."""
        self._root = root
        self._tell = tell
        self._stop = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-watch", daemon=True)
        self._thread.start()
        self._started.wait(5)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(5)
        self.alive = False

    def _run(self) -> None:
        import watchfiles  # loads a native library that only long-lived processes need

        try:
            changes = watchfiles.watch(
                *self._folders, stop_event=self._stop, debounce=50, step=10, rust_timeout=200,
                yield_on_timeout=True, watch_filter=None, raise_interrupt=False,
            )  # fmt: skip
            for found in changes:
                self._started.set()
                self.told_ms = now_ms() - _LAG_MS
                changed = [path for _, path in found if not os.path.basename(path).startswith(".")]
                files = [path for path in changed if path.endswith(SUFFIXES)]
                folders = {
                    os.path.relpath(path, self._root)
                    for path in changed
                    if not path.endswith(SUFFIXES) and (os.path.isdir(path) or not os.path.lexists(path))
                }
                if files or folders:
                    self._tell([os.path.relpath(path, self._root) for path in files], folders)
        except (OSError, RuntimeError):
            pass  # too many watches, or none available: every search checks all files again
        finally:
            self.alive = False
            self._started.set()
