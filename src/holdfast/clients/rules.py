"""Linking rules and commands to clients: symbolic links where a client looks, and a block in AGENTS.md and CLAUDE.md.

Nothing is copied, and no other file is changed: what is in the way stays, with the reason. A link is ours if it leads
to one of our rules or commands under a name that we would give it. A block is ours if it is between our markers. Every
write goes through a tree of the project's folder, so that links cannot lead it elsewhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Literal

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Conflict, Damaged, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.formats.sections import lines_of
from holdfast.memories.hot import CLIENT_RULES
from holdfast.model import names
from holdfast.roots import open_folder
from holdfast.storage.log import attempts
from holdfast.storage.tree import ABSENT, Folder

BEGIN = "<!-- holdfast: begin -->"
END = "<!-- holdfast: end -->"
_LINKS = (
    (CLIENT_RULES, ".mdc", "rules"),
    (".codex", ".md", "rules"),
    (".cursor/commands", ".md", "commands"),
    (".claude/commands", ".md", "commands"),
)
"""Folder of a client, suffix of its files, and the setting with our folder."""
_READ_FIRST = "Read these files before you start; what they say holds in every conversation:"
_BLOCKS = ("AGENTS.md", "CLAUDE.md")
_MOST = 4 << 20


class LinkResult(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    what: Literal["made", "there", "kept", "removed", "changed"]
    why: str = ""


def link(memory: Core, into: str = "") -> list[LinkResult]:
    """Link rules and commands to the clients of a project: the memory's own folder, or the folder `into`."""
    return _update(memory, into, remove=False)


def unlink(memory: Core, into: str = "") -> list[LinkResult]:
    """Remove what `link` made, and nothing else."""
    return [made for made in _update(memory, into, remove=True) if made.what != "there"]


def _update(memory: Core, into: str, *, remove: bool) -> list[LinkResult]:
    folder = memory.folder("Making rules known to clients, which read files,")
    with contextlib.closing(open_folder(into or folder)) as tree:
        rules = [] if remove else _ours(memory, memory.settings.paths.rules)
        blocks: dict[str, list[str]] = {}
        for name in _BLOCKS:  # imports for Claude, a reading list for the others
            addresses = [_address(memory, tree, rule, name) for rule in rules]
            lines = [_READ_FIRST, "", *(f"- {address}" for address in addresses)] if addresses else []
            if name == "CLAUDE.md":
                lines = ["@" + address.replace(" ", "\\ ") for address in addresses]
            blocks[name] = lines
        for name, lines in blocks.items():  # Damaged before anything is changed
            with contextlib.suppress(Invalid, OverBudget):
                _read_block(tree, name, lines)
        links = [made for place in _LINKS for made in _link(memory, tree, *place, remove=remove)]
        return [*links, *(_write_block(tree, name, lines) for name, lines in blocks.items())]


def _ours(memory: Core, top: str) -> list[str]:
    """Return the Markdown files below a folder of the memory; single ones that cannot be reached are left out."""

    def blocked(path: str, why: str) -> None:
        if path == top:
            raise Unavailable(f"{path}: {why}.", "Nothing was changed.")

    return sorted(path for path, _ in memory.tree.walk(top, (".md",), blocked) if path != top)


def _address(memory: Core, tree: Folder, path: str, start: str) -> str:
    """Return the path of a file of the memory as seen from `start`: relative below the root, else absolute."""
    there = os.path.join(memory.root, path)
    if not f"{tree.location}/".startswith(f"{memory.root}/"):
        return there
    return os.path.relpath(there, os.path.dirname(os.path.join(tree.location, start)))


# links


def _link(memory: Core, tree: Folder, folder: str, suffix: str, setting: str, *, remove: bool) -> Iterator[LinkResult]:
    """Update the links in one folder, or remove them."""
    top = getattr(memory.settings.paths, setting)
    taken: dict[str, str] = {}
    for path in [] if remove else _ours(memory, top):  # each gets the first of its names that is free
        known = {names.same(name) for name in taken}
        taken[next(form for form in _forms(path, top) if names.same(form) not in known)] = path
    wanted = {f"{folder}/{name}{suffix}": path for name, path in taken.items()}
    found: set[str] = set()  # files and links, broken links included
    found |= {path for path, _ in tree.walk(folder, (suffix,), lambda path, _why: found.add(path))}
    for path in sorted(path for path in found if path.rpartition("/")[0] == folder and path.endswith(suffix)):
        target = _target(memory, tree, path, setting)
        if not target or path in wanted:
            continue
        gone = remove or target in wanted.values()
        with contextlib.suppress(HoldfastError):  # a rule that cannot be reached is not gone
            gone = gone or memory.tree.stat(target) is None
        if gone:
            yield _remove(tree, path, "a link of ours" if remove else f"{target} is gone, or has another name now")
    for path, ours in wanted.items():
        try:
            yield _link_one(memory, tree, path, ours, setting)
        except (Invalid, NotFound) as error:
            yield LinkResult(path, "kept", error.message)


