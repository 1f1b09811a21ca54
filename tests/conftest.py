"""Fixtures for all tests: an initialised root, and a memory opened in it."""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import settings

import databaseroot
import engines
import fork_server
import holdfast
import pgserver
from holdfast.roots import make_root, set_up

os.environ["HOLDFAST_TRUST"] = "all"  # tests write settings as the owner would; tests of trust remove this variable
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile the package
settings.register_profile("repeatable", derandomize=True)
if os.environ.get("CI"):  # the same examples for every change; at home, new ones every time
    settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine", choices=["usual", *engines.ENGINES, "both"], default="usual", help="The engine of the roots."
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: thousands of tests are made, and all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the fault campaigns: the run would wait for a worker that starts one at the end."""
    items.sort(key=lambda item: item.path.stem != "test_prove")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses a root on each engine that it is valid for."""
    if "engine" not in metafunc.fixturenames:
        return
    module, test = metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__
    why = engines.reason(module, test)
    there = engines.chosen(module, test, metafunc.config.getoption("engine"))
    alone = pytest.param(engines.ENGINES[0], marks=pytest.mark.skip(reason=f"files only: {why}"))
    metafunc.parametrize("engine", there or [alone], scope="function")


@pytest.fixture(scope="session", autouse=True)
def commands_end() -> Iterator[None]:
    """Stop the process that commands are forked from, before the coverage of all processes is combined."""
    yield
    fork_server.stop()


@pytest.fixture
def engine() -> str:
    """The engine of a root; files, if a test is not parametrised."""
    return engines.ENGINES[0]


@pytest.fixture
def root(tmp_path: Path, engine: str, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A memory root as `holdfast init` makes it: a folder, or a path-like object for a root in a database."""
    if engine == "files":
        folder = tmp_path.resolve() / "root"
        make_root(str(folder))
        yield folder
        return
    address = str(request.getfixturevalue("address"))
    set_up(address)
    yield cast("Path", databaseroot.DatabasePath(address))
    databaseroot.close(address)
    assert not Path("postgresql:").exists(), "an address was used as the name of a folder"


@pytest.fixture
def another(tmp_path: Path, engine: str, request: pytest.FixtureRequest) -> Iterator[Callable[[], Path]]:
    """A function that makes a new root on the engine of the test."""
    made: list[str] = []

    def make() -> Path:
        name = f"root{secrets.token_hex(6)}"
        if engine == "files":
            make_root(str(tmp_path.resolve() / name))
            return tmp_path.resolve() / name
        server, database = request.getfixturevalue("server"), request.getfixturevalue("database")
        made.append(server.at(database, tenant=name))
        set_up(made[-1])
        return cast("Path", databaseroot.DatabasePath(made[-1]))

    yield make
    for address in made:
        databaseroot.close(address)


@pytest.fixture
def memory(root: Path) -> Iterator[holdfast.Memory]:
    with holdfast.open(root) as opened:
        yield opened


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[pgserver.Server]:
    """A real PostgreSQL, the same for all workers of the session."""
    base = tmp_path_factory.getbasetemp()
    with pgserver.shared((base if worker_id == "master" else base.parent) / "postgresql") as running:
        yield running


@pytest.fixture(scope="session")
def database(server: pgserver.Server) -> Iterator[str]:
    """The name of the database of this worker; each test uses a tenant of its own."""
    with server.database() as name:
        yield name


@pytest.fixture
def address(server: pgserver.Server, database: str) -> str:
    """The address of a memory for this test alone."""
    return server.at(database, tenant=f"t{secrets.token_hex(6)}")
