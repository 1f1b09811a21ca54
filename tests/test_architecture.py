"""The layers are respected: imports go down, there are no cycles, and nothing happens at import."""

from __future__ import annotations

import ast
import functools
import pathlib
import subprocess
import sys

import engines

SOURCE = pathlib.Path(__file__).parent.parent / "src"
LAYERS = (
    ("errors", "secrets", "model", "templates", "types"),
    ("formats", "llm"),
    ("storage", "recall"),
    ("core", "opening", "roots", "owner"),
    ("memories",),
    ("tools",),
    ("memory", "aio"),
    ("mcp", "clients"),
    ("cli",),
    ("__main__",),
)
ENGINES = {"holdfast.storage.files": ("tree", "index"), "holdfast.storage.postgres": ("files", "rows", "search")}
"""The modules of each engine that nothing outside of it may import, except for `roots`."""
OF_STORAGE = {"FileTree", "IndexSync", "Known", "LogEnd", "Refresher", "Seen", "SqliteIndex"}
"""Modules that only the storage package may import: bytes, offsets and the index."""
HIDDEN = {"_sync", "fingerprint", "inode", "refresher", "sync"}
"""Attributes that only the storage package may use."""
HEAVY = {
    "apsw": ("holdfast.storage.files", "holdfast.storage.words", "holdfast.cli.setup"),
    "numpy": ("holdfast.recall", "holdfast.storage.files.vectors"),
    "tokenizers": ("holdfast.recall",),
    "onnxruntime": ("holdfast.recall",),
    "psycopg": ("holdfast.storage.postgres",),
    "ryaml": ("holdfast.formats.markdown",),
    "tomlkit": ("holdfast.clients.editors",),
    "cronsim": ("holdfast.formats.schedules",),
    "cryptography": ("holdfast.formats.encryption",),
    "rich": ("holdfast.cli.show",),
    "click": ("holdfast.cli",),
}
"""Which modules, or all modules of which packages, may import a library that is slow to load or optional."""


SLOW = (
    "rich", "ryaml", "asyncio", "numpy", "logging", "email", "importlib.metadata", "concurrent.futures", "urllib.parse",
    "tempfile", "json", "holdfast.tools", "holdfast.memories.mind",
)  # fmt: skip
"""What a search in a process of its own has no use for."""


@functools.cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted((SOURCE / "holdfast").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(tree: ast.AST, *, everywhere: bool) -> set[str]:
    """Return what a module imports: at its top, or anywhere except for type checking."""
    found: set[str] = set()
    for node in ast.walk(tree) if everywhere else ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(module: str) -> int:
    part = module.split(".")[1] if "." in module else "__main__"
    return next((number for number, names in enumerate(LAYERS) if part in names), -1)


def test_every_module_has_a_layer() -> None:
    assert [name for name in modules() if name != "holdfast" and layer(name) < 0] == []


def test_imports_go_down_only() -> None:
    for name, tree in modules().items():
        for imported in imports(tree, everywhere=True) if name != "holdfast" else ():
            if imported.startswith("holdfast."):
                assert layer(imported) <= layer(name), f"{name} imports {imported}, which is above it"


def test_only_roots_knows_the_engines() -> None:
    for name, tree in modules().items():
        for engine, inner in ENGINES.items():
            known = imports(tree, everywhere=True) & {f"{engine}.{module}" for module in inner}
            assert not known or name == "holdfast.roots" or name.startswith(engine), f"{name} imports {known}"


def test_only_storage_knows_bytes_and_the_index() -> None:
    for name, tree in modules().items():
        if name.startswith("holdfast.storage"):
            continue
        imported = {one.rpartition(".")[2] for one in imports(tree, everywhere=True) if "holdfast.storage" in one}
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not imported & OF_STORAGE, f"{name} imports {imported & OF_STORAGE}"
        assert not used & HIDDEN, f"{name} uses {used & HIDDEN}"


def test_there_are_no_import_cycles() -> None:
    known = modules()
    graph = {
        name: {other for other in imports(tree, everywhere=False) if other in known} for name, tree in known.items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in graph[name] - {name}:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_heavy_libraries_are_imported_in_the_one_module_that_needs_them() -> None:
    for name, tree in modules().items():
        for imported in imports(tree, everywhere=True):
            allowed = HEAVY.get(imported.split(".")[0])
            inside = allowed is None or any(f"{name}.".startswith(f"{place}.") for place in allowed)
            assert inside, f"{name} imports {imported}"


def test_no_pattern_is_compiled_at_import() -> None:
    """`model.patterns` compiles them at their first use."""
    for name, tree in modules().items():
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                assert ast.unparse(node.value.func) != "re.compile", f"{name}:{node.lineno}"


def test_importing_holdfast_loads_nothing_heavy_and_touches_nothing(tmp_path: pathlib.Path) -> None:
    code = f"import sys, holdfast; print([m for m in sys.modules if m in {sorted(HEAVY)} or m.startswith('holdfast.')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []


def test_a_search_on_the_command_line_loads_nothing_that_it_does_not_need(tmp_path: pathlib.Path) -> None:
    code = (
        "import sys; from holdfast.cli.main import cli; "
        f"cli.main(['search', 'x', '--root', {str(tmp_path)!r}], standalone_mode=False); "
        f"print([m for m in {SLOW} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_each_test_of_files_alone_exists_and_has_one_reason() -> None:
    """A test that was renamed would run on both engines, and the reason would stay behind."""
    there: set[str] = set()
    for path in pathlib.Path(__file__).parent.rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        there |= {path.stem} | {f"{path.stem}::{name}" for name in named}
    listed = [test for test, _why in engines.REASONS]
    assert sorted(listed) == sorted(set(listed) & there)
