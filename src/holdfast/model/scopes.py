"""Where a record belongs: workspace/domain/repository, and the session and run it came from.

A `Scope` holds folder names as they are on disk, plus the session and run strings as the caller gave them.
It is an address, not an entity: making one creates nothing and asks nobody. Turning a name that a person
typed into a scope is the store's business (`holdfast.storage.scopes`).
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
        """The tree part as text, `W/D/R`; "" is the whole memory."""
        return "/".join(part for part in (self.workspace, self.domain, self.repository) if part)

    @property
    def above(self) -> tuple[str, ...]:
        """The paths of the levels above, nearest first."""
        parts = self.path.split("/")
        return tuple("/".join(parts[:level]) for level in range(len(parts) - 1, 0, -1))

    def at(self, path: str) -> Scope:
        """Return this session and run at another place of the tree."""
        tree = from_path(path)
        return msgspec.structs.replace(self, workspace=tree.workspace, domain=tree.domain, repository=tree.repository)


def from_path(path: str) -> Scope:
    """Read `W[/D[/R]]`, as folder names; folders below the third level belong to the repository."""
    parts = path.split("/") if path else []
    return Scope(*parts[:3])


def split(text: str) -> list[str]:
    """Split what a person typed into one to three names, or refuse it."""
    check_text(text)
    parts = [part.strip() for part in text.split("/")]
    if not 1 <= len(parts) <= 3 or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Invalid(f"{text!r} is not a scope.", "Use workspace, workspace/domain or workspace/domain/repository.")
    return parts
