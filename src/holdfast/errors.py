"""Every error Holdfast raises on purpose.

    HoldfastError            1
    ├── Invalid              2   what was given cannot be used
    ├── NotFound             3   the thing named is not there
    ├── AlreadyExists        4   creating never replaces
    ├── OverBudget           5   larger than a limit allows
    ├── Conflict             6   made from a version that is no longer the current one
    ├── Busy                 7   somebody else held the lock for too long
    ├── Damaged              8   the file is there and cannot be read as what it should be
    └── Unavailable          9   could not look, or could not write

The number is the exit code of the command line. An error is raised where the fact is known; its text says
what happened and then what to do next. Nobody recognises an error by its text: catch the class. No text of an error
holds a secret of a known form, whatever was given.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Something Holdfast refused or could not do; `str()` is the message followed by the next step."""

    exit_code = 1

    def __init__(self, message: str, next_step: str = "") -> None:
        from holdfast.secrets import redact  # whoever meets no error does not load it

        self.message = redact(message)
        self.next_step = redact(next_step)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".strip()


class Invalid(HoldfastError):
    exit_code = 2


class NotFound(HoldfastError):
    exit_code = 3


class AlreadyExists(HoldfastError):
    exit_code = 4


class OverBudget(HoldfastError):
    exit_code = 5


class Conflict(HoldfastError):
    exit_code = 6


class Busy(HoldfastError):
    exit_code = 7


class Damaged(HoldfastError):
    exit_code = 8


class Unavailable(HoldfastError):
    exit_code = 9
