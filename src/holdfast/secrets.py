"""Finding secrets in text by their known formats, before the text reaches a disk or a log.

Formats only: what has no form of its own (a password in a sentence) is not found, and nothing is sent anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_FORMATS = {
    "private key": (
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----[\s\S]*?(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----|\Z)", ("-----BEGIN",)
    ),
    "AWS access key": (r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", ("AKIA", "ASIA")),
    "GitHub token": (
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})\b",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    ),
    "GitLab token": (r"\bglpat-[A-Za-z0-9_-]{20,}", ("glpat-",)),
    "Slack token": (r"\bxox[abposr]-[A-Za-z0-9-]{10,}", ("xox",)),
    "API key": (r"\bsk-(?:ant-|proj-|live-)?[A-Za-z0-9_-]{20,}", ("sk-",)),
    "Stripe key": (r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}", ("k_live_", "k_test_")),
    "Google API key": (r"\bAIza[0-9A-Za-z_-]{35}", ("AIza",)),
    "npm token": (r"\bnpm_[A-Za-z0-9]{36}\b", ("npm_",)),
    "JSON web token": (r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}", ("eyJ",)),
    "password in an address": (r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)", ("://",)),
    "bearer token": (r"(?i:(?<=bearer ))[A-Za-z0-9._~+/-]{16,}=*", ("earer ", "EARER ")),
}  # fmt: skip
"""What a secret looks like, and what a text must hold somewhere to have one: nearly all texts have none of it."""
_ANY = re.compile("|".join(f"(?P<f{number}>{form})" for number, (form, _) in enumerate(_FORMATS.values())))
_MARKS = tuple(mark for _, marks in _FORMATS.values() for mark in marks)
_NAMES = tuple(_FORMATS)
_TELLING = re.compile(r"(?i)(?:pass(?:word|wd|phrase)|secret|token|api_?key|private_?key|authorization|credentials?)\Z")


def redact(text: str) -> str:
    """Return the text with every known secret replaced by what it was."""
    if not any(mark in text for mark in _MARKS):
        return text
    return _ANY.sub(lambda found: f"[{_NAMES[int(str(found.lastgroup)[1:])]} removed]", text)


def find(value: Any) -> str:
    """Return what kind of secret a JSON value holds, "" when it holds none of a known form."""
    if isinstance(value, str):
        found = _ANY.search(value) if any(mark in value for mark in _MARKS) else None
        return _NAMES[int(str(found.lastgroup)[1:])] if found else ""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((kind for part in inner if (kind := find(part))), "")


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
