"""Asking a language model, where the owner has set one: any server that speaks OpenAI's chat protocol.

Nothing here is needed for anything, and nothing is asked unless somebody calls. Two budgets are checked before a call
is sent: what it may cost at most, and what is left of the day. Every call that was sent is counted, also one that
failed. Tokens are estimated beforehand and taken from the server's own count afterwards, so the last call of a day can
end above the budget by the error of the estimate. Known secrets are taken out of what is sent.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Protocol

import msgspec

from holdfast import _posting, templates
from holdfast._posting import LATER, Answer, Target
from holdfast.errors import Invalid, OverBudget, Unavailable
from holdfast.formats import summaries
from holdfast.model import settings, times
from holdfast.model.names import check_text
from holdfast.model.tokens import count_tokens
from holdfast.secrets import redact

LONGEST_WAIT = 5.0
"""Seconds: a server that asks for more patience than this is not asked a second time."""
_ASK_AGAIN = (429, 503)
_LEAST_TEXT = 50
"""Tokens of text below which a call is not worth its prompt."""
_ANY_COUNT = 10**9


class Ledger(Protocol):
    """What was spent; a day is `YYYY-MM-DD` in UTC."""

    def spent(self, day: str) -> int:
        """Return the tokens of a day."""
        ...

    def add(self, day: str, tokens: int) -> None:
        """Count tokens for a day."""
        ...


class Model:
    """One model, and what may be spent on it; threads may share one."""

    def __init__(self, settings: settings.Model, spent: Ledger) -> None:
        self._settings = settings
        self._ledger = spent
        self._lock = threading.Lock()
        self._promised = 0
        """Tokens that calls under way may cost."""

    def summarise(self, text: str, budget: int) -> str:
        """Return what the model makes of a text in about so many tokens; a text too long for one call is cut first."""
        if budget < 1:
            raise Invalid(f"budget is {budget}.", "Use a number of tokens above 0.")
        target = _posting.target(self._settings.url, self._settings.key_env)
        check_text(text)
        text = redact(text.strip())
        whole = count_tokens(text)
        if not whole:
            return ""
        most = min(budget, whole)
        system, user = self._prompt(text, most)
        request = {
            "model": self._settings.name,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "max_tokens": most,
            "temperature": 0,
        }
        made = self._ask(target, request, count_tokens(system) + count_tokens(user))
        if (size := count_tokens(made)) > min(1.5 * budget, whole):
            raise Unavailable(f"The model wrote {size} tokens for a text of {whole} and a budget of {budget}.", LATER)
        return made

    def _prompt(self, text: str, most: int) -> tuple[str, str]:
        """Return the two messages: what to do, and as much of the text as one call may hold."""
        form = templates.text(templates.SUMMARY).strip()
        room = self._settings.call_tokens - count_tokens(_filled(form, most, _ANY_COUNT, _ANY_COUNT)) - most
        if room < min(_LEAST_TEXT, count_tokens(text)):
            raise OverBudget(
                f"A summary of {most} tokens leaves no room for the text in a call of {self._settings.call_tokens}.",
                "Ask for a shorter one, or raise call_tokens in [model].",
            )
        given = summaries.head(text, room)
        return _filled(form, most, len(text) if given == text else len(given) - 1, len(text)), given

    def _ask(self, target: Target, request: dict[str, Any], prompt: int) -> str:
        """Send a request; once more after a moment, if the server is only busy."""
        body = msgspec.json.encode(request)
        for last in (False, True):
            answer, text = self._send(target, body, prompt, request["max_tokens"])
            if answer.status == 200:
                return text
            wait = answer.wait
            if last or answer.status not in _ASK_AGAIN or wait > LONGEST_WAIT:
                break
            time.sleep(wait)
        raise Unavailable(f"The model's server answered with status {answer.status}.", self._advice(answer.status))

    def _send(self, target: Target, body: bytes, prompt: int, most: int) -> tuple[Answer, str]:
        """Send a request once, within the budget of the day, and count it if it was sent."""
        day = times.utc_now()[:10]
        self._promise(day, prompt + most)
        used = 0
        try:
            connection = _posting.connect(target, self._settings.timeout_seconds)
            with contextlib.closing(connection):
                used = prompt
                answer = _posting.post(connection, target, body)
            if answer.status != 200:
                return answer, ""
            reply = _decoded(answer.body)
            text = _written(reply)
            used = _usage(reply, prompt + count_tokens(text))
            if not text:
                raise Unavailable("The model's answer holds no text.", LATER)
            return answer, text
        finally:
            with self._lock:
                self._promised -= prompt + most
                if used:
                    self._ledger.add(day, used)

    def _promise(self, day: str, tokens: int) -> None:
        """Set tokens aside for a call, or refuse it."""
        with self._lock:
            left = self._settings.day_tokens - self._ledger.spent(day) - self._promised
            if tokens > left:
                raise OverBudget(
                    f"This call may cost {tokens} tokens, and {max(0, left)} are left of today's.",
                    "Try tomorrow (UTC), or raise day_tokens in [model].",
                )
            self._promised += tokens

    def _advice(self, status: int) -> str:
        if status in (401, 403):
            return f"Check the key in the variable {self._settings.key_env} of the environment."
        if 300 <= status < 400:
            return "No redirect is followed: set url in [model] to where it leads."
        return LATER if status >= 500 or status == 429 else "Check url and name in [model]."


def _filled(form: str, most: int, given: int, whole: int) -> str:
    values = {"{tokens}": most, "{words}": max(1, most * 2 // 3), "{given}": given, "{whole}": whole}
    for name, value in values.items():
        form = form.replace(name, str(value))
    return form


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise Unavailable("The model's answer is not JSON.", "Check url in [model].") from None


def _written(reply: Any) -> str:
    """Return the text of a reply, marked where the limit cut it; "" when there is none."""
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"]
        text = text.replace("\0", "").strip()
        return f"{text} …" if text and choice.get("finish_reason") == "length" else str(text)
    except (LookupError, TypeError, AttributeError):
        return ""


def _usage(reply: Any, estimate: int) -> int:
    """Return what a call cost: as the server says, unless that cannot be."""
    usage = reply.get("usage") if isinstance(reply, dict) else None
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if type(total) is int and 0 < total <= 10 * estimate else estimate
