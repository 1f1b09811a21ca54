"""Skills: instructions that agents write for themselves, one folder with a `SKILL.md` each.

The format is that of Agent Skills: the folder is named like the skill, the front matter says what it is for, the body
has the steps. A list shows name and description; the text is loaded on demand. A scope also has the skills of the
scopes above it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core import Core
from holdfast.errors import AlreadyExists, Invalid, NotFound
from holdfast.memories.knowledge import meta
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
        """Return a skill in full, with the files beside it: the nearest one, if several have the name."""
        known = self._known(scope)
        found = _named(known, name)
        if not found:
            there = sorted({_name(record) for record in known})
            hint = names.close_to(name, there)
            raise NotFound(f'Skill "{name}" not found.', f"There are: {', '.join(there) or 'none'}.{hint}")
        here = (scope.path, *scope.above)  # the scope first, then those above, then those below
        order = {path: place for place, path in enumerate(here)}
        record = min(found, key=lambda record: (order.get(record.scope.path, len(here)), record.path))
        folder = record.path.rpartition("/")[0]
        walked = self._memory.tree.walk(folder, ("",), lambda _path, _why: None)
        beside = [path for path, _ in walked if path != record.path]
        loaded = _listed(record) | {"content": record.text.replace("\r\n", "\n"), "version": record.version}
        return loaded | ({"files": beside[:_MOST_FILES]} if beside else {})

    def save(self, draft: Draft) -> Receipt:
        """Write a skill; to replace one, the draft must name its current version."""
        folder = names.slug(draft.title, "")
        if not folder:
            raise Invalid(f'"{draft.title}" is no name for a skill.', "Use a few words, like deploy-to-staging.")
        scope = self._memory.scopes.resolve(draft.scope)
        here = [one for one in _named(self._known(scope), draft.title) if one.scope.path == scope.path]
        if draft.expect:
            if not here:
                raise NotFound(f'Skill "{folder}" not found in {scope.path}.', "Leave expect out to save a new one.")
            return self._memory.keep(msgspec.structs.replace(draft, kind="", title="", scope=None, id=here[0].id))
        if here and not self._memory.knows_op(draft.op_id):
            what = f'Skill "{_name(here[0])}" already exists in {scope.path}.'
            raise AlreadyExists(what, "Load it first; to replace it, send the version that it has as expect.")
        return self._memory.keep(msgspec.structs.replace(draft, kind="skill", title=folder, scope=scope))

    def _known(self, scope: Scope) -> list[Record]:
        tree = Scope(scope.workspace, scope.domain, scope.repository)
        return self._memory.every(Query(kinds=("skill",), scope=tree, above=True))


def _named(records: list[Record], name: str) -> list[Record]:
    wanted = {names.same(name), names.slug(name)}
    return [
        record
        for record in records
        if wanted & {names.same(_name(record)), names.slug(_name(record)), names.same(record.title)}
    ]


def _name(record: Record) -> str:
    return record.path.rsplit("/", 2)[1]


def _listed(record: Record) -> dict[str, Any]:
    known = {
        "name": _name(record),
        "description": text_of(record.fields.get("description")),
        "tags": list(record.tags),
        "scope": record.scope.path,
    }
    return {name: value for name, value in known.items() if value} | meta(record, record.id)
