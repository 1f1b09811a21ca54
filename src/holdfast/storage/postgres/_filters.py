"""The filters of a question as SQL over `holdfast.index_records r`, and texts as a database can compare them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from holdfast.model.scopes import from_path
from holdfast.storage import words
from holdfast.storage.index import Filter

HERE = "tenant = %(tenant)s AND generation = %(generation)s"
OF = "r.tenant = %(tenant)s AND r.generation = %(generation)s"
FILE = "JOIN holdfast.index_files f ON f.tenant = %(tenant)s AND f.generation = %(generation)s AND f.file = r.file"


def short(text: str, most: int = 400) -> str:
    """Return a text as it is compared in a database, which takes no NUL and keeps no long keys."""
    if len(text) * 4 > most and len(text.encode("utf-8", "replace")) > most:
        text = text[: most // 8] + "…" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return plain(text)


def named(identifier: str) -> str:
    """Return an id as it is compared: a path, for documents."""
    return short(identifier, 1_800)


def plain(text: str) -> str:
    """Return a text with nothing in it that no database takes."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def conditions(where: Filter) -> tuple[str, dict[str, Any]]:
    """Return the filter as SQL over `index_records r`, and its values."""
    parts, values = ["NOT r.superseded"], dict[str, Any]()
    if not where.hidden:
        parts.append("NOT r.hidden")
    if kinds := where.kinds or where.searchable:
        parts.append("r.kind = ANY(%(kinds)s)")
        values["kinds"] = list(kinds)
    if where.scope:
        others = [*(from_path(where.scope).above if where.above else ()), *([""] if where.shared else ())]
        more = " OR r.scope = ANY(%(others)s)" if others else ""
        parts.append(f"(r.scope = %(scope)s OR (r.scope > %(below)s AND r.scope < %(beyond)s){more})")
        values |= {"scope": where.scope, "below": where.scope + "/", "beyond": where.scope + "0", "others": others}
    if where.sessions:
        parts.append("r.session = ANY(%(sessions)s)")
        values["sessions"] = [short(session) for session in where.sessions]
    for number, tag in enumerate(where.tags):
        values[f"tag{number}"] = plain(words.tagged((tag,)))
    if where.tags:
        some = " OR ".join(f"position(%(tag{number})s in r.tagged) > 0" for number in range(len(where.tags)))
        parts.append(f"({some})")
    if where.since:
        parts.append("r.time >= %(since)s")
    if where.until:
        parts.append("r.time <= %(until)s AND r.time <> ''")
    if where.known:
        parts.append("r.time <= %(known)s")  # what does not say when it was written may have been known
    if where.only:
        parts.append("r.id = %(only)s")
    values |= {"since": where.since, "until": where.until, "known": where.known, "only": named(where.only)}
    return " AND ".join(parts), values


def at_or_below(places: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return as SQL over `f.path` that a file is one of these, or lies below one; no places mean everywhere."""
    if not places:
        return "true", {}
    values = {f"place{number}": plain(place) for number, place in enumerate(places)}
    some = (f"f.path = %({name})s OR (f.path > %({name})s || '/' AND f.path < %({name})s || '0')" for name in values)
    return "(" + " OR ".join(some) + ")", values


def listed(numbers: Iterable[int]) -> str:
    """Return numbers as the server reads many of them; the driver would look at each."""
    return f"{{{','.join(map(str, numbers))}}}"
