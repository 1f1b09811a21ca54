"""The tables of tasks: rows to claim from, what waits for what, op_ids, and how far each log is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, LiteralString

import msgspec

from holdfast.formats import tasks as forms
from holdfast.formats.graphs import Graph
from holdfast.formats.tasks import CREATED, Line, Outlook, Task, Wanted
from holdfast.model.times import parse_ms
from holdfast.storage.postgres.database import Transaction

_CLOCK: LiteralString = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_CURRENT: LiteralString = """
SELECT files.inode, files.size, task_logs.inode, task_logs.size
FROM (SELECT inode, size FROM holdfast.files WHERE tenant = %(tenant)s AND path = %(path)s AND size > 0) AS files
FULL JOIN (SELECT inode, size FROM holdfast.task_logs WHERE tenant = %(tenant)s AND path = %(path)s) AS task_logs
    ON true
"""
_NOTE: LiteralString = """
INSERT INTO holdfast.task_logs (tenant, path, inode, size)
SELECT tenant, path, inode, size FROM holdfast.files WHERE tenant = %(tenant)s AND path = %(path)s
ON CONFLICT (tenant, path) DO UPDATE SET inode = excluded.inode, size = excluded.size
"""
_FAR = 1 << 62
_MINE: LiteralString = "FROM holdfast.tasks WHERE tenant = %(tenant)s AND path = %(path)s"
_BEST: LiteralString = f"""
SELECT state {_MINE} AND waiting = 0 AND due <= %(now)s
  AND (%(graph)s = '' OR graph = %(graph)s) AND (cardinality(%(tags)s::text[]) = 0 OR tags && %(tags)s::text[])
ORDER BY priority DESC, made LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_OUTLOOK: LiteralString = f"""
SELECT count(*) FILTER (WHERE stage = 'taken' AND until > %(now)s),
       count(*) FILTER (WHERE due IS NOT NULL AND waiting = 0 AND NOT (stage = 'taken' AND until > %(now)s)),
       count(*) FILTER (WHERE due IS NOT NULL AND waiting > 0 AND NOT (stage = 'taken' AND until > %(now)s)),
       min(due) FILTER (WHERE waiting = 0 AND due > %(now)s)
{_MINE} AND stage <> 'ended'
  AND (%(graph)s = '' OR graph = %(graph)s) AND (cardinality(%(tags)s::text[]) = 0 OR tags && %(tags)s::text[])
"""
_DEPENDANTS: LiteralString = """
SELECT id FROM holdfast.task_ties WHERE tenant = %(tenant)s AND path = %(path)s AND before = %(before)s
"""
_LESS: LiteralString = """
UPDATE holdfast.tasks SET waiting = waiting - 1
WHERE tenant = %(tenant)s AND path = %(path)s AND id = ANY(%(ids)s)
"""
_ADD: LiteralString = """
INSERT INTO holdfast.tasks (tenant, path, id, made, priority, waiting, stage, due, until, graph, tags, state)
VALUES (%(tenant)s, %(path)s, %(id)s, %(made)s, %(priority)s, %(waiting)s, %(stage)s, %(due)s, %(until)s, %(graph)s,
    %(tags)s::text[], %(state)s)
ON CONFLICT (tenant, path, id) DO NOTHING
"""
_SET: LiteralString = """
UPDATE holdfast.tasks SET stage = %(stage)s, due = %(due)s, until = %(until)s, state = %(state)s
WHERE tenant = %(tenant)s AND path = %(path)s AND id = %(id)s
"""
_TIE: LiteralString = """
INSERT INTO holdfast.task_ties (tenant, path, before, id) VALUES (%(tenant)s, %(path)s, %(before)s, %(id)s)
ON CONFLICT DO NOTHING
"""
_OP: LiteralString = """
INSERT INTO holdfast.task_ops (tenant, path, op, told) VALUES (%(tenant)s, %(path)s, %(op)s, %(told)s)
ON CONFLICT (tenant, path, op) DO {}
"""
_CLEAR: tuple[LiteralString, ...] = (
    "DELETE FROM holdfast.tasks WHERE tenant = %(tenant)s AND path = %(path)s",
    "DELETE FROM holdfast.task_ties WHERE tenant = %(tenant)s AND path = %(path)s",
    "DELETE FROM holdfast.task_ops WHERE tenant = %(tenant)s AND path = %(path)s",
    "DELETE FROM holdfast.task_logs WHERE tenant = %(tenant)s AND path = %(path)s",
)
_decode = msgspec.json.Decoder(Task).decode
_encode = msgspec.json.encode


