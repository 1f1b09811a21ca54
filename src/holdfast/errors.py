"""Every error that Holdfast raises on purpose.

    HoldfastError            1
    ├── Invalid              2   the input cannot be used
    ├── NotFound             3   the named thing does not exist
    ├── AlreadyExists        4   creating never replaces
    ├── OverBudget           5   larger than a limit allows
    ├── Conflict             6   made from a version that is not current
    ├── Busy                 7   a lock was not released in time
    ├── Damaged              8   the file exists but cannot be parsed
    └── Unavailable          9   could not read or write

The number is the exit code of the command line. The text has the error and the next step. Catch errors by class,
not by text. Known secrets are redacted from the text.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """`str()` is the message followed by the next step."""

    exit_code = 1

    def __init__(self, message: str, next_step: str = "", missing: list[str] | tuple[()] = ()) -> None:
        from holdfast.secrets import redact  # loaded only when an error occurs

        self.message = redact(message)
        self.next_step = redact(next_step)
        self.missing = missing
        """The parameters to add; the command line names its options instead of the next step."""
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
