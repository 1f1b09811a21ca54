"""Regular expressions that are compiled at their first use.

Compiling all of those in this package takes longer than a search, and one command uses few of them.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Uncompiled:
    """A lazy pattern: compiled when one of its methods is first used; that method is then cached."""

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._given), name)  # `re` caches the compiled pattern
        setattr(self, name, found)
        return found


def regex(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern that is not compiled yet; an error in it shows at its first use."""
    return cast("re.Pattern[AnyStr]", _Uncompiled(text, flags))
