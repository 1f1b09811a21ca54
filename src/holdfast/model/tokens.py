"""The token estimate that every budget uses.

Four characters of a Latin script count as one token; a character of a script without spaces counts as one. Compared
with common tokenizers, the error is within a third for prose and code. No model or vocabulary is needed.
"""

from __future__ import annotations

import re

WIDE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""One character of a script in which spaces do not separate words reliably."""


def count_tokens(text: str) -> int:
    """Estimate how many tokens a model reads for this text."""
    wide = 0 if text.isascii() else WIDE.subn("", text)[1]
    return wide + -(-(len(text) - wide) // 4)
