"""The optional language model: any server with the OpenAI chat protocol, if the owner configured one.

Nothing depends on a model, and it is called only on request. Two budgets are checked before each call: the most it may
cost, and the tokens left for the day. Every call that was sent is counted, even if it failed. Tokens are estimated
beforehand and taken from the server's count afterwards, so the last call of a day can exceed the budget by the error of
the estimate. Known secrets are redacted from the text. No proxy is used and no redirect followed; the key comes from
the environment and appears only in one header.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast import templates
from holdfast.errors import Invalid, OverBudget, Unavailable
from holdfast.formats import summaries
from holdfast.model import settings, times
from holdfast.model.names import check_text, count_tokens
from holdfast.secrets import redact

if TYPE_CHECKING:
    from http.client import HTTPConnection

_LEAST_TEXT = 50
"""The fewest tokens of text for which a call is made."""
_ANY_COUNT = 10**9
_MAX_ANSWER = 1 << 20
"""Bytes of an answer."""
_LATER = "Try again later, or do without the model."


class _Target(msgspec.Struct, frozen=True):
    tls: bool
    host: str
    port: int
    path: str
    headers: dict[str, str]


class Ledger(Protocol):
    """The tokens used per day; a day is `YYYY-MM-DD` in UTC."""

    def spent(self, day: str) -> int: ...

    def add(self, day: str, tokens: int) -> None: ...


class LanguageModel:
    """One model with its budgets."""

    def __init__(self, settings: settings.ModelSettings, spent: Ledger) -> None:
        self._settings = settings
        self._ledger = spent

    def summarise(self, text: str, budget: int) -> str:
        """Return a summary by the model in about `budget` tokens; a text too long for one call is cut first."""
        if budget < 1:
            raise Invalid(f"budget is {budget}.", "Use a number of tokens above 0.")
        target = _target(self._settings.url, self._settings.key_env)
        check_text(text)
        text = redact(text.strip())
        whole = count_tokens(text)
        if not whole:
            return ""
        most, limit = min(budget, whole), self._settings.call_tokens
        form = templates.text(templates.SUMMARY).strip()
        room = limit - count_tokens(_fill(form, most, _ANY_COUNT, _ANY_COUNT)) - most
        if room < min(_LEAST_TEXT, whole):
            fault = f"A summary of {most} tokens leaves no room for the text in a call of {limit}."
            raise OverBudget(fault, "Ask for a shorter one, or raise call_tokens in [model].")
        user = summaries.head(text, room)
        system = _fill(form, most, len(text) if user == text else len(user) - 1, len(text))
        request = {
            "model": self._settings.name,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "max_tokens": most,
            "temperature": 0,
        }
        made = self._ask(target, request, count_tokens(system) + count_tokens(user))
        if (size := count_tokens(made)) > min(1.5 * budget, whole):
            raise Unavailable(f"The model wrote {size} tokens for a text of {whole} and a budget of {budget}.", _LATER)
        return made

    def _ask(self, target: _Target, request: dict[str, Any], prompt: int) -> str:
        """Send a request within the budget of the day, count it if it was sent, and return the text of the answer."""
        import http.client

        day, cost = times.utc_now()[:10], prompt + request["max_tokens"]
        left = self._settings.day_tokens - self._ledger.spent(day)
        if cost > left:
            fault = f"This call may cost {cost} tokens, and {max(0, left)} are left of today's."
            raise OverBudget(fault, "Try tomorrow (UTC), or raise day_tokens in [model].")
        kind = http.client.HTTPSConnection if target.tls else http.client.HTTPConnection
        connection, used = kind(target.host, target.port, timeout=self._settings.timeout_seconds), prompt
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            connection.close()
            why = "it took too long" if isinstance(error, TimeoutError) else getattr(error, "strerror", None)
            raise Unavailable(f"The model's server cannot be reached: {why or 'no such host'}.", _LATER) from None
        try:
            with contextlib.closing(connection):
                status, answer = _post(connection, target, msgspec.json.encode(request))
            if status != 200:
                raise Unavailable(f"The model's server answered with status {status}.", self._advice(status))
            text, used = _parsed(answer, prompt)
            if not text:
                raise Unavailable("The model's answer contains no text.", _LATER)
            return text
        finally:
            self._ledger.add(day, used)

    def _advice(self, status: int) -> str:
        if status in (401, 403):
            return f"Check the key in the variable {self._settings.key_env} of the environment."
        if 300 <= status < 400:
            return "No redirects are followed: set url in [model] to the target."
        return _LATER if status >= 500 or status == 429 else "Check url and name in [model]."


def _fill(form: str, most: int, given: int, whole: int) -> str:
    values = {"{tokens}": most, "{words}": max(1, most * 2 // 3), "{given}": given, "{whole}": whole}
    for name, value in values.items():
        form = form.replace(name, str(value))
    return form


def _parsed(body: bytes, prompt: int) -> tuple[str, int]:
    """Return the text of a reply, with `…` if the limit cut it, and the server's count of tokens if it is plausible."""
    try:
        reply = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise Unavailable("The model's answer is not JSON.", "Check url in [model].") from None
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"].replace("\0", "").strip()
        text = f"{text} …" if text and choice.get("finish_reason") == "length" else str(text)
    except (LookupError, TypeError, AttributeError):
        text = ""
    estimate = prompt + count_tokens(text)
    usage = reply.get("usage") if isinstance(reply, dict) else None
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return text, total if type(total) is int and 0 < total <= 10 * estimate else estimate


def _target(url: str, key_env: str) -> _Target:
    """Parse the address and read the key; errors do not repeat them."""
    from urllib.parse import urlsplit

    if not url:
        raise Unavailable("No model is set.", "Set url and name in [model] of holdfast.toml.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or parts.scheme not in ("http", "https") or not _plain(url):
        raise Invalid("The url in [model] is not an http or https address.", "Use one like http://127.0.0.1:8080/v1.")
    if parts.username is not None or parts.query or parts.fragment:
        raise Invalid("The url in [model] contains more than an address.", "Keep the key in the environment (key_env).")
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "holdfast"}
    if key := os.environ.get(key_env, "").strip():
        if not _plain(key):
            raise Invalid(f"The variable {key_env} does not contain a valid key.", "Set it to the key alone.")
        headers["Authorization"] = f"Bearer {key}"
    tls = parts.scheme == "https"
    return _Target(tls, host, port or (443 if tls else 80), f"{parts.path.rstrip('/')}/chat/completions", headers)


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _post(connection: HTTPConnection, target: _Target, body: bytes) -> tuple[int, bytes]:
    """Post a request and read the whole answer within the timeout of the connection."""
    import http.client
    import socket

    late = threading.Event()

    def hang_up(sock: socket.socket) -> None:  # from another thread, so that a slow server cannot delay the caller
        late.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    clock = threading.Timer(connection.timeout or 0, hang_up, (connection.sock,))
    clock.daemon = True
    clock.start()
    try:
        connection.request("POST", target.path, body, target.headers)
        with connection.getresponse() as response:
            data = response.read(_MAX_ANSWER + 1)
    except (OSError, http.client.HTTPException) as error:
        slow = late.is_set() or isinstance(error, TimeoutError)
        raise Unavailable("The model took too long." if slow else "The model's answer was cut off.", _LATER) from None
    finally:
        clock.cancel()
    if late.is_set():
        raise Unavailable("The model took too long.", _LATER)
    if len(data) > _MAX_ANSWER:
        raise Unavailable(f"The model's answer is longer than {_MAX_ANSWER} bytes.", _LATER)
    return response.status, data
