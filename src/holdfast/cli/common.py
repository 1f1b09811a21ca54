"""What commands share: the options that all of them take, and finding the root."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import Invalid, Unavailable
from holdfast.model import settings

if TYPE_CHECKING:
    from holdfast.memory import Memory

Command = TypeVar("Command", bound=Callable[..., Any])


def common(command: Command) -> Command:
    """Add the options that every command takes."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON, also on a terminal.")(command)
    return click.option("--root", type=click.Path(), help="The memory root.", envvar="HOLDFAST_ROOT")(command)


def open_root(root: str | None) -> Memory:
    """Open the memory that a command is about."""
    from holdfast.memory import open_memory

    return open_memory(root or nearest(), writer="cli")


def store_of(root: str | None, store: str) -> str:
    """Return the store that a server is about, as it was given; a folder has to be there."""
    from holdfast.roots import folder_of, is_address

    given = store or root or nearest()
    if not is_address(given):
        folder_of(given)
    return given


def nearest() -> str:
    """Return the nearest folder upwards that is a memory root."""
    folder = os.getcwd()
    while True:
        if os.path.exists(os.path.join(folder, settings.FILE)):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            raise Unavailable("There is no memory root here or above.", "Run: holdfast init, or give --root.")
        folder = above


def read_stdin() -> str:
    """Return all of standard input as text."""
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:
        raise Invalid("Standard input is not UTF-8 text.", "Convert it first.") from None
