"""Making rules and commands known to clients: links where a client looks, and a block in the files that it reads.

Nothing is copied, and nothing that somebody else made is touched: what is in the way is kept, with the reason. A link
is ours if it leads to one of our rules or commands under a name that we would give it; of AGENTS.md and CLAUDE.md, what
stands between our markers. Every write goes through a vault of the project's folder, so that no link leads it out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from holdfast.clients import _blocks
from holdfast.core import Core
from holdfast.errors import (
    AlreadyExists,
    Conflict,
    Damaged,
    HoldfastError,
    Invalid,
    NotFound,
    OverBudget,
    Unavailable,
)
from holdfast.memories._rules import OWN
from holdfast.model import names
from holdfast.roots import open_folder
from holdfast.storage.tree import ABSENT, Vault

_LINKS = (
    (OWN, ".mdc", "rules"),
    (".codex", ".md", "rules"),
    (".cursor/commands", ".md", "commands"),
    (".claude/commands", ".md", "commands"),
)
"""Folder of a client, ending of its files, and the setting that says where they lie here."""
_READ_FIRST = "Read these files before you start; what they say holds in every conversation:"
_BLOCKS = ("AGENTS.md", "CLAUDE.md")
_MOST = 4 << 20
_TRIES = 10


class Made(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one path."""

    path: str
    what: Literal["made", "there", "kept", "removed", "changed"]
    why: str = ""


def link(memory: Core, into: str = "") -> list[Made]:
    """Make rules and commands known to the clients of a project: the memory's own folder, or the folder `into`."""
    with _opened(memory, into) as vault:
        rules = _ours(memory, memory.settings.paths.rules)
        blocks = [_block(vault, name, _lines(memory, vault, name, rules)) for name in _BLOCKS]  # before any change
        links = [made for place in _LINKS for made in _link(memory, vault, *place)]
        return [*links, *(_written(vault, block, _lines(memory, vault, block.path, rules)) for block in blocks)]


def unlink(memory: Core, into: str = "") -> list[Made]:
    """Take back what `link` made, and nothing else."""
    with _opened(memory, into) as vault:
        blocks = [_block(vault, name, []) for name in _BLOCKS]
        links = [
            _remove(vault, path, "a link of ours")
            for folder, suffix, setting in _LINKS
            for path in _there(vault, folder, suffix)
            if _leads_to(memory, vault, path, setting)
        ]
        return [*links, *(made for block in blocks if (made := block.write(vault)).what != "there")]


@contextlib.contextmanager
def _opened(memory: Core, into: str) -> Iterator[Vault]:
    """Give a vault of the project's folder."""
    memory.tree("Making rules known to clients, which read files,")
    if not into:
        yield memory.vault
        return
    vault = open_folder(into)
    try:
        yield vault
    finally:
        vault.close()


def _ours(memory: Core, top: str) -> list[str]:
    """Return the Markdown files below a folder of the memory; a single one that is out of reach is left out."""

    def blocked(path: str, why: str) -> None:
        if path == top:
            raise Unavailable(f"{path}: {why}.", "Nothing was changed.")

    return sorted(path for path, _ in memory.vault.walk(top, (".md",), blocked) if path != top)


def _address(memory: Core, vault: Vault, path: str, start: str) -> str:
    """Return how a file of the project names a file of the memory: relative below the root, else absolute."""
    there = os.path.join(memory.root, path)
    if not f"{vault.location}/".startswith(f"{memory.root}/"):
        return there
    return os.path.relpath(there, os.path.dirname(os.path.join(vault.location, start)))


# links


def _link(memory: Core, vault: Vault, folder: str, suffix: str, setting: str) -> Iterator[Made]:
    """Bring the links in one folder up to what is there to be linked."""
    top = getattr(memory.settings.paths, setting)
    wanted = {f"{folder}/{name}{suffix}": path for name, path in _named(_ours(memory, top), top).items()}
    for path in _there(vault, folder, suffix):
        leads_to = _leads_to(memory, vault, path, setting)
        if leads_to and path not in wanted and (leads_to in wanted.values() or _is_gone(memory, leads_to)):
            yield _remove(vault, path, f"{leads_to} is gone, or has another name now")
    for path, ours in wanted.items():
        try:
            yield _one(memory, vault, path, ours, setting)
        except (Invalid, NotFound) as error:
            yield Made(path, "kept", error.message)


def _one(memory: Core, vault: Vault, path: str, ours: str, setting: str) -> Made:
    target = vault.target(path)
    leads_to = _leads_to(memory, vault, path, setting)
    if leads_to == ours:
        return Made(path, "there")
    if target is not None and not leads_to:
        return Made(path, "kept", f"it is a link to {target}")
    if leads_to:
        vault.remove(path)
    try:
        vault.link(path, _address(memory, vault, ours, path))
    except AlreadyExists:
        if _leads_to(memory, vault, path, setting) == ours:  # somebody else made it at the same moment
            return Made(path, "there")
        return Made(path, "kept", "it is a file that was there before")
    return Made(path, "changed" if leads_to else "made", f"leads to {ours}")


