"""Measure the code base: its size, its shape, and how much code one operation runs.

    python -m tools.house [--list] [--json | --markdown] [--no-walks] [--no-import] [--dsn ADDRESS]

The static figures come from the source text alone. A walk is one operation on a warm memory, the median of five. It
counts every Python call into the package, in all threads, from the request until background work has ended.
Comprehensions and lambdas are calls too; a generator or coroutine counts once, not at every resumption. A function is
a module and a qualified name, and depth is the number of the package's own frames on the stack. The MCP walks go
through `holdfast mcp` and the SDK's client, so the transport and the file watcher are included. Walks depend on the
Python version (3.12 and newer run comprehensions inline) and on the installed extras.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import collections
import contextlib
import inspect
import io
import json
import os
import pathlib
import platform
import runpy
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from types import FrameType
from typing import Any, NamedTuple

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

import holdfast

SOURCE = pathlib.Path(holdfast.__file__).parent
NOUNS = frozenset({"string", "setting", "ranking", "parsing", "embedding", "calling"})
"""Module names that end in -ing and are nouns."""
WARM, COUNTED, RUNS = 5, 5, 7
SETTLE = 0.3
"""Seconds after an operation within which its background work ends."""
SERVE = "import sys; from tools.house import serve; serve(*sys.argv[1:])"
CONTEXT = {"conversationContext": "We compared two layouts and chose the second.", "activeTask": "Writing the layout"}
STATE = CONTEXT | {"activeFiles": ["src/layout.py"], "nextSteps": ["Write the tests"]}
WORDS = "deploy schema refresh database backup release review cache queue index login payment".split()
_PREFIX = f"{SOURCE}{os.sep}"
_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_Function = ast.FunctionDef | ast.AsyncFunctionDef
Around = tuple[ast.AST, ...]
"""The functions and classes around a node, the innermost last."""
Figures = dict[str, float]


class Module(NamedTuple):
    name: str
    path: pathlib.Path
    """Relative to the folder that the top package is in."""
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package that the module is in; the `__init__` of a package is in that package."""
        return self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


class Size(NamedTuple):
    modules: int = 0
    lines: int = 0
    code: int = 0
    docs: int = 0
    blank: int = 0


class Measure(NamedTuple):
    """A row of the report: its numbers, and the places that it counts."""

    name: str
    figures: Figures
    found: Sequence[str] = ()


def read(source: pathlib.Path) -> list[Module]:
    """Parse every module of the package in a folder."""
    modules = []
    for file in sorted(source.rglob("*.py")):
        path, text = file.relative_to(source.parent), file.read_text(encoding="utf-8")
        name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        modules.append(Module(name, path, text, ast.parse(text)))
    return modules


def sizes(modules: Sequence[Module]) -> dict[str, Size]:
    """Return the size of every package without the packages nested in it, and the sum."""
    found: dict[str, Size] = collections.defaultdict(Size)
    for module in modules:
        for row in (module.package, "sum"):
            found[row] = Size(*map(sum, zip(found[row], size(module), strict=True)))
    return {row: found[row] for row in sorted(found, key=lambda row: (row == "sum", row))}


def size(module: Module) -> Size:
    """Count lines: docstrings with their blank lines, lines that are only a comment, other blank lines, and code."""
    docs: set[int] = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docs.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            docs.add(token.start[0])
    lines = list(io.StringIO(module.text))
    blank = sum(not line.strip() and number not in docs for number, line in enumerate(lines, 1))
    return Size(1, len(lines), len(lines) - len(docs) - blank, len(docs), blank)


