"""The pages there are: every Markdown file that is memory, in one scope or everywhere, by its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.core import Core
from holdfast.model.layout import Place
from holdfast.model.scopes import Scope

_IN_A_SCOPE = ("overview", "decision")
"""Two kinds that between them lie in all folders of a scope."""


def every(memory: Core, scope: str | Scope | None, blocked: Callable[[str, str], None]) -> Iterator[Place]:
    """Yield the place of every Markdown file that is memory, in one scope or everywhere."""
    places = memory.places
    below = places.below(_IN_A_SCOPE, memory.scopes.resolve(scope).path) if scope else places.roots
    seen: set[str] = set()
    for folder in below:
        for path, _ in memory.vault.walk(folder, (".md",), blocked):
            if path not in seen and (place := places.classify(path)):
                seen.add(path)
                yield place
