"""The defences against hostile input, and how each is removed from a worker or a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

TAKEN: dict[str, tuple[str, str, Callable[[], None]]] = {}
"""By name: what Holdfast does, the campaign that must notice its removal, and how to remove it."""


def _defence(name: str, what: str, campaign: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(remove: Callable[[], None]) -> Callable[[], None]:
        TAKEN[name] = (what, campaign, remove)
        return remove

    return add


@_defence("beneath", "no link out of the root is followed", "paths")
def _open_anything() -> None:
    from holdfast.storage.files.descriptors import Beneath

    def anywhere(self: Any, path: str, flags: int, mode: int = 0o644, *, follow: bool = False) -> int:  # noqa: ARG001
        return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=self._fd)

    Beneath.open = anywhere  # type: ignore[method-assign]


@_defence("own names", "two titles never share a file, and no caller chooses a name", "paths")
def _short_names() -> None:
    from holdfast.model import names

    def unique(text: str, otherwise: str = "untitled", *, ignore_case: bool = False) -> str:  # noqa: ARG001
        return names.slug(text, otherwise)

    names.unique = unique


@_defence("sources", "no link is followed in an imported folder", "paths")
def _follow_sources() -> None:
    from holdfast.memories import cold

    vars(cold)["os"] = _Following()


class _Following:
    """The module `os` without the flag against following links."""

    O_NOFOLLOW = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@_defence("brackets", "deeply nested front matter is not parsed", "bombs")
def _any_depth() -> None:
    from holdfast.formats import markdown

    vars(markdown)["_MAX_BRACKETS"] = 1 << 40


@_defence("settings", "settings of any depth and length are refused with our own error", "bombs")
def _raw_settings() -> None:
    import tomllib

    from holdfast.model import settings

    def load(text: str, *_: Any, **__: Any) -> Any:
        tomllib.loads(text)
        return settings.Settings()

    settings.load = load


@_defence("quotes", "every word of a query is quoted, so none is syntax", "queries")
def _bare_words() -> None:
    from holdfast.model import queries
    from holdfast.storage.files import search

    search.quoted = " ".join  # type: ignore[assignment]
    queries.runs = lambda text: iter([(text,)])


@_defence("lines", "an invalid line causes an error and does not stop the server", "frames")
def _strict_lines() -> None:
    import msgspec

    from holdfast.mcp import stdio

    stdio.parse = lambda line, whole=True: msgspec.json.decode(line, type=stdio.ClientMessage)  # noqa: ARG005


@_defence("line limit", "an overlong line is never kept in memory", "frames")
def _long_lines() -> None:
    from holdfast.mcp import stdio

    vars(stdio)["MAX_MESSAGE"] = 1 << 40


@_defence("token", "a request without a token gets nothing", "http")
def _no_token() -> None:
    from holdfast.mcp.auth import Auth

    Auth.known = lambda self, sent: self.owners[0][1]  # type: ignore[method-assign]  # noqa: ARG005


@_defence("origin", "no web page reaches the memory through a browser", "http")
def _any_origin() -> None:
    from mcp.server.transport_security import TransportSecurityMiddleware

    TransportSecurityMiddleware._validate_origin = lambda self, origin: True  # type: ignore[method-assign]  # noqa: ARG005


@_defence("host", "no other name of this machine reaches the memory", "http")
def _any_host() -> None:
    from mcp.server.transport_security import TransportSecurityMiddleware

    TransportSecurityMiddleware._validate_host = lambda self, host: True  # type: ignore[method-assign]  # noqa: ARG005


@_defence("reading", "a read-only token writes nothing", "http")
def _all_may_write() -> None:
    from holdfast.tools.calling import Runner

    Runner._refusal = lambda self, tool: None  # type: ignore[method-assign]  # noqa: ARG005


@_defence("body limit", "an oversized body is refused before it is stored", "http")
def _any_body() -> None:
    from holdfast.mcp import http

    vars(http)["MAX_MESSAGE"] = 1 << 40
    http._LONGEST_LENGTH = 10_000


@_defence("strangers", "a token is checked before a request counts as a stranger's", "http")
def _count_first() -> None:
    from holdfast.mcp.auth import Auth, Refused

    admit = Auth.admit

    async def counted(self: Any, authorization: str, address: str, **given: Any) -> Any:
        sent = authorization.partition(" ")[2].strip().encode()
        if not self.known(sent) and not self.bucket_of(address).take():
            raise Refused(429, "Too many requests")
        return await admit(self, authorization, address, **given)

    Auth.admit = counted  # type: ignore[method-assign]


@_defence("rates", "the rate of requests is limited", "http")
def _no_rates() -> None:
    from holdfast.mcp.auth import Bucket

    Bucket.take = lambda self: True  # type: ignore[method-assign]  # noqa: ARG005
