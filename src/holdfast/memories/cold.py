"""Transcripts: conversations that other programs recorded, brought into cold memory.

A conversation becomes one log, and a turn one line, whose id is derived from the bytes it came from: what is brought
again adds nothing, and a source that has grown adds what is new. Secrets of known forms are removed before anything
is written. What cannot be read is reported with file and line, and never stops the rest.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.core import Core
from holdfast.errors import Invalid, NotFound
from holdfast.formats import jsonl, transcripts
from holdfast.memories._sources import SUFFIX, Report, Source, below, named, opened, readable, size_of
from holdfast.model import names
from holdfast.model.times import derived_id, is_id, iso, normal, parse_ms
from holdfast.secrets import redact
from holdfast.storage.files.lines import forwards
from holdfast.storage.tree import Line

SOURCES = ("claude-code", "codex", "jsonl")
KIND = "transcript"
_BATCH_LINES = 1_000
_BATCH_BYTES = 4 << 20
_MARGIN = 256
_FIELDS = ("session", "workspace", "role", "text", "folder", "agent", "part", "source")
Progress = Callable[[int, int], None]


def find_sources(source: str, path: str = "") -> list[Source]:
    """Return the files of a source: those where the program keeps them, or the file or all below the folder given."""
    if source not in SOURCES:
        raise Invalid(f'There is no source "{source}".{names.close_to(source, SOURCES)}', f"Use {', '.join(SOURCES)}.")
    if path or source == "jsonl":
        return named(path)
    tops = [os.path.realpath(folder) for folder in _homes(source)]
    there = [top for top in tops if os.path.lexists(top)]
    if not there:
        raise NotFound(f"{tops[0]} is not there.", f"Name the folder in which {source} keeps them.")
    return [found for top in there for found in below(top)]


class Transcripts:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def bring(
        self, source: str, files: list[Source], scope: str | None = None, progress: Progress | None = None, *,
        dry: bool = False,
    ) -> Report:  # fmt: skip
        """Bring every turn of these files into cold memory, each once; with `dry` only count them.

        What was added before an error is there, and bringing the files again adds the rest. `progress` is told in
        kilobytes.
        """
        workspace = self._memory.scopes.resolve(scope).path if scope else ""
        own = self._own()
        report = Report()
        sizes = [size_of(file.path) for file in files]
        ready, total = 0, max(1, sum(sizes) >> 10)
        for file, size in zip(files, sizes, strict=True):
            shelf = _Shelf(self._memory, report, dry=dry)
            try:
                if own and file.path.startswith(own + os.sep):
                    raise OSError(errno.EINVAL, "it lies in the memory already, where it is searched as it is")
                with opened(file.path) as fd:
                    report.files += 1
                    fixed = {"source": source, "workspace": workspace}
                    conversation = _Conversation(
                        file, fixed, os.fstat(fd).st_mtime_ns, _as_is if dry else self._memory.screen.clean
                    )
                    for line in self._lines(fd, file, conversation, shelf):
                        if progress and line.end >> 18 != line.offset >> 18:
                            progress((ready + line.end) >> 10, total)
            except OSError as error:
                report.skip(file.path, f"skipped: {error.strerror or error}")
            shelf.empty()
            ready += size
            if progress:
                progress(ready >> 10, total)
        return report

    def _own(self) -> str:
        """Return the folder that is read as it is, "" in a database, which has none."""
        memory = self._memory
        folder = os.path.join(memory.root, memory.settings.paths.transcripts)
        return os.path.realpath(folder) if memory.in_files else ""

    def _lines(self, fd: int, file: Source, conversation: _Conversation, shelf: _Shelf) -> Iterator[Line]:
        """Put the turns of an open file on the shelf, line by line."""
        longest = self._memory.settings.limits.line_bytes
        for number, line in enumerate(forwards(functools.partial(os.pread, fd), 0, os.fstat(fd).st_size, longest), 1):
            found = "longer than a line may be" if line.cut else conversation.turns(number, line.data.strip())
            if isinstance(found, str):
                torn = "the last line is incomplete: torn, or still being written"
                shelf.report.skip(file.path, f"skipped: {found}" if line.whole else torn, number)
            else:
                for log, turn in found:
                    if not shelf.put(log, turn, longest):
                        shelf.report.skip(file.path, "skipped: its turn is longer than a line may be", number)
            yield line


class _Conversation:
    """One source while it is read: whose turns they are, when they were said, and which ids that gives them."""

    def __init__(self, file: Source, fixed: dict[str, str], modified_ns: int, clean: transcripts.Clean) -> None:
        self._clean = clean
        self._fixed = fixed
        self._source = source = fixed["source"]
        self._session = redact(readable(file.name).removesuffix(SUFFIX)).rpartition("/")[2]
        self._log = f"{names.slug(self._session)}-{names.short_hash(file.path)}" if source == "jsonl" else ""
        self._session = self._log or self._session  # a file's name alone is not unique
        self._alike: Counter[bytes] = Counter()
        self._headed = False
        self._folder = ""
        self._modified = max(0, modified_ns) // 1_000_000
        self._timed = 0
        self._last: int | None = None

    def turns(self, number: int, raw: bytes) -> list[tuple[str, dict[str, Any]]] | str:
        """Return the turns of a line, each with the name of its log, or say what is wrong with the line."""
        values = transcripts.parse(raw)
        if isinstance(values, str):
            return values
        found: list[dict[str, Any]] = []
        for value in values:
            if self._source == "codex":
                self._head(value)
            found += [turn for turn in transcripts.turns(value, self._clean) if turn["text"].strip()]
        if self._source == "jsonl" and not any("id" in value or "uuid" in value for value in values):
            form = hashlib.blake2b(raw, digest_size=8).digest()
            self._alike[form] += 1  # what has no id of its own may be said twice in one second
            raw += b"\n#%d" % self._alike[form] if self._alike[form] > 1 else b""
        return [self._turn(turn, number, part, raw) for part, turn in enumerate(found)]

    def _head(self, value: dict[str, Any]) -> None:
        """Take the session from the first header; a conversation that was forked repeats that of its origin."""
        told = {} if self._headed else transcripts.header(value)
        if told:
            self._headed = True
            self._session = redact(told.get("session", self._session))
            self._folder = redact(told.get("folder", ""))

    def _turn(self, turn: dict[str, Any], number: int, part: int, raw: bytes) -> tuple[str, dict[str, Any]]:
        session = str(turn.get("session") or self._session)
        whose = session if self._source == "claude-code" else self._session
        log = self._log or names.unique(whose, "session")
        identity, time = self._when(turn, f"{session}\n{number}\n".encode(), raw + (b"\n%d" % part if part else b""))
        told = {"folder": self._folder} | turn | self._fixed | {"session": session}
        line = {"id": turn["id"] if is_id(turn.get("id")) else identity, "time": time}
        return f"{self._source}-{log}", line | {name: told[name] for name in _FIELDS if told.get(name)}

    def _when(self, turn: dict[str, Any], place: bytes, content: bytes) -> tuple[str, str]:
        """Return the id and the time of a turn; one without a time comes right after the one before it.

        When the file was changed says nothing about a turn's identity: the file may grow.
        """
        if said := normal(turn.get("time")):
            self._timed = parse_ms(turn["time"], utc=True) or 0
            self._last = parse_ms(said)
            return derived_id(self._timed, content), said
        self._last = self._modified if self._last is None else self._last + 1
        return derived_id(self._timed, place + content), iso(self._last)


class _Shelf:
    """Turns that wait to be written together, in bounded memory."""

    def __init__(self, memory: Core, report: Report, *, dry: bool) -> None:
        self.report = report
        self._memory = memory
        self._dry = dry
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        self._count = self._bytes = 0

    def put(self, log: str, line: dict[str, Any], longest: int) -> bool:
        """Take a turn; False when it is longer than a line may be."""
        size = len(jsonl.render(line)) + _MARGIN
        if size > longest:
            return False
        self.report.turns += 1
        self._count += 1
        self._bytes += size
        self._waiting.setdefault(log, []).append({"id": line["id"]} if self._dry else line)
        if not self._dry and (self._count >= _BATCH_LINES or self._bytes >= _BATCH_BYTES):
            self.empty()
        return True

    def empty(self) -> None:
        """Write what waits; it is durable when this returns."""
        for log, lines in self._waiting.items():
            if self._dry:
                self.report.added += self._memory.missing(KIND, log, {line["id"] for line in lines})
            else:
                self.report.added += self._memory.bring(KIND, log, lines)
        self._waiting.clear()
        self._count = self._bytes = 0


def _as_is(value: Any) -> Any:
    return value


def _homes(source: str) -> list[str]:
    """Return where a program keeps its transcripts."""
    if source == "claude-code":
        return [os.path.join(os.environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude"), "projects")]
    home = os.environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")
    return [os.path.join(home, "sessions"), os.path.join(home, "archived_sessions")]
