"""One connection to a database, and what is sent over it in a single message.

psycopg waits for an answer more often than there is need to, and works longer on its side than the server does. So
what is asked for often goes to libpq itself: a statement that is a transaction of its own, the last one of a
transaction with its end, and a question with what has to be set for it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format
from psycopg.rows import TupleRow

_CANCELLING = 5.0
_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
_SHOWN = 24
"""How much of a statement its name shows, for whoever looks at what a server does."""
_MOST_KNOWN = 300
_PLACE = re.compile(r"%(?:%|\((?P<name>\w+)\)(?P<format>[sb]))")


class Call(msgspec.Struct, frozen=True):
    """A statement that is sent with its values in one message, and is a transaction of its own."""

    statement: bytes
    values: Sequence[bytes]
    binary: Sequence[int]
    """For each value: 1 if it is the bytes themselves, 0 if it is text."""


class Question(msgspec.Struct, frozen=True):
    """A statement as the server takes it, and which of the given values it wants where."""

    statement: bytes
    names: Sequence[str]
    formats: Sequence[PyFormat]


@functools.lru_cache(500)
def question(statement: str) -> Question:
    """Return a statement with names for its values (`%(x)s`, or `%(x)b` for bytes) as the server takes it."""
    found: dict[str, PyFormat] = {}

    def numbered(match: re.Match[str]) -> str:
        if not match["name"]:
            return "%"
        known = found.setdefault(match["name"], PyFormat(match["format"]))
        if known != match["format"]:
            raise ValueError(f"{match['name']} is wanted in two forms")
        return f"${list(found).index(match['name']) + 1}"

    text = _PLACE.sub(numbered, statement)
    return Question(text.encode(), tuple(found), tuple(found.values()))


class Session(psycopg.Connection[TupleRow]):
    """A connection that counts warnings: of a commit that no standby confirmed the server only warns."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.warnings = 0
        self.checked = False
        self._known_there: dict[object, bytes] = {}
        """What was prepared, and under which name."""
        self._given_names = itertools.count()
        self._poll = select.poll()
        self._poll.register(self.pgconn.socket, select.POLLIN)
        self.add_notice_handler(self._note)

    def rollback(self) -> None:
        super().rollback()
        self._known_there.clear()  # psycopg has the server forget all that was prepared

    def undo(self) -> None:
        """Take back what was begun, when nothing went wrong: what was prepared stays known."""
        self.pgconn.send_query(b"ROLLBACK")
        self._answered(_CANCELLING)

    @contextlib.contextmanager
    def transaction(self, *given: Any, **named: Any) -> Iterator[psycopg.Transaction]:
        try:
            with super().transaction(*given, **named) as begun:
                yield begun
        except BaseException:
            self._known_there.clear()
            raise

    def commit_within(self, seconds: float, last: Call | None = None) -> tuple[str, bytes | None]:
        """End the transaction; return what became of it, and the one value of a last statement sent with it.

        No time-out of the server covers the wait for a standby: this does, by telling the server to wait no longer.
        """
        if last is None:
            self.pgconn.send_query(b"COMMIT")
            return (self._answered(seconds)[-1].command_status or b"").decode(), None
        name = self._known_as(last)
        with self._one_message():
            self.pgconn.send_query_prepared(name, last.values, last.binary)
            self.pgconn.send_query_params(b"COMMIT", None)
            self.pgconn.pipeline_sync()
            done, ended = self._answered(seconds)
        return (ended.command_status or b"").decode(), done.get_value(0, 0)

    def at_once(self, call: Call, seconds: float) -> bytes | None:
        """Run a statement that is a transaction of its own, in one message; return its one value once it is saved."""
        name = self._known_as(call)
        self.pgconn.send_query_prepared(name, call.values, call.binary)
        return self._answered(seconds)[-1].get_value(0, 0)

    def ask(self, before: Call, asked: Question, values: Mapping[str, object], seconds: float) -> list[TupleRow]:
        """Return the rows that a statement finds, sent in one message with another one that comes before it.

        The two are one transaction. What the server does not know yet is told to it in the same message.
        """
        adapting = Transformer(self)
        given = adapting.dump_sequence([values[name] for name in asked.names], asked.formats)
        types, formats = adapting.types, adapting.formats
        self._make_room()
        keys = before.statement, (asked.statement, types)
        told = [key for key in keys if key not in self._known_there]
        with self._one_message():
            try:
                name = self._telling(keys[0], before.statement)
                self.pgconn.send_query_prepared(name, before.values, before.binary)
                name = self._telling(keys[1], asked.statement, types)
                self.pgconn.send_query_prepared(name, given, formats, result_format=Format.BINARY)
                self.pgconn.pipeline_sync()
                result = self._answered(seconds)[-1]
            except BaseException:  # nobody knows what of it the server has heard
                for key in told:
                    self._known_there.pop(key, None)
                raise
        adapting.set_pgresult(result)
        return adapting.load_rows(0, result.ntuples, tuple)

    @contextlib.contextmanager
    def _one_message(self) -> Iterator[None]:
        self.pgconn.enter_pipeline_mode()
        try:
            yield
        finally:
            with contextlib.suppress(psycopg.Error):
                self.pgconn.exit_pipeline_mode()

    def _telling(self, key: object, statement: bytes, types: Sequence[int] | None = None) -> bytes:
        """Return the name of a statement, about which the server is told on the way if it does not know it."""
        name = self._known_there.get(key)
        if name is None:
            name = self._known_there[key] = self._new_name(statement, types)
            self.pgconn.send_prepare(name, statement, types)
        return name

    def _make_room(self) -> None:
        """Have the server forget what was told first, when it knows much."""
        while len(self._known_there) >= _MOST_KNOWN:
            name = self._known_there.pop(next(iter(self._known_there)))
            self.pgconn.send_query(b'DEALLOCATE "%s"' % name)
            self._answered(_CANCELLING)

    def _known_as(self, call: Call) -> bytes:
        name = self._known_there.get(call.statement)
        if name is None:
            name = self._new_name(call.statement, None)
            made = self.pgconn.prepare(name, call.statement)
            if made.status != pq.ExecStatus.COMMAND_OK:
                raise _error(made)
            self._known_there[call.statement] = name
        return name

    def _new_name(self, statement: bytes, types: Sequence[int] | None) -> bytes:
        """Return a name that was never given here, since what we think forgotten may still be known to the server.

        It is made of what it names: a pooler may lead us to a connection that others have told their names.
        """
        made_of = hashlib.blake2b(b"%r %s" % (types, statement), digest_size=12).hexdigest()
        shown = re.sub(rb"\W+", b"_", statement.partition(b" ")[2][:_SHOWN])
        return b"%d_%s_%s" % (next(self._given_names), made_of.encode(), shown)

    def _answered(self, seconds: float) -> list[pq.abc.PGresult]:
        """Wait for all that was sent to be done, and return what came of each; beyond that time have it stopped."""
        deadline, cancelled = time.monotonic() + seconds, False
        found: list[pq.abc.PGresult] = []
        between = self.pgconn.pipeline_status != pq.PipelineStatus.OFF
        while True:
            while (unsent := self.pgconn.flush()) or self.pgconn.is_busy():
                if self._ready(deadline - time.monotonic(), sending=bool(unsent)):
                    self.pgconn.consume_input()
                elif cancelled:
                    self.close()
                    raise psycopg.OperationalError("no answer from the server")
                else:
                    self.cancel_safe(timeout=_CANCELLING)
                    deadline, cancelled = time.monotonic() + _CANCELLING, True
            result = self.pgconn.get_result()
            if result is None and between:
                between = self.pgconn.status == pq.ConnStatus.OK  # one ends here, and the next begins
            elif result is None or result.status == pq.ExecStatus.PIPELINE_SYNC:
                break
            else:
                found.append(result)
        wrong = [result for result in found if result.status not in _GOOD]
        if wrong:
            raise _error(wrong[0])
        if not found:
            raise psycopg.OperationalError("no answer from the server")
        return found

    def _ready(self, seconds: float, *, sending: bool) -> bool:
        """Wait until something can be read or, while not all was sent yet, written."""
        self._poll.modify(self.pgconn.socket, select.POLLIN | (select.POLLOUT if sending else 0))
        return bool(self._poll.poll(max(0, round(seconds * 1000))))

    def _note(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self.warnings += diagnostic.severity_nonlocalized == "WARNING"


def _error(result: pq.abc.PGresult) -> psycopg.Error:
    """Return what went wrong; what no server gave a code for is a connection that was lost."""
    if result.error_field(pq.DiagnosticField.SQLSTATE):
        return psycopg.errors.error_from_result(result)
    return psycopg.OperationalError("the connection was lost")