def _remove(vault: Vault, path: str, why: str) -> Made:
    vault.remove(path)
    return Made(path, "removed", why)


def _there(vault: Vault, folder: str, suffix: str) -> list[str]:
    """Return the files and links in a folder, those that lead nowhere included."""
    found: set[str] = set()

    def blocked(path: str, _why: str) -> None:
        found.add(path)

    found |= {path for path, _ in vault.walk(folder, (suffix,), blocked)}
    return sorted(path for path in found if path.rpartition("/")[0] == folder and path.endswith(suffix))


def _leads_to(memory: Core, vault: Vault, path: str, setting: str) -> str:
    """Return the rule or command that a link of ours leads to, whether it is there or not; "" for all else."""
    try:
        target = vault.target(path)
    except (Invalid, NotFound):
        return ""
    top = getattr(memory.settings.paths, setting)
    real = os.path.normpath(os.path.join(vault.location, os.path.dirname(path), target or ""))
    ours = os.path.relpath(real, memory.root)
    name = path.rpartition("/")[2].rpartition(".")[0]
    return ours if ours.startswith(f"{top}/") and ours.endswith(".md") and name in _forms(ours, top) else ""


def _is_gone(memory: Core, path: str) -> bool:
    try:
        return memory.vault.stat(path) is None
    except HoldfastError:
        return False  # out of reach is not gone


def _named(paths: list[str], top: str) -> Mapping[str, str]:
    """Give every file a name of its own: the first free one of its forms."""
    taken: dict[str, str] = {}
    for path in paths:
        known = {names.same(name) for name in taken}
        taken[next(form for form in _forms(path, top) if names.same(form) not in known)] = path
    return taken


def _forms(path: str, top: str) -> tuple[str, ...]:
    """Return the names that a link to a file may have: `stem`, `folder-stem`, then ever longer ones."""
    parts = path.removeprefix(f"{top}/").removesuffix(".md").split("/")
    return parts[-1], "-".join(parts[-2:]), "-".join(parts), names.unique("/".join(parts))


# blocks


class _Block(msgspec.Struct, frozen=True):
    """A file as it shall be: `new` is None when it shall not be there; nothing is written when it is `kept`."""

    path: str
    old: str | None
    new: str | None
    version: str = ABSENT
    kept: str = ""

    def write(self, vault: Vault) -> Made:
        if self.kept:
            return Made(self.path, "kept", self.kept)
        if self.new == self.old:
            return Made(self.path, "there")
        if self.new is None:
            return _remove(vault, self.path, "nothing but our block was in it")
        vault.write(self.path, self.new.encode("utf-8"), expect=self.version)
        if _blocks.BEGIN not in self.new:
            return Made(self.path, "changed", "our block was taken out")
        return Made(self.path, "changed" if _blocks.BEGIN in (self.old or "") else "made", "our block in it")


def _written(vault: Vault, block: _Block, lines: list[str]) -> Made:
    """Write a block; again from what the file is now, where somebody else wrote to it meanwhile."""
    for _ in range(_TRIES):
        try:
            return block.write(vault)
        except (Conflict, AlreadyExists):
            block = _block(vault, block.path, lines)
    return block.write(vault)


def _block(vault: Vault, path: str, lines: list[str]) -> _Block:
    """Say what a file shall be with a block of these lines; without lines, there shall be none."""
    try:
        if target := vault.target(path):
            return _Block(path, None, None, kept=f"it is a link to {target}")
        document = vault.read(path, _MOST)
        old, version = document.data.decode("utf-8"), document.version
    except NotFound:
        return _Block(path, None, _blocks.put(None, lines) if lines else None)
    except UnicodeDecodeError:
        return _Block(path, None, None, kept="it is not UTF-8 text")
    except (Invalid, OverBudget) as error:
        return _Block(path, None, None, kept=error.message)
    try:
        return _Block(path, old, _blocks.put(old, lines) if lines else _blocks.take(old), version)
    except Damaged as error:
        raise Damaged(f"{path}: {error.message}.", error.next_step) from None


def _lines(memory: Core, vault: Vault, path: str, rules: list[str]) -> list[str]:
    """Return what a file says of the rules: imports where the client follows those, else what to read."""
    addresses = [_address(memory, vault, rule, path) for rule in rules]
    if path == "CLAUDE.md":
        return ["@" + address.replace(" ", "\\ ") for address in addresses]
    return [_READ_FIRST, "", *(f"- {address}" for address in addresses)] if addresses else []
