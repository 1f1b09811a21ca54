"""Tasks by their logs: what each log says is kept in this process and read on, so that a change costs little.

A change is decided while the log is held, so of two who claim at the same moment the second sees what the first did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.formats.graphs import Graph
from holdfast.formats.tasks import Line, Outlook, Task, View, Wanted
from holdfast.memories._following import Follower
from holdfast.model.kinds import KINDS
from holdfast.model.layout import Places
from holdfast.model.times import now_ms
from holdfast.storage.engine import Write
from holdfast.storage.tree import LogEnd, Vault


class LogQueue:
    """The tasks of one vault, of any engine. Safe to use from several threads and processes."""

    def __init__(self, vault: Vault, places: Places) -> None:
        self._vault = vault
        self._places = places
        self._follower: Follower[Graph] = Follower(vault)
        self.warnings: list[str] = []
        """What could not be read so far."""

    def now(self) -> int:
        return now_ms()

    def change(self, path: str, decide: Callable[[View], list[Line]], write: Write) -> list[Line]:
        def make(_end: LogEnd) -> list[Line]:
            return self._follower.ask(path, Graph, self.warnings, lambda graph: decide(_Now(graph, now_ms())))

        if self._vault.stat(path) is None and not decide(_Now(Graph(), now_ms())):
            return []  # looking for what is not there makes no log
        return write(path, make)

    def look(self, path: str, ids: Iterable[str] | None = None) -> dict[str, Task]:
        return self._follower.ask(
            path, Graph, self.warnings, lambda graph: graph.every() if ids is None else graph.get(ids)
        )

    def outlook(self, path: str, wanted: Wanted) -> Outlook:
        return self._follower.ask(path, Graph, self.warnings, lambda graph: graph.outlook(wanted, now_ms()))

    def find(self, identifier: str) -> str:
        for top in self._places.below((KINDS["task"].name,), ""):
            for path, _ in self._vault.walk(top, (".jsonl",), lambda _path, _why: None):
                place = self._places.classify(path)
                if place and place.kind.name == "task" and self.look(path, [identifier]):
                    return path
        return ""


class _Now:
    """A graph at one moment."""

    def __init__(self, graph: Graph, now: int) -> None:
        self.now = now
        self._graph = graph

    def get(self, ids: Iterable[str]) -> dict[str, Task]:
        return self._graph.get(ids)

    def best(self, wanted: Wanted) -> Task | None:
        return self._graph.best(wanted, self.now)

    def under(self, op_id: str) -> list[tuple[str, str, str]]:
        return self._graph.ops.get(op_id, [])
