"""Shared parts of the campaigns of hostile input: workers that report results, and arguments made from a schema.

Such a campaign counts tries (injected), correct answers (acknowledged), and losses: an error that is not one of ours, a
read or write outside the root, a server that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import HoldfastError
from prove.harness import Row, Run

_MOST_PROBLEMS = 20


@dataclass
class Tally:
    """The result of many tries."""

    injected: int = 0
    acknowledged: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)

    def answered(self) -> None:
        self.injected += 1
        self.acknowledged += 1

    def wrong(self, problem: str) -> None:
        self.lost += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(ascii(problem[:500]))

    def check(self, right: bool, problem: str) -> None:
        if not right:
            self.wrong(problem)

    def attempt(self, what: str, call: Callable[[], Any]) -> Any:
        """Try a call: an answer or one of our errors is fine, every other exception is a problem."""
        self.injected += 1
        try:
            result = call()
        except HoldfastError as error:
            self.check(bool(error.message.strip()), f"{what}: {type(error).__name__} without a word")
            result = error
        except (Exception, RecursionError, MemoryError) as error:
            self.wrong(f"{what}: {type(error).__name__}: {error}")
            return None
        self.acknowledged += 1
        return result

    def row(self, fault: str) -> Row:
        return Row(fault, self.injected, self.acknowledged, self.lost, self.problems)

    def tell(self) -> None:
        """Print the result at the end of a worker."""
        print(json.dumps(self.__dict__), flush=True)


def ask(run: Run, code: str, *arguments: Any, seconds: float = 1_800, **more: Any) -> Tally:
    """Run code in a worker and return its result. A worker that dies or hangs is a problem."""
    worker = run.worker(code, *arguments, **more)
    try:
        out, told = worker.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        worker.kill()
        out, told = worker.communicate()
        return Tally(1, 0, 1, [f"the worker hangs: {told[-500:]}"])
    lines = out.strip().splitlines()
    if worker.returncode or not lines:
        return Tally(1, 0, 1, [f"the worker ended with {worker.returncode}: {told[-800:]}"])
    return Tally(**json.loads(lines[-1]))


@contextlib.contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Interrupt the main thread of a worker after some seconds of work, or ten times as many of waiting."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"no answer after {seconds} s")

    for number, timer, most in (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, 10 * seconds),
    ):
        signal.signal(number, late)
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def at_most(megabytes: int) -> None:
    """Limit the memory of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))


def example(schema: Mapping[str, Any], text: str = "x") -> Any:
    """Return a value that a schema allows, with this text in every string."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], text)
    match schema.get("type"):
        case "array":
            return [example(schema.get("items", {}), text)]
        case "object":
            given = schema.get("properties", {})
            return {name: example(given.get(name, {}), text) for name in schema.get("required", given)}
        case "integer" | "number":
            return int(schema.get("minimum", 1))
        case "boolean":
            return False
        case _:
            return text


def arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the required parameters of a tool."""
    properties = schema.get("properties", {})
    return {name: example(properties[name]) for name in schema.get("required", [])}


def contents(folder: str) -> dict[str, tuple[int, bytes | str]]:
    """Return everything below a folder: file types, bytes of files, targets of links."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for at, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = os.path.join(at, name)
            mode = os.lstat(path).st_mode
            held: bytes | str = ""
            if os.path.islink(path):
                held = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, "rb") as file:
                    held = file.read()
            found[os.path.relpath(path, folder)] = (mode, held)
    return found


def given(place: int) -> str:
    """Return an argument of this worker."""
    return sys.argv[place]
