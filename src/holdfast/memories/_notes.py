"""What a caller of the compartments gives: for whom, what to save, which entries are meant; and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.errors import Invalid
from holdfast.memories._fold import Filter
from holdfast.model.names import check_given
from holdfast.model.records import PRIORITIES, USUAL_PRIORITY
from holdfast.model.scopes import DEFAULT

COMPARTMENTS = ("run", "session", "plan")


class Owner(msgspec.Struct):
    """Whose memory is meant; `warnings` gets what could not be read on the way."""

    session: str = DEFAULT
    run: str = ""
    """The session is the run where there is none."""
    workspace: str = ""
    """Noted beside what is saved; sessions belong to no workspace."""
    op_id: str = ""
    warnings: list[str] = []


class Note(msgspec.Struct, frozen=True):
    """What is to be saved."""

    content: str
    category: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}
    priority: int = USUAL_PRIORITY


def check(given: Mapping[str, Any]) -> None:
    """Refuse what cannot be saved, asked for or cleared; what is not given is not looked at."""
    if given.get("compartment") not in COMPARTMENTS:
        raise Invalid("Invalid compartment. Must be 'run', 'session', or 'plan'")
    content = given.get("content", "-")
    if content is None or (isinstance(content, str) and not content.strip()):
        raise Invalid("Content cannot be empty")
    priority = given.get("priority", USUAL_PRIORITY)
    if type(priority) is not int or priority not in PRIORITIES:
        raise Invalid("Priority must be between 1 and 10")
    metadata = given.get("metadata", {})
    if not isinstance(metadata, Mapping) or not all(
        isinstance(part, str) for pair in metadata.items() for part in pair
    ):
        raise Invalid("Metadata must be an object of strings.", 'Send it like {"source": "user"}.')


def filtered(id: str | None, category: str | None, tags: Iterable[str] | None) -> Filter:
    """Return the filter that a caller means; what is blank filters nothing."""
    check_given(id=id or "", category=category or "")
    return Filter((id or "").strip(), (category or "").strip(), words(tags or ()))


def words(tags: Iterable[str]) -> tuple[str, ...]:
    """Return one or several tags, each once and without blanks."""
    given = (tags,) if isinstance(tags, str) else tuple(tags) if isinstance(tags, Iterable) else (tags,)
    if not all(isinstance(tag, str) for tag in given):
        raise Invalid("Tags must be text.", "Send a list of strings.")
    return tuple(dict.fromkeys(tag.strip() for tag in given if tag.strip()))
