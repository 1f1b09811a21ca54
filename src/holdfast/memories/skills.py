"""Skills: ways of doing something that agents write down for themselves, one folder with a `SKILL.md` each.

The format is that of Agent Skills: the folder's name is the skill's name, the front matter says what it is for, the
body says how it is done. A list shows name and description; the text is loaded when it is needed. A skill holds where
it lies and below, so a repository also has those of its domain and its workspace.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Invalid, NotFound
from holdfast.memories._entries import meta
from holdfast.model import names
from holdfast.model.queries import Query
from holdfast.model.records import Draft, Receipt, Record, text_of
from holdfast.model.scopes import Scope

_MOST_FILES = 100


class Skills:
    def __init__(self, memory: Core) -> None:
        self._memory = memory

    def all(self, scope: Scope) -> list[dict[str, Any]]:
        """Return name and description of every skill at a scope, below it and above it, by name."""
        found = sorted(self._known(scope), key=lambda record: (names.same(_name(record)), record.path))
        return [_listed(record) for record in found]

    def load(self, scope: Scope, name: str) -> dict[str, Any]:
        """Return a skill in full, with the files that lie beside it; the nearest one where several have the name."""
        found = self._named(scope, name)
        if not found:
            known = self._known(scope)
            there = ", ".join(sorted({_name(record) for record in known})) or "none"
            hint = names.close_to(name, [_name(record) for record in known])
            raise NotFound(f'Skill "{name}" not found.', f"There are: {there}.{hint}")
        record = min(found, key=lambda record: _distance(record, scope))
        folder = record.path.rpartition("/")[0]
        beside = [path for path, _ in self._memory.vault.walk(folder, ("",), _ignore) if path != record.path]
        content = record.text.replace("\r\n", "\n")
        loaded = _listed(record) | {"content": content, "version": record.version}
        return loaded | ({"files": beside[:_MOST_FILES]} if beside else {})

    def save(self, draft: Draft) -> Receipt:
        """Write a skill; one of that name is replaced only from the version that it has now."""
        folder = names.slug(draft.title, "")
        if not folder:
            raise Invalid(f'"{draft.title}" is no name for a skill.', "Use a few words, like deploy-to-staging.")
        scope = self._memory.scopes.resolve(draft.scope)
        here = [record for record in self._named(scope, draft.title) if record.scope.path == scope.path]
        if draft.expect:
            if not here:
                raise NotFound(f'Skill "{folder}" not found in {scope.path}.', "Leave expect out to save a new one.")
            change = msgspec.structs.replace(draft, kind="", title="", scope=None, id=here[0].id)
            return self._memory.keep(change)
        if here and not self._memory.knows_op(draft.op_id):
            raise AlreadyExists(
                f'Skill "{_name(here[0])}" already exists in {scope.path}.',
                "Load it first; to replace it, send the version that it has as expect.",
            )
        return self._memory.keep(msgspec.structs.replace(draft, kind="skill", title=folder, scope=scope))

    def _named(self, scope: Scope, name: str) -> list[Record]:
        """Return the skills of this name that hold at a scope."""
        wanted = {names.same(name), names.slug(name)}
        return [
            record
            for record in self._known(scope)
            if wanted & {names.same(_name(record)), names.slug(_name(record)), names.same(record.title)}
        ]

    def _known(self, scope: Scope) -> list[Record]:
        tree = Scope(scope.workspace, scope.domain, scope.repository)
        return self._memory.every(Query(kinds=("skill",), scope=tree, above=True))


def _name(record: Record) -> str:
    return record.path.rsplit("/", 2)[1]


def _distance(record: Record, scope: Scope) -> tuple[int, str]:
    """Say how far a skill is: here first, then above, nearest first, then below."""
    here = (scope.path, *scope.above)
    return (here.index(record.scope.path) if record.scope.path in here else len(here), record.path)


def _listed(record: Record) -> dict[str, Any]:
    known = {
        "name": _name(record),
        "description": text_of(record.fields.get("description")),
        "tags": list(record.tags),
        "scope": record.scope.path,
    }
    entry = {name: value for name, value in known.items() if value}
    return entry | meta(record, record.id)


def _ignore(_path: str, _why: str) -> None:
    """A file beside a skill that is out of reach is not listed."""
