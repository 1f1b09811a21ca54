"""Cold memory: conversations that other programs recorded, and the files they are imported from.

A conversation becomes one log and a turn one line, whose id is derived from its source bytes, so importing again adds
only what is new. Known secrets are removed first. Unreadable lines are reported and skipped; links are not followed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import Invalid, NotFound
from holdfast.formats import jsonl, transcripts
from holdfast.model import names
from holdfast.model.records import Problem
from holdfast.model.times import derived_id, is_id, iso, normal, parse_ms
from holdfast.roots import on_disk
from holdfast.secrets import redact
from holdfast.storage.files.log import forwards
from holdfast.storage.tree import Line

SOURCES = ("claude-code", "codex", "jsonl")
_HOMES = {
    "claude-code": ("CLAUDE_CONFIG_DIR", "~/.claude", ("projects",)),
    "codex": ("CODEX_HOME", "~/.codex", ("sessions", "archived_sessions")),
}
SUFFIX = ".jsonl"
KIND = "transcript"
TOO_LONG = "longer than a line may be"
_BATCH_BYTES = 4 << 20
MARGIN = 256
"""Bytes of a line beside its turn."""
_MOST_PROBLEMS = 100
_FIELDS = ("session", "workspace", "role", "text", "folder", "agent", "part", "source")
Progress = Callable[[int, int], None]


class SourceFile(msgspec.Struct, frozen=True):
    """A file to import, and its name below the folder that was searched."""

    path: str
    name: str


class ImportReport(msgspec.Struct, omit_defaults=True):
    """The result of an import."""

    files: int = 0
    turns: int = 0
    added: int = 0
    skipped: int = 0
    """Lines and files that could not be read."""
    problems: list[Problem] = []
    """The first of these, with file and line."""

    def skip(self, path: str, why: str, line: int = 0) -> None:
        self.skipped += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(_printable(path), f"skipped: {why}", line))


def find_sources(source: str, path: str = "") -> list[SourceFile]:
    """Return the files of a source: in the folder of that program, or the given file or folder."""
    if source not in SOURCES:
        raise Invalid(f'There is no source "{source}".{names.close_to(source, SOURCES)}', f"Use {', '.join(SOURCES)}.")
    if path or source == "jsonl":
        return named(path)
    variable, usual, folders = _HOMES[source]
    home = os.environ.get(variable) or os.path.expanduser(usual)
    tops = [os.path.realpath(os.path.join(home, folder)) for folder in folders]
    there = [top for top in tops if os.path.lexists(top)]
    if not there:
        raise NotFound(f"{tops[0]} does not exist.", f"Name the folder in which {source} keeps them.")
    return [found for top in there for found in _below(top)]


def named(path: str) -> list[SourceFile]:
    """Return the given file, or all files below the given folder."""
    if not path:
        raise Invalid("This source has no default folder.", "Name the file or folder.")
    try:
        top = os.path.realpath(on_disk(path))
        there = os.path.lexists(top)
    except ValueError:  # NUL, or a lone surrogate
        raise Invalid("This is not a valid file name.", "Check the path.") from None
    if not there:
        raise NotFound(f"{top} does not exist.", "Check the path.")
    return _below(top)


def _below(top: str) -> list[SourceFile]:
    """Return a file, or the files below a folder, by name; what cannot be read is reported when it is opened."""
    if not os.path.isdir(top):
        return [SourceFile(top, os.path.basename(top))]
    found: list[str] = []
    for folder, folders, files in os.walk(top, onerror=lambda error: found.append(error.filename)):
        found.extend(os.path.join(folder, name) for name in files if name.endswith(SUFFIX))
        found.extend(path for name in folders if os.path.islink(path := os.path.join(folder, name)))
    return [SourceFile(path, os.path.relpath(path, top)) for path in sorted(found)]


def parsed_lines(
    file: SourceFile, longest: int, report: ImportReport
) -> Iterator[tuple[int, Line, list[dict[str, Any]]]]:
    """Yield the lines of a file, counted from 1, with their values; what cannot be read is added to the report."""
    try:
        fd = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        link = "it is a link, and links are not followed" if error.errno == errno.ELOOP else ""
        report.skip(file.path, link or error.strerror or str(error))
        return
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        report.files += 1
        for number, line in enumerate(forwards(fd, 0, os.fstat(fd).st_size, longest), 1):
            values = TOO_LONG if line.cut else transcripts.parse(line.data.strip())
            if not isinstance(values, str):
                yield number, line, values
            else:
                torn = "the last line is incomplete: torn, or still being written"
                report.skip(file.path, values if line.whole else torn, number)
    except OSError as error:
        report.skip(file.path, error.strerror or str(error))
    finally:
        os.close(fd)


def _printable(path: str) -> str:
    """Return a path as valid text, even if its name is not valid UTF-8."""
    return path.encode("utf-8", "replace").decode("utf-8")


def size_and_time(path: str) -> tuple[int, int]:
    """Return the size of a file and the millisecond in which it was changed, 0 when it cannot be read."""
    try:
        found = os.lstat(path)
    except OSError:
        return 0, 0
    return found.st_size, max(0, found.st_mtime_ns) // 1_000_000


class Transcripts:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def bring(
        self, source: str, files: list[SourceFile], scope: str | None = None, progress: Progress | None = None, *,
        dry: bool = False,
    ) -> ImportReport:  # fmt: skip
        """Import every turn of these files once; with `dry`, only count them. `progress` gets kilobytes."""
        memory, report, limits = self._memory, ImportReport(), self._memory.settings.limits
        fixed = {"source": source, "workspace": memory.scopes.resolve(scope).path if scope else ""}
        own = os.path.join(memory.root, memory.settings.paths.transcripts) if memory.in_files else ""
        own = os.path.realpath(own) + os.sep if own else ""
        clean = (lambda value: value) if dry else memory.secrets.clean
        known = [size_and_time(file.path) for file in files]
        ready, total = 0, max(1, sum(size for size, _ in known) >> 10)
        for file, (size, modified) in zip(files, known, strict=True):
            batch = _Batch(memory, report, dry=dry)
            conversation = _TurnReader(file, fixed, modified, clean)
            inside = own and file.path.startswith(own)
            if inside:
                report.skip(file.path, "it is in the memory already and is searched there")
            for number, line, values in () if inside else parsed_lines(file, limits.line_bytes, report):
                for log, turn in conversation.turns(number, line.data.strip(), values):
                    if not batch.add(log, turn, limits.line_bytes):
                        report.skip(file.path, f"its turn is {TOO_LONG}", number)
                if progress and line.end >> 18 != line.offset >> 18:
                    progress((ready + line.end) >> 10, total)
            batch.write()
            ready += size
            if progress:
                progress(ready >> 10, total)
        return report


class _TurnReader:
    """The state of reading one source: its session, and the times and ids of its turns."""

    def __init__(self, file: SourceFile, fixed: dict[str, str], modified: int, clean: transcripts.Clean) -> None:
        self._clean = clean
        self._fixed = fixed
        self._source = source = fixed["source"]
        self._session = redact(_printable(file.name).removesuffix(SUFFIX)).rpartition("/")[2]
        self._log = f"{names.slug(self._session)}-{names.short_hash(file.path)}" if source == "jsonl" else ""
        self._session = self._log or self._session  # a file's name alone is not unique
        self._alike: Counter[bytes] = Counter()
        self._headed, self._folder = False, ""
        self._modified = modified
        self._timed = 0
        self._last: int | None = None

    def turns(self, number: int, raw: bytes, values: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
        """Return the turns of a line, each with the name of its log."""
        found: list[dict[str, Any]] = []
        for value in values:
            # a forked conversation repeats the header of its origin, so only the first one counts
            header = transcripts.header(value) if self._source == "codex" and not self._headed else {}
            if header:
                self._headed = True
                self._session = redact(header.get("session", self._session))
                self._folder = redact(header.get("folder", ""))
            found += [turn for turn in transcripts.turns(value, self._clean) if turn["text"].strip()]
        if self._source == "jsonl" and not any("id" in value or "uuid" in value for value in values):
            form = hashlib.blake2b(raw, digest_size=8).digest()
            self._alike[form] += 1  # without an id, the same words may come twice in one second
            raw += b"\n#%d" % self._alike[form] if self._alike[form] > 1 else b""
        lines = []
        for part, turn in enumerate(found):
            session = str(turn.get("session") or self._session)
            whose = session if self._source == "claude-code" else self._session
            log = self._log or names.unique(whose, "session")
            content = raw + (b"\n%d" % part if part else b"")
            if said := normal(turn.get("time")):
                self._timed = parse_ms(turn["time"], utc=True) or 0
                self._last = parse_ms(said)
                identity, time = derived_id(self._timed, content), said
            else:
                # right after the turn before it; the file's own time is not part of the id, because the file may grow
                self._last = self._modified if self._last is None else self._last + 1
                identity = derived_id(self._timed, f"{session}\n{number}\n".encode() + content)
                time = iso(self._last)
            known = {"folder": self._folder} | turn | self._fixed | {"session": session}
            line = {"id": turn["id"] if is_id(turn.get("id")) else identity, "time": time}
            line |= {name: known[name] for name in _FIELDS if known.get(name)}
            lines.append((f"{self._source}-{log}", line))
        return lines


class _Batch:
    """Turns that are written together, in bounded memory."""

    def __init__(self, memory: Core, report: ImportReport, *, dry: bool) -> None:
        self._memory = memory
        self._report = report
        self._dry = dry
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        self._bytes = 0

    def add(self, log: str, turn: dict[str, Any], longest: int) -> bool:
        """Add a turn; return False if it is too long."""
        size = len(jsonl.render(turn)) + MARGIN
        if size > longest:
            return False
        self._report.turns += 1
        self._bytes += size
        self._waiting.setdefault(log, []).append({"id": turn["id"]} if self._dry else turn)
        if self._bytes >= _BATCH_BYTES and not self._dry:
            self.write()
        return True

    def write(self) -> None:
        """Write all turns; they are durable when this returns."""
        missing, add = self._memory.missing, self._memory.import_entries
        for log, lines in self._waiting.items():
            new = missing(KIND, log, {line["id"] for line in lines}) if self._dry else add(KIND, log, lines)
            self._report.added += new
        self._waiting.clear()
        self._bytes = 0
