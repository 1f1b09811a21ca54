"""What a server counts, as text that Prometheus reads. No label names a tenant, a token, a record or a text."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from holdfast import __version__

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters of one process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.time()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._below: Counter[tuple[str, float]] = Counter()
        self._seconds: dict[str, float] = {}
        self._errors: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._limited = 0
        self.connections = 0

    def called(self, tool: str, outcome: str, seconds: float) -> None:
        """Count a call of a tool: `ok`, or the class of its error."""
        fine = outcome == "ok"
        with self._lock:
            self._calls[tool, "ok" if fine else "error"] += 1
            self._seconds[tool] = self._seconds.get(tool, 0.0) + seconds
            for bucket in BUCKETS:
                self._below[tool, bucket] += seconds <= bucket
            if not fine:
                self._errors[outcome] += 1

    def answered(self, status: int) -> None:
        """Count an answer over HTTP."""
        with self._lock:
            self._answers[str(status)] += 1
            self._limited += status == 429

    def connected(self, change: int) -> None:
        with self._lock:
            self.connections += change

    def render(self, *, up: bool, behind: int, memories: int) -> str:
        """Return all of it; what is not counted here is given."""
        with self._lock:
            parts = [
                *_family("holdfast_tool_calls_total", "counter", "Calls of tools, by how they ended.", self._by_tool()),
                *self._histogram(),
                *_family("holdfast_errors_total", "counter", "Errors, by their class.", _by("kind", self._errors)),
                *_family("holdfast_http_answers_total", "counter", "Answers, by status.", _by("status", self._answers)),
                *_one("holdfast_http_limited_total", "counter", "Requests refused for coming too fast.", self._limited),
                *_one("holdfast_http_connections", "gauge", "Connections that are open.", self.connections),
            ]
        parts += _one("holdfast_memories_open", "gauge", "Memories that are open.", memories)
        parts += _one("holdfast_index_behind_files", "gauge", "Files that changed and are not indexed yet.", behind)
        parts += _one("holdfast_store_up", "gauge", "Can the store be used?", int(up))
        parts += _one("process_resident_memory_bytes", "gauge", "Memory of this process.", _resident())
        parts += _one("process_start_time_seconds", "gauge", "When this process began.", round(self._started, 3))
        built = {"version": __version__, "python": sys.version.split()[0]}
        parts += _family("holdfast_build_info", "gauge", "What is running.", [(tuple(built.items()), 1)])
        return "\n".join(parts) + "\n"

    def _by_tool(self) -> list[tuple[Labels, float]]:
        return [
            ((("tool", tool), ("outcome", outcome)), count) for (tool, outcome), count in sorted(self._calls.items())
        ]

    def _histogram(self) -> Iterable[str]:
        name = "holdfast_tool_seconds"
        yield f"# HELP {name} How long calls of tools took."
        yield f"# TYPE {name} histogram"
        for tool in sorted(self._seconds):
            total = sum(count for (one, _), count in self._calls.items() if one == tool)
            for bucket in BUCKETS:
                yield _sample(f"{name}_bucket", (("tool", tool), ("le", f"{bucket:g}")), self._below[tool, bucket])
            yield _sample(f"{name}_bucket", (("tool", tool), ("le", "+Inf")), total)
            yield _sample(f"{name}_sum", (("tool", tool),), round(self._seconds[tool], 6))
            yield _sample(f"{name}_count", (("tool", tool),), total)


def _by(label: str, counted: Mapping[str, int]) -> list[tuple[Labels, float]]:
    return [(((label, name),), count) for name, count in sorted(counted.items())]


def _one(name: str, kind: str, about: str, value: float) -> list[str]:
    return _family(name, kind, about, [((), value)])


def _family(name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    return [
        f"# HELP {name} {about}", f"# TYPE {name} {kind}", *(_sample(name, labels, value) for labels, value in samples)
    ]  # fmt: skip


def _sample(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{told}}} {value}" if told else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _resident() -> int:
    """Return the bytes of memory that this process has; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