def _link_one(memory: Core, tree: Folder, path: str, ours: str, setting: str) -> LinkResult:
    target = _target(memory, tree, path, setting)
    if target == ours:
        return LinkResult(path, "there")
    if target:
        tree.remove(path)
    elif (foreign := tree.target(path)) is not None:
        return LinkResult(path, "kept", f"it is a link to {foreign}")
    try:
        tree.link(path, _address(memory, tree, ours, path))
    except AlreadyExists:
        if _target(memory, tree, path, setting) == ours:  # another process made it at the same moment
            return LinkResult(path, "there")
        return LinkResult(path, "kept", "it is a file that was there before")
    return LinkResult(path, "changed" if target else "made", f"leads to {ours}")


def _remove(tree: Folder, path: str, why: str) -> LinkResult:
    tree.remove(path)
    return LinkResult(path, "removed", why)


def _target(memory: Core, tree: Folder, path: str, setting: str) -> str:
    """Return the rule or command that a link of ours leads to, existing or not; "" for everything else."""
    try:
        target = tree.target(path)
    except (Invalid, NotFound):
        return ""
    top = getattr(memory.settings.paths, setting)
    real = os.path.normpath(os.path.join(tree.location, os.path.dirname(path), target or ""))
    ours = os.path.relpath(real, memory.root)
    name = path.rpartition("/")[2].rpartition(".")[0]
    return ours if ours.startswith(f"{top}/") and ours.endswith(".md") and name in _forms(ours, top) else ""


def _forms(path: str, top: str) -> tuple[str, ...]:
    """Return the names that a link to a file may have: `stem`, `folder-stem`, then longer ones."""
    parts = path.removeprefix(f"{top}/").removesuffix(".md").split("/")
    return parts[-1], "-".join(parts[-2:]), "-".join(parts), names.unique("/".join(parts))


# blocks in files


def _read_block(tree: Folder, path: str, lines: list[str]) -> tuple[str | None, str | None, str]:
    """Return the old and the new text of a file, and its version; None is no file. Invalid if it cannot be edited."""
    try:
        if target := tree.target(path):
            raise Invalid(f"it is a link to {target}")
        document = tree.read(path, _MOST)
        old = document.data.decode("utf-8")
        return old, put_block(old, lines) if lines else take_block(old), document.version
    except NotFound:
        return None, put_block(None, lines) if lines else None, ABSENT
    except UnicodeDecodeError:
        raise Invalid("it is not UTF-8 text") from None
    except Damaged as error:
        raise Damaged(f"{path}: {error.message}.", error.next_step) from None


def _write_block(tree: Folder, path: str, lines: list[str]) -> LinkResult:
    """Put a block of these lines into a file, or remove it without lines; again if the file changed meanwhile."""
    for _ in attempts(path):
        try:
            old, new, version = _read_block(tree, path, lines)
            if new == old:
                return LinkResult(path, "there")
            if new is None:
                return _remove(tree, path, "nothing but our block was in it")
            tree.write(path, new.encode("utf-8"), expect=version)
        except (Invalid, OverBudget) as error:
            return LinkResult(path, "kept", error.message)
        except (Conflict, AlreadyExists):
            continue
        if BEGIN not in new:
            return LinkResult(path, "changed", "our block was taken out")
        return LinkResult(path, "changed" if BEGIN in (old or "") else "made", "our block in it")
    raise AssertionError("attempts() ends in an error")


def put_block(text: str | None, lines: list[str]) -> str:
    """Return a text (None: no file) with a block of these lines, in the file's own line endings.

    A new block goes to the end, after an empty line. It ends with a line feed if the text does, so that removing it
    restores the text exactly.
    """
    newline = _newline(text or "")
    block = newline.join((BEGIN, *lines, END))
    if text is None:
        return block + newline
    if found := _find_block(text):
        return text[: found[0]] + block + text[found[1] :]
    if not text:
        return block
    return text + newline + block + newline if text.endswith("\n") else text + newline + newline + block


def take_block(text: str) -> str | None:
    """Return the text without the block; None if the file was made for the block and has nothing else."""
    found = _find_block(text)
    if not found:
        return text
    before, after = text[: found[0]], text[found[1] :]
    ending = _newline(after) if after else ""
    if after != ending:
        return before + after.removeprefix(ending)
    if not before:
        return None if ending else ""
    newline = _newline(before)
    if not ending:
        return before.removesuffix(newline).removesuffix(newline)
    shorter = before.removesuffix(newline)
    return shorter if shorter.endswith("\n") else before  # `put_block` adds an empty line before a block


def _newline(text: str) -> str:
    return "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"


def _find_block(text: str) -> tuple[int, int] | None:
    """Return where the block starts and its last line ends; Damaged if the markers are not a pair."""
    found, position = [], 0
    for number, line in enumerate(lines_of(text), 1):
        marker = line.lstrip("\ufeff").strip()
        if marker in (BEGIN, END):
            found.append((marker, number, position + line.index(marker)))
        position += len(line)
    if not found:
        return None
    stray = next((n for i, (marker, n, _) in enumerate(found) if i > 1 or marker != (BEGIN, END)[i]), 0)
    if len(found) == 1:
        stray = found[0][1]
    if stray:
        raise Damaged(f"line {stray} is a marker without the other one", "Remove it by hand; nothing was changed.")
    return found[0][2], found[1][2] + len(END)
