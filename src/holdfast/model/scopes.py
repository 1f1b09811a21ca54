"""Where a record belongs: workspace/domain/repository, plus the session and run it came from.

A `Scope` contains folder names as they are on disk, and the session and run strings as the caller gave them. It is
only an address: making one creates nothing. `holdfast.storage.scopes` resolves names that a person typed.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import check_text

DEFAULT = "default"
LEVELS = ("workspace", "domain", "repository")


class Scope(msgspec.Struct, frozen=True, omit_defaults=True):
    workspace: str = ""
    domain: str = ""
    repository: str = ""
    session: str = ""
    run: str = ""

    @property
    def path(self) -> str:
        """`W/D/R`; "" is the whole memory."""
        return "/".join(filter(None, (self.workspace, self.domain, self.repository)))

    @property
    def above(self) -> tuple[str, ...]:
        """The paths of the parent levels, nearest first."""
        parts = self.path.split("/")
        return tuple("/".join(parts[:level]) for level in range(len(parts) - 1, 0, -1))

    def at(self, path: str) -> Scope:
        """Return the scope of another path with the same session and run."""
        return msgspec.structs.replace(from_path(path), session=self.session, run=self.run)


def from_path(path: str) -> Scope:
    """Parse `W[/D[/R]]` as folder names; folders below the third level belong to the repository."""
    return Scope(*path.split("/")[:3]) if path else Scope()


def split(text: str) -> list[str]:
    """Split typed text into one to three names, or refuse it."""
    check_text(text)
    parts = [part.strip() for part in text.split("/")]
    if not 1 <= len(parts) <= 3 or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Invalid(f"{text!r} is not a scope.", "Use workspace, workspace/domain or workspace/domain/repository.")
    return parts
