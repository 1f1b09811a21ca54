"""New tasks as they are given, checked and put in an order in which each stands behind what it waits for."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import Invalid, OverBudget
from holdfast.formats.tasks import USUAL_ATTEMPTS, USUAL_LEASE, USUAL_PAUSE
from holdfast.model.names import check_text, close_to
from holdfast.model.records import PRIORITIES, USUAL_PRIORITY

MOST_TASKS = 1_000
MOST_TITLE, MOST_INSTRUCTIONS, MOST_TAGS, MOST_AFTER = 200, 100_000, 20, 1_000
LEASES = (1.0, 7 * 86_400.0)
PAUSES = (0.0, 86_400.0)
ATTEMPTS = (1, 100)


class New(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A task that is to be created."""

    title: str
    name: str = ""
    """What others of the same call name it by in their `after`."""
    instructions: str = ""
    after: list[str] = []
    tags: list[str] = []
    priority: int = USUAL_PRIORITY
    lease: float = USUAL_LEASE
    attempts: int = USUAL_ATTEMPTS
    pause: float = USUAL_PAUSE


class Made(msgspec.Struct, frozen=True):
    """A checked task with its id; `after` are ids."""

    id: str
    new: New
    after: list[str]
    place: int
    """Where it stood among those that were given."""

    def line(self) -> dict[str, Any]:
        """Return what a log says of it."""
        return {**msgspec.to_builtins(self.new), "after": self.after}


def arrange(given: Sequence[New | Mapping[str, Any]]) -> list[Made]:
    """Check new tasks, give them ids, and put each behind what it waits for; refuse what waits for itself."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise Invalid(f"tasks is {str(given)[:80]!r}.", "Give a list of tasks.")
    if not given:
        raise Invalid("There is no task to create.", "Give a title, or a list of tasks.")
    if len(given) > MOST_TASKS:
        raise OverBudget(f"{len(given):,} tasks at once; {MOST_TASKS:,} is the most.", "Create them in several calls.")
    tasks = [_checked(one, number) for number, one in enumerate(given, 1)]
    names: dict[str, int] = {}
    for number, task in enumerate(tasks):
        if task.name and names.setdefault(task.name, number) != number:
            raise Invalid(f'Two tasks are named "{task.name}".', "Give each a name of its own.")
    ids = [f"t{secrets.token_hex(5)}" for _ in tasks]
    known = {name: ids[number] for name, number in names.items()}
    return [
        Made(ids[number], tasks[number], [known.get(one, one) for one in tasks[number].after], number)
        for number in _in_order(tasks, names)
    ]


def _in_order(tasks: Sequence[New], names: Mapping[str, int]) -> list[int]:
    """Return the places of tasks so that each comes behind those that it waits for, else as they were given."""
    open_before = {number: {names[one] for one in task.after if one in names} for number, task in enumerate(tasks)}
    dependants: dict[int, list[int]] = {}
    for number, before in open_before.items():
        for one in before:
            dependants.setdefault(one, []).append(number)
    order = [number for number, before in open_before.items() if not before]
    for number in order:  # it grows while it is walked
        for one in dependants.get(number, ()):
            open_before[one].discard(number)
            if not open_before[one]:
                order.append(one)
    if len(order) < len(tasks):
        raise Invalid(
            f"These tasks wait for each other: {_cycle(tasks, open_before)}.", "Take one of them out of an after."
        )
    return order


def _cycle(tasks: Sequence[New], open_before: Mapping[int, set[int]]) -> str:
    """Return the names along one circle."""
    walked: list[int] = []
    at = next(number for number, before in open_before.items() if before)
    while at not in walked:
        walked.append(at)
        at = min(open_before[at])
    return " → ".join(tasks[number].name for number in [*walked[walked.index(at) :], at])


def _checked(given: New | Mapping[str, Any], number: int) -> New:
    what = f"task {number}"
    try:
        task = msgspec.convert(msgspec.to_builtins(given), New)
    except (msgspec.ValidationError, TypeError) as error:
        unknown = [one for one in given if one not in New.__struct_fields__] if isinstance(given, Mapping) else []
        hint = close_to(str(unknown[0]), New.__struct_fields__) if unknown else ""
        raise Invalid(f"{what}: {error}.{hint}", f"A task takes {', '.join(New.__struct_fields__)}.") from None
    check_text(task.title, task.name, task.instructions, *task.after, *task.tags)
    task.title = " ".join(task.title.split())
    if not task.title:
        raise Invalid(f"{what} has no title.", "Say in a few words what is to be done.")
    for name, size, most in (
        ("title", len(task.title), MOST_TITLE),
        ("instructions", len(task.instructions), MOST_INSTRUCTIONS),
        ("name", len(task.name), MOST_TITLE),
    ):
        if size > most:
            raise OverBudget(f"{what}: {name} has {size:,} characters; {most:,} is the most.", "Shorten it.")
    check_texts(f"{what}: tags", task.tags, MOST_TAGS)
    check_texts(f"{what}: after", task.after, MOST_AFTER)
    if task.priority not in PRIORITIES:
        raise Invalid(
            f"{what}: priority is {task.priority}.", f"Use {PRIORITIES[0]} to {PRIORITIES[-1]}; more is sooner."
        )
    check_number(f"{what}: lease", task.lease, *LEASES)
    check_number(f"{what}: pause", task.pause, *PAUSES)
    check_number(f"{what}: attempts", task.attempts, *ATTEMPTS)
    task.after, task.tags = [*dict.fromkeys(task.after)], [*dict.fromkeys(task.tags)]
    return task


def check_number(what: str, value: object, least: float, most: float) -> None:
    """Refuse what is no number between two others."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= float(str(value)) <= most:
        raise Invalid(f"{what} is {value!r}.", f"Use a number from {least:g} to {most:,g}.")


def check_texts(what: str, values: Sequence[str], most: int = MOST_TAGS) -> None:
    """Refuse what is no list of texts that say something."""
    if isinstance(values, str) or not all(isinstance(one, str) and one.strip() for one in values):
        raise Invalid(f"{what} is {values!r}."[:200], "Give a list of texts, none of them blank.")
    if any("\0" in one for one in values):
        raise Invalid(f"{what} holds a NUL character.", "Take it out.")
    if len(values) > most:
        raise OverBudget(f"{what} has {len(values):,} entries; {most:,} is the most.", "Give fewer.")
    check_text(*values)
