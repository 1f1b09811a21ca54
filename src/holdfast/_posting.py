"""The HTTP part of `llm`: one request to one server, bounded in time and in size.

No proxy is used and no redirect followed. The key comes from the environment, goes into one header and into no message.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from http.client import HTTPConnection

MAX_ANSWER = 1 << 20
"""Bytes of an answer."""
LATER = "Try again later, or do without the model."


class Target(msgspec.Struct, frozen=True):
    """Where a request goes, and what it says of itself."""

    tls: bool
    host: str
    port: int
    path: str
    headers: dict[str, str]


class Answer(msgspec.Struct, frozen=True):
    status: int
    wait: float
    """Seconds that a busy server wants to be left alone."""
    body: bytes


def target(url: str, key_env: str) -> Target:
    """Read the address and the key; what is wrong with them is told without repeating them."""
    from urllib.parse import urlsplit

    if not url:
        raise Unavailable("No model is set.", "Set url and name in [model] of holdfast.toml.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or parts.scheme not in ("http", "https") or not _plain(url):
        raise Invalid("The url in [model] is no http or https address.", "Use one like http://127.0.0.1:8080/v1.")
    if parts.username is not None or parts.query or parts.fragment:
        raise Invalid("The url in [model] holds more than an address.", "Keep the key in the environment (key_env).")
    tls = parts.scheme == "https"
    return Target(
        tls, host, port or (443 if tls else 80), f"{parts.path.rstrip('/')}/chat/completions", _headers(key_env)
    )


def _headers(key_env: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "holdfast"}
    if key := os.environ.get(key_env, "").strip():
        if not _plain(key):
            raise Invalid(f"What the variable {key_env} holds cannot be a key.", "Set it to the key alone.")
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def connect(target: Target, seconds: float) -> HTTPConnection:
    """Reach the server; nothing is sent yet. Every later step may take as long."""
    import http.client

    kind = http.client.HTTPSConnection if target.tls else http.client.HTTPConnection
    connection = kind(target.host, target.port, timeout=seconds)
    try:
        connection.connect()
    except (OSError, UnicodeError) as error:
        connection.close()
        reason = "it took too long" if isinstance(error, TimeoutError) else getattr(error, "strerror", None)
        raise Unavailable(f"The model's server cannot be reached: {reason or 'no such host'}.", LATER) from None
    return connection


def post(connection: HTTPConnection, target: Target, body: bytes) -> Answer:
    """Post a request and read the whole answer, in the time that the connection allows for one step."""
    import http.client

    late = threading.Event()
    clock = threading.Timer(connection.timeout or 0, _hang_up, (connection.sock, late))
    clock.daemon = True
    clock.start()
    try:
        connection.request("POST", target.path, body, target.headers)
        with connection.getresponse() as response:
            data = response.read(MAX_ANSWER + 1)
    except (OSError, http.client.HTTPException) as error:
        slow = late.is_set() or isinstance(error, TimeoutError)
        raise Unavailable("The model took too long." if slow else "The model's answer broke off.", LATER) from None
    finally:
        clock.cancel()
    if late.is_set():
        raise Unavailable("The model took too long.", LATER)
    if len(data) > MAX_ANSWER:
        raise Unavailable(f"The model's answer is longer than {MAX_ANSWER} bytes.", LATER)
    return Answer(response.status, _seconds(response.headers.get("Retry-After", "")), data)


def _hang_up(sock: Any, late: threading.Event) -> None:
    """End a connection from another thread: whoever waits for it goes on at once, however slowly bytes come in."""
    import socket

    late.set()
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _seconds(retry_after: str) -> float:
    """Return how long to wait: a moment if the server does not say, too long if it names a date."""
    if not retry_after:
        return 1.0
    return float(retry_after) if retry_after.isdecimal() and len(retry_after) < 10 else float("inf")