def imports(module: Module, known: set[str]) -> set[str]:
    """Return the known modules that a module imports anywhere, for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.package.split(".")
            above = above[: len(above) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            named = (f"{base}.{alias.name}" for alias in node.names)
            found.update(name if name in known else base for name in named)
    return (found & known) - {module.name}


def loaded_by_name(modules: Sequence[Module]) -> set[str]:
    """Return the modules that a module of their package names in a text, and that it loads with `import_module`."""
    texts: dict[str, set[str]] = collections.defaultdict(set)
    for module in modules:
        if "import_module(" in module.text:
            found = (node.value for node in ast.walk(module.tree) if isinstance(node, ast.Constant))
            names = (value.partition(":")[0].rpartition(".")[2] for value in found if isinstance(value, str))
            texts[module.package].update(names)
    return {module.name for module in modules if module.last in texts[module.package]}


def one_importer(modules: Sequence[Module]) -> Measure:
    """Find modules that exactly one other module imports."""
    known = {module.name for module in modules}
    counts = collections.Counter(name for module in modules for name in imports(module, known))
    skipped = loaded_by_name(modules)
    skipped |= {module.name for module in modules if module.path.stem in ("__init__", "__main__")}
    found = [module for module in modules if counts[module.name] == 1 and module.name not in skipped]
    figures: Figures = {"modules": len(found), "lines": sum(size(module).lines for module in found)}
    return Measure("one-importer modules", figures, [module.name for module in found])


def within(node: ast.AST, around: Around = ()) -> Iterator[tuple[ast.AST, Around]]:
    """Yield every node below this one, with the functions and classes around it."""
    for child in ast.iter_child_nodes(node):
        yield child, around
        yield from within(child, (*around, child) if isinstance(child, _Function | ast.ClassDef) else around)


def one_caller(modules: Sequence[Module]) -> Measure:
    """Find private functions that are used at exactly one place of their module, as a share of all functions."""
    found, total = [], 0
    for module in modules:
        functions: list[tuple[_Function, Around]] = []
        uses: dict[str, list[tuple[ast.Name | ast.Attribute, Around]]] = collections.defaultdict(list)
        for node, around in within(module.tree):
            if isinstance(node, _Function):
                functions.append((node, around))
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                uses[node.id if isinstance(node, ast.Name) else node.attr].append((node, around))
        total += len(functions)
        for function, around in functions:
            private = function.name.startswith("_") and not function.name.startswith("__")
            if private and sum(means(*use, function, around) for use in uses[function.name]) == 1:
                found.append(f"{module.path}:{function.lineno} {function.name}")
    figures: Figures = {"functions": len(found), "of": total, "percent": round(100 * len(found) / max(total, 1), 1)}
    return Measure("one-caller private functions", figures, found)


def means(use: ast.Name | ast.Attribute, inside: Around, function: _Function, around: Around) -> bool:
    """Decide whether a use of a function's name in its module means this function, and is not in its own body."""
    scope = around[-1] if around else None
    if function in inside:
        return False
    if isinstance(use, ast.Name):
        return inside[-1:] == (scope,) if isinstance(scope, ast.ClassDef) else scope is None or scope in inside
    owners = [node for node in inside if isinstance(node, ast.ClassDef)]
    if owners and owners[-1] is not scope and ast.unparse(use.value) in ("self", "cls"):
        names = {node.name for node in owners[-1].body if isinstance(node, _Function)}
        return isinstance(scope, ast.ClassDef) and function.name not in names  # inherited, or of another class
    return isinstance(scope, ast.ClassDef)


def shared_class_names(modules: Sequence[Module]) -> Measure:
    """Find class names that are defined in more than one module; a leading underscore does not count."""
    homes: dict[str, list[str]] = collections.defaultdict(list)
    for module in modules:
        for name in {node.name.lstrip("_") for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}:
            homes[name].append(module.name)
    found = [f"{name}: {', '.join(homes[name])}" for name in sorted(homes) if len(homes[name]) > 1]
    return Measure("class names with several meanings", {"names": len(found)}, found)


def gerunds(modules: Sequence[Module]) -> Measure:
    """Find modules that are named after an activity instead of a thing."""
    found = [module.name for module in modules if module.last.endswith("ing") and module.last.lstrip("_") not in NOUNS]
    return Measure("modules named by gerunds", {"modules": len(found)}, found)