def clock(turn: Transaction) -> int:
    """Return the milliseconds of the server's clock."""
    row = turn.row(_CLOCK)
    return int(row[0]) if row else 0


class Tables:
    """The tasks of one log, within a transaction."""

    def __init__(self, turn: Transaction, path: str) -> None:
        self._turn = turn
        self._path = path
        self._held: dict[str, Task] = {}
        self._dependants: list[str] = []
        self.now = clock(turn)

    def current(self) -> bool:
        """Do the tables say what the log says?"""
        row = self._turn.row(_CURRENT, path=self._path)
        return row is None or row[:2] == row[2:]  # there is no log yet

    # looking

    def get(self, ids: Iterable[str]) -> dict[str, Task]:
        """Return the tasks of these ids that are there, and hold them."""
        rows = self._turn.rows(
            f"SELECT state {_MINE} AND id = ANY(%(ids)s) ORDER BY id FOR UPDATE", path=self._path, ids=_plain(ids)
        )
        found = {task.id: task for task in (_decode(row[0]) for row in rows)}
        self._held |= found
        return found

    def best(self, wanted: Wanted) -> Task | None:
        """Return the best task that is ready and that nobody else is taking at this moment, and hold it."""
        row = self._turn.row(_BEST, path=self._path, now=self.now, graph=wanted.graph, tags=list(wanted.tags))
        if row is None:
            return None
        task = _decode(row[0])
        self._held[task.id] = task
        return task

    def under(self, op_id: str) -> list[tuple[str, str, str]]:
        """Return what was done under an op_id; when that is nothing, nobody else does something until we end."""
        if self._turn.change(_OP.format("NOTHING"), path=self._path, op=op_id, told=b"[]"):
            return []
        row = self._turn.row(
            "SELECT told FROM holdfast.task_ops WHERE tenant = %(tenant)s AND path = %(path)s AND op = %(op)s",
            path=self._path, op=op_id,
        )  # fmt: skip
        return msgspec.json.decode(row[0], type=list[tuple[str, str, str]]) if row else []

    def tasks(self, ids: list[str] | None) -> dict[str, Task]:
        """Return tasks as they are, oldest first."""
        rows = (
            self._turn.rows(f"SELECT state {_MINE} ORDER BY made", path=self._path)
            if ids is None
            else self._turn.rows(
                f"SELECT state {_MINE} AND id = ANY(%(ids)s) ORDER BY made", path=self._path, ids=_plain(ids)
            )
        )
        return {task.id: task for task in (_decode(row[0]) for row in rows)}

    def outlook(self, wanted: Wanted) -> Outlook:
        row = self._turn.row(_OUTLOOK, path=self._path, now=self.now, graph=wanted.graph, tags=list(wanted.tags))
        return Outlook(*row) if row else Outlook()

    def home(self, identifier: str) -> str:
        """Return the log that has a task, "" when none has."""
        row = self._turn.row(
            "SELECT path FROM holdfast.tasks WHERE tenant = %(tenant)s AND id = ANY(%(ids)s)", ids=_plain([identifier])
        )
        return str(row[0]) if row else ""

    # changing

    def hold(self) -> None:
        """Hold every task, as whoever changes one does before the log."""
        self._turn.rows(f"SELECT 1 {_MINE} ORDER BY id FOR UPDATE", path=self._path)

    def hold_dependants(self, lines: list[Line]) -> None:
        """Hold what waits for the tasks that lines end as done."""
        for ended in (line["task"] for line in lines if line.get("status") == forms.DONE):
            self._dependants = [row[0] for row in self._turn.rows(_DEPENDANTS, path=self._path, before=ended)]
            if self._dependants:
                self._turn.rows(
                    f"SELECT 1 {_MINE} AND id = ANY(%(ids)s) ORDER BY id FOR UPDATE",
                    path=self._path, ids=self._dependants,
                )  # fmt: skip

    def take_in(self, lines: list[Line]) -> None:
        """Let the tables say what lines added to the log make of the tasks."""
        made: list[Task] = []
        for line in lines:
            task = self._held.setdefault(line["task"], Task(id=line["task"]))
            was_done = task.done
            forms.take_in(task, line)
            if line["event"] == CREATED:
                made.append(task)
                continue
            self._turn.change(_SET, path=self._path, **_columns(task))
            if task.done and not was_done and self._dependants:
                self._turn.change(_LESS, path=self._path, ids=self._dependants)
        self._add(made, {task.id: self._open_before(task) for task in made})
        self._note_ops(lines)
        self._turn.change(_NOTE, path=self._path)

    def replace(self, graph: Graph) -> None:
        """Put what a log adds up to in the place of all that the tables say of it."""
        for statement in _CLEAR:
            self._turn.change(statement, path=self._path)
        every = list(graph.every().values())
        self._add(every, {task.id: graph.waiting(task.id) for task in every})
        self._many(_OP.format("NOTHING"), ({"op": _clean(op), "told": _encode(told)} for op, told in graph.ops.items()))
        self._turn.change(_NOTE, path=self._path)

    def _open_before(self, task: Task) -> int:
        return sum(self._held[one].done is None for one in task.after if one in self._held)

    def _add(self, tasks: list[Task], waiting: Mapping[str, int]) -> None:
        self._many(_ADD, (_columns(task) | _fixed(task) | {"waiting": waiting[task.id]} for task in tasks))
        self._many(_TIE, ({"before": _clean(one), "id": _clean(task.id)} for task in tasks for one in task.after))

    def _note_ops(self, lines: list[Line]) -> None:
        op = lines[0].get("op")
        if op:
            told = _encode([forms.told(line) for line in lines])
            self._turn.change(_OP.format("UPDATE SET told = excluded.told"), path=self._path, op=op, told=told)

    def _many(self, statement: LiteralString, values: Iterable[dict[str, Any]]) -> None:
        self._turn.many(statement, ({"path": self._path, **each} for each in values))


def _columns(task: Task) -> dict[str, object]:
    """Return what changes in the row of a task."""
    last = task.last
    taken = last is not None and not last.status and not task.is_cancelled and not task.done
    stage = "taken" if taken else "open" if task.due is not None else "ended"
    until = parse_ms(last.until) if taken and last else None
    return {
        "id": _clean(task.id), "stage": stage, "due": _bounded(task.due), "until": _bounded(until),
        "state": _encode(task),
    }  # fmt: skip


def _bounded(moment: int | None) -> int | None:
    """Return a moment that a database can hold: a hand may have written one beyond all times."""
    return None if moment is None else max(-_FAR, min(_FAR, moment))


def _fixed(task: Task) -> dict[str, object]:
    """Return what never changes in the row of a task."""
    tags = [_clean(tag) for tag in task.tags]
    return {"made": task.order, "priority": task.priority, "graph": _clean(task.graph), "tags": tags}


def _plain(ids: Iterable[str]) -> list[str]:
    """Return ids as rows have them."""
    return [_clean(one) for one in ids]


def _clean(text: str) -> str:
    """Return a text as a column can hold it."""
    return text.replace("\0", "\ufffd")
