"""What takes much away at once asks for the number first, so that nobody loses a memory to a wrong word."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import Invalid
from holdfast.model.names import amount
from holdfast.model.records import Record

MANY = 50
SHARE = 0.1


def units(records: Iterable[Record]) -> int:
    """Count records, all values of a key as one."""
    return len({(record.path, record.key) if record.key else (record.path, record.id) for record in records})


def is_much(count: int, total: int) -> bool:
    """Is this more than one would take away without having counted? One thing that was named is not."""
    return count > MANY or (count > 1 and count > SHARE * total)


def check(count: int, total: int, told: int, what: str) -> None:
    """Refuse to take much away from somebody who did not say how much it is."""
    if told and told != count:
        raise Invalid(
            f"{amount(count, 'record')} would be {what}, not {told}; nothing was changed.", "Look at the list again."
        )
    if is_much(count, total) and told != count:
        raise Invalid(
            f"{amount(count, 'record')} of {total} would be {what}; nothing was changed.",
            f"Look at the list; if it is right, say so with the number: --count {count}.",
        )
