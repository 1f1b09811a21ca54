"""Finding secrets in text by their known formats, before the text reaches a disk or a log.

Formats only: what has no form of its own (a password in a sentence) is not found, and nothing is sent anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_FORMATS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----[\s\S]*?(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----|\Z)",
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})\b",
    "GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "Slack token": r"\bxox[abposr]-[A-Za-z0-9-]{10,}",
    "API key": r"\bsk-(?:ant-|proj-|live-)?[A-Za-z0-9_-]{20,}",
    "Stripe key": r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{35}",
    "npm token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "JSON web token": r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    "password in an address": r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",
    "bearer token": r"(?i:(?<=bearer ))[A-Za-z0-9._~+/-]{16,}=*",
}
_ANY = re.compile("|".join(f"(?P<f{number}>{form})" for number, form in enumerate(_FORMATS.values())))
_NAMES = tuple(_FORMATS)
_TELLING = re.compile(r"(?i)(?:pass(?:word|wd|phrase)|secret|token|api_?key|private_?key|authorization|credentials?)\Z")


def redact(text: str) -> str:
    """Return the text with every known secret replaced by what it was."""
    return _ANY.sub(lambda found: f"[{_NAMES[int(str(found.lastgroup)[1:])]} removed]", text)


def redact_all(value: Any) -> Any:
    """Return a JSON value with secrets removed from every text, and from fields that are named after one."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {
            name: "[removed]" if isinstance(inner, str) and inner and _TELLING.search(str(name)) else redact_all(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_all(inner) for inner in value]
    return value
