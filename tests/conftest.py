"""What every test needs: an initialised root, and a memory opened in it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import holdfast
import pgserver
from holdfast.store.starting import make_root

settings.register_profile("repeatable", derandomize=True)
if os.environ.get("CI"):  # the same examples for every change; at home, new ones every time
    settings.load_profile("repeatable")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A memory root as `holdfast init` makes it."""
    folder = tmp_path.resolve() / "root"
    make_root(str(folder))
    return folder


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
    """The name of a database that is this worker's alone; tests keep apart by tenant."""
    with server.database() as name:
        yield name


@pytest.fixture
def address(server: pgserver.Server, database: str) -> str:
    """The address of a memory that nobody else has."""
    return server.at(database, tenant=f"t{secrets.token_hex(6)}")