def function_lengths(modules: Sequence[Module]) -> Measure:
    """Measure the lines of functions without their decorators; list the longest one in a hundred."""
    lengths = sorted(
        (node.end_lineno - node.lineno + 1, f"{module.path}:{node.lineno} {node.name}")
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, _Function) and node.end_lineno
    )
    at = {f"p{share}": lengths[len(lengths) * share // 100] for share in (50, 90, 99) if lengths}
    longest = [f"{name}: {lines}" for lines, name in reversed(lengths) if (lines, name) >= at["p99"]]
    return Measure("lines of functions", {name: lines for name, (lines, _) in at.items()}, longest)


def import_cycles(modules: Sequence[Module]) -> Measure:
    """Find groups of modules that import each other at module level, type checking aside."""
    known = {module.name for module in modules}
    reached = {module.name: imports(top_level(module), known) for module in modules}
    for middle in known:  # Warshall: a module that imports the middle one also reaches the imports of the middle one
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    groups = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in known}
    found = [" ".join(group) for group in sorted(groups - {()})]
    return Measure("import cycles", {"cycles": len(found)}, found)


def top_level(module: Module) -> Module:
    """Return a module with only the imports that run when it is loaded."""
    found: list[ast.stmt] = []
    nodes: list[ast.AST] = [module.tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif not isinstance(node, _Function) and not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            nodes += ast.iter_child_nodes(node)
    return module._replace(tree=ast.Module(found, []))


class Counter:
    """Counts calls into the package from now on, in the current thread and in threads that start later."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, str, int]] = []
        self._started: dict[int, FrameType] = {}  # keeps the frames alive, so that no id is used twice
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _value: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PREFIX) or id(frame) in self._started:
            return
        if code.co_flags & _RESUMABLE:
            self._started[id(frame)] = frame
        depth, outer = 1, frame
        while outer := outer.f_back:  # type: ignore[assignment]  # the last frame ends the loop
            depth += outer.f_code.co_filename.startswith(_PREFIX)
        self._calls.append((code.co_filename, code.co_qualname, depth))

    def take(self) -> Figures:
        """Return what was counted since the last time."""
        calls, self._calls = self._calls, []
        functions, modules = {call[:2] for call in calls}, {call[0] for call in calls}
        depth = max((depth for _, _, depth in calls), default=0)
        return {"calls": len(calls), "functions": len(functions), "modules": len(modules), "depth": depth}


def typical(name: str, taken: Sequence[Figures]) -> Measure:
    """Return the median of every figure, without the warm-up."""
    return Measure(name, {key: statistics.median_low(figures[key] for figures in taken[WARM:]) for key in taken[0]})


def serve(root: str, address: str) -> None:
    """Run `holdfast mcp` in this process, and send its counts whenever the other end of the socket asks."""
    counter, control = Counter(), connection.Client(address)

    def report() -> None:
        with contextlib.suppress(EOFError, OSError):
            while control.recv():
                control.send(counter.take())

    threading.Thread(target=report, daemon=True).start()
    sys.argv = ["holdfast", "mcp", "--root", root, "--toolset", "all"]
    runpy.run_module("holdfast", run_name="__main__", alter_sys=True)


async def mcp_walks(root: str) -> list[Measure]:
    """Count two tools that a client calls over MCP."""
    address = f"{root}.socket"
    parameters = StdioServerParameters(command=sys.executable, args=["-c", SERVE, root, address])
    with connection.Listener(address) as listener:
        async with Client(stdio_client(parameters)) as client:
            with listener.accept() as control:

                async def walk(tool: str, answer: str, arguments: Callable[[int], dict[str, Any]]) -> Measure:
                    taken = []
                    for number in range(WARM + COUNTED):
                        result = await client.call_tool(tool, arguments(number))
                        assert not result.is_error and answer in str(result.content), result
                        await asyncio.sleep(SETTLE)
                        control.send(True)
                        taken.append(control.recv())
                    return typical(f"{tool} over MCP", taken)

                saved = await walk("createState", "success", lambda number: STATE | {"name": f"State {number}"})
                return [saved, await walk("recall", "on deploy", lambda _: {"query": "when do we deploy the database"})]


def append_walk(name: str, root: str) -> Measure:
    """Count `append_message` through the Python interface."""
    counter, taken = Counter(), []
    with holdfast.open(root) as memory:
        for number in range(WARM + COUNTED):
            memory.chat.append_message(message(number))
            time.sleep(SETTLE)
            taken.append(counter.take())
    return typical(name, taken)


def message(number: int) -> dict[str, str]:
    text = f"What about the {WORDS[number % 12]} of the {WORDS[number * 7 % 12]}, number {number}?"
    return {"role": "user", "content": text, "channel": "house", "sender_id": "u1"}


@contextlib.contextmanager
def small_memory() -> Iterator[str]:
    """Make a memory of 100 notes and 100 messages in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "memory")
        run("init", root)
        with holdfast.open(root) as memory:
            for number in range(100):
                word, other = WORDS[number % 12], WORDS[number * 5 % 12]
                memory.put("note", f"We {word} the {other} on day {number}.", title=f"Note {number} on {word}")
                memory.chat.append_message(message(number))
        yield root


def run(*arguments: str) -> float:
    """Run a `holdfast` command and return its CPU time in milliseconds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "holdfast", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"holdfast {' '.join(arguments)} failed with exit code {process.returncode}.")
    return (usage.ru_utime + usage.ru_stime) * 1000


def static(source: pathlib.Path) -> tuple[dict[str, Size], list[Measure]]:
    """Measure the source text of a package."""
    modules = read(source)
    measures = (one_importer, one_caller, shared_class_names, gerunds, function_lengths, import_cycles)
    return sizes(modules), [measure(modules) for measure in measures]


def dynamic(root: str, options: argparse.Namespace) -> Iterator[Measure]:
    """Run the package and yield what was measured."""
    if options.imports:
        for arguments in (["--version"], ["stats", "--root", root]):
            best = min(run(*arguments) for _ in range(RUNS))
            yield Measure(f"holdfast {arguments[0]}", {"CPU ms": round(best)})
    if options.walks:
        yield from asyncio.run(mcp_walks(root))
        yield append_walk("append_message on files", root)
        if options.dsn:
            run("init", options.dsn)
            yield append_walk("append_message on PostgreSQL", options.dsn)
        else:
            print("Skipped append_message on PostgreSQL: add --dsn postgresql://…", file=sys.stderr)


def table(rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """Draw a table whose first row is its head; columns of numbers are aligned to the right."""
    numbers = [cell.replace(",", "").isdigit() for cell in rows[-1]]
    if markdown:
        rule = ["---:" if number else "---" for number in numbers]
        return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{{:{'>' if number else '<'}{width}}}" for number, width in zip(numbers, widths, strict=True)]
    return "\n".join("  ".join(forms).format(*row).rstrip() for row in rows)


def shown(packages: dict[str, Size], measures: Sequence[Measure], markdown: bool) -> str:
    """Draw both tables."""
    first = [["package", "modules", "lines", "code", "docstrings and comments", "blank"]]
    first += [[name, *(f"{value:,}" for value in row)] for name, row in packages.items()]
    second = [["measure", "figures"]]
    second += [[name, ", ".join(f"{key} {value:,}" for key, value in figures.items())] for name, figures, _ in measures]
    return f"{table(first, markdown)}\n\n{table(second, markdown)}"


def as_json(packages: dict[str, Size], measures: Sequence[Measure]) -> str:
    report = {
        "python": platform.python_version(),
        "packages": {name: row._asdict() for name, row in packages.items()},
        "measures": {name: {**figures, "found": found} for name, figures, found in measures},
    }
    return json.dumps(report, indent=2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.house", description="Measure the code base.")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON with everything that was found")
    form.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--list", action="store_true", help="also name what was found")
    parser.add_argument("--no-walks", dest="walks", action="store_false", help="count no calls")
    parser.add_argument("--no-import", dest="imports", action="store_false", help="measure no CPU time")
    parser.add_argument("--dsn", help="PostgreSQL address; the walk adds messages to the memory there")
    options = parser.parse_args()
    packages, measures = static(SOURCE)
    if options.walks or options.imports:
        with small_memory() as root:
            measures += dynamic(root, options)
    if options.json:
        print(as_json(packages, measures))
        return
    print(shown(packages, measures, options.markdown))
    for name, _, found in measures:
        if options.list and found:
            print(f"\n{name}:", *found, sep="\n  ")


if __name__ == "__main__":
    main()
