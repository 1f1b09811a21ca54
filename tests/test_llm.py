"""Asking a model: a real server on a real port that answers well, late, never, wrongly, or in another place."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast import templates
from holdfast.errors import Invalid, OverBudget, Unavailable
from holdfast.llm import LanguageModel
from holdfast.model import settings
from holdfast.model.names import count_tokens

KEY = "sk-unmistakable-0123456789abcdef"
TEXT = " ".join(f"Step {number} of the migration took {number * 7} minutes." for number in range(60))
Behaviour = Callable[["Handler"], None]


class Spent:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.days: Counter[str] = Counter()

    def spent(self, day: str) -> int:
        return self.days[day]

    def add(self, day: str, tokens: int) -> None:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", day) and tokens > 0
        self.days[day] += tokens

    @property
    def total(self) -> int:
        return sum(self.days.values())


class Handler(BaseHTTPRequestHandler):
    """A server that follows a script; the last step is repeated."""

    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, dict(self.headers), json.loads(body)))
        behaviour = self.server.script.pop(0) if len(self.server.script) > 1 else self.server.script[0]
        with contextlib.suppress(ConnectionError):
            behaviour(self)

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Behaviour] = [well("The migration took 60 steps.")]
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


def says(text: Any, **more: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}], **more}).encode()


def well(text: Any, **more: Any) -> Behaviour:
    return lambda handler: handler.reply(200, says(text, **more), Content_Type="application/json")


def fails(status: int, **headers: str) -> Behaviour:
    return lambda handler: handler.reply(status, f'{{"error": "{KEY}"}}'.encode(), **headers)


def raw(data: bytes) -> Behaviour:
    return lambda handler: handler.reply(200, data)


def never(handler: Handler) -> None:
    handler.server.over.wait(60)


def drip(handler: Handler) -> None:
    """Send a header that never ends, a byte at a time: no single wait is long."""
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not handler.server.over.wait(0.02):
            handler.wfile.write(b"x")


def drip_body(handler: Handler) -> None:
    """Send a good answer, and then spaces without end."""
    with contextlib.suppress(OSError):
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + says("Sixty steps."))
        while not handler.server.over.wait(0.02):
            handler.wfile.write(b" ")


def breaks_off(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")


def no_http(handler: Handler) -> None:
    handler.wfile.write(b"220 mail.example ready\r\n")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.over.set()
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MODEL_KEY", KEY)


@pytest.fixture
def spent() -> Spent:
    return Spent()


def model(server: Server, spent: Spent, **more: Any) -> LanguageModel:
    return LanguageModel(settings.ModelSettings(url=server.url, name="small", **more), spent)


def prompts(server: Server) -> tuple[str, str]:
    """The instructions and the text of the last request."""
    system, user = server.seen[-1][2]["messages"]
    assert (system["role"], user["role"]) == ("system", "user")
    return system["content"], user["content"]


# a good call


def test_a_summary_is_asked_for_as_the_protocol_says(server: Server, spent: Spent) -> None:
    assert model(server, spent).summarise(TEXT, 100) == "The migration took 60 steps."
    ((path, headers, body),) = server.seen
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["Content-Type"] == "application/json"
    assert set(body) == {"model", "messages", "max_tokens", "temperature"}
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("small", 100, 0)
    system, user = prompts(server)
    assert user == TEXT
    assert "at most 100 tokens" in system and f"the first {len(TEXT)} of {len(TEXT)} characters" in system
    assert "{" not in system


def test_the_prompt_is_one_file_of_the_package_that_init_does_not_write(server: Server, spent: Spent) -> None:
    model(server, spent).summarise(TEXT, 100)
    assert prompts(server)[0].splitlines()[0] == templates.text(templates.SUMMARY).splitlines()[0]
    assert templates.SUMMARY not in templates.files()
    assert {path.split("/")[0] for path in templates.files()} == {"agent"}


def test_without_a_key_no_header_is_sent(server: Server, spent: Spent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_MODEL_KEY")
    model(server, spent).summarise(TEXT, 100)
    assert "Authorization" not in server.seen[0][1]
    monkeypatch.setenv("OTHER", " other-key\n")
    model(server, spent, key_env="OTHER").summarise(TEXT, 100)
    assert server.seen[1][1]["Authorization"] == "Bearer other-key"


def test_known_secrets_are_not_sent(server: Server, spent: Spent) -> None:
    token = "ghp_" + "a1" * 18
    model(server, spent).summarise(f"{TEXT} The token is {token}.", 100)
    assert token not in json.dumps(server.seen[0][2])
    assert "GitHub token removed" in prompts(server)[1]


def test_an_answer_that_the_limit_cut_is_marked(server: Server, spent: Spent) -> None:
    choice = {"message": {"content": "Sixty steps, of which the"}, "finish_reason": "length"}
    server.script = [raw(json.dumps({"choices": [choice]}).encode())]
    assert model(server, spent).summarise(TEXT, 100) == "Sixty steps, of which the …"


def test_nothing_is_asked_for_nothing(server: Server, spent: Spent) -> None:
    assert model(server, spent).summarise(" \n", 100) == ""
    with pytest.raises(Invalid):
        model(server, spent).summarise(TEXT, 0)
    with pytest.raises(Invalid):
        model(server, spent).summarise("half \ud800", 10)
    assert (server.seen, spent.total) == ([], 0)


# budgets


def test_the_servers_own_count_is_booked(server: Server, spent: Spent) -> None:
    server.script = [well("Sixty steps.", usage={"prompt_tokens": 700, "completion_tokens": 34, "total_tokens": 734})]
    model(server, spent).summarise(TEXT, 100)
    assert spent.total == 734


@pytest.mark.parametrize(
    "usage", [None, {}, [], 7, {"total_tokens": 0}, {"total_tokens": -5}, {"total_tokens": "9"}, {"total_tokens": True},
              {"total_tokens": 10**12}, {"total_tokens": 1.5}],
)  # fmt: skip
def test_without_a_count_that_can_be_both_sides_are_estimated(server: Server, spent: Spent, usage: Any) -> None:
    server.script = [well("Sixty steps.", usage=usage)]
    model(server, spent).summarise(TEXT, 100)
    assert spent.total == sum(count_tokens(text) for text in prompts(server)) + count_tokens("Sixty steps.")


def test_a_long_text_is_cut_to_what_one_call_may_hold_and_the_prompt_says_so(server: Server, spent: Spent) -> None:
    long = TEXT * 40
    model(server, spent, call_tokens=2_000).summarise(long, 300)
    system, user = prompts(server)
    assert user.endswith("…") and long.startswith(user[:-1])
    assert f"the first {len(user) - 1} of {len(long)} characters" in system
    assert 1_900 < count_tokens(system) + count_tokens(user) + 300 <= 2_000


def test_a_call_that_has_no_room_for_its_text_is_not_made(server: Server, spent: Spent) -> None:
    with pytest.raises(OverBudget, match="call_tokens"):
        model(server, spent, call_tokens=2_000).summarise(TEXT * 40, 1_900)
    with pytest.raises(OverBudget, match="call_tokens"):
        model(server, spent, call_tokens=100).summarise(TEXT, 10)
    assert (server.seen, spent.total) == ([], 0)


def test_a_call_that_the_day_cannot_pay_is_not_made(server: Server, spent: Spent) -> None:
    usage = {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1_000}
    server.script = [well("Sixty steps.", usage=usage)]
    asked = model(server, spent, day_tokens=2_900)
    asked.summarise(TEXT, 100)
    asked.summarise(TEXT, 100)
    with pytest.raises(OverBudget, match="900 are left"):
        asked.summarise(TEXT, 100)
    assert (len(server.seen), spent.total) == (2, 2_000)


def test_what_other_days_cost_does_not_count(server: Server, spent: Spent) -> None:
    spent.days["2001-01-01"] = 10**9
    assert model(server, spent).summarise(TEXT, 100)


# what goes wrong


def refused(asked: LanguageModel, text: str = TEXT, budget: int = 100) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        asked.summarise(text, budget)
    error = caught.value
    assert KEY not in f"{error!r} {error} {error.__cause__!r} {error.__context__!r}"
    assert error.next_step and len(str(error)) < 250
    return error


@pytest.mark.parametrize(
    ("status", "advice"),
    [(400, "url and name"), (401, "HOLDFAST_MODEL_KEY"), (403, "HOLDFAST_MODEL_KEY"), (404, "url and name"),
     (429, "later"), (500, "later"), (503, "later")],
)  # fmt: skip
def test_a_status_is_told_with_what_to_do(server: Server, spent: Spent, status: int, advice: str) -> None:
    server.script = [fails(status)]
    error = refused(model(server, spent))
    assert str(status) in error.message and advice in error.next_step
    assert len(server.seen) == 1
    assert spent.total == sum(count_tokens(text) for text in prompts(server)), "it was sent, so its prompt counts"


@pytest.mark.parametrize(
    "data",
    [b"", b"<html>", b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b"7", b'{"choices": []}', b'{"choices": {}}', b"{}",
     b'{"choices": [null]}', b'{"choices": [{"message": null}]}', b'{"choices": [{"text": "old"}]}', says(""), says(" \n"),
     says(None), says(7), says(["part"]), b"x" * (2 << 20)],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
def test_an_answer_that_is_none_is_told_and_counted(server: Server, spent: Spent, data: bytes) -> None:
    server.script = [raw(data)]
    refused(model(server, spent))
    assert spent.total == sum(count_tokens(text) for text in prompts(server))


@pytest.mark.parametrize("behaviour", [never, drip, drip_body], ids=lambda behaviour: behaviour.__name__)
def test_an_answer_that_takes_too_long_is_given_up(server: Server, spent: Spent, behaviour: Behaviour) -> None:
    server.script = [behaviour]
    assert "too long" in refused(model(server, spent, timeout_seconds=0.3)).message
    assert spent.total > 0


@pytest.mark.parametrize("behaviour", [breaks_off, no_http, lambda handler: None])
def test_an_answer_that_breaks_off_is_told(server: Server, spent: Spent, behaviour: Behaviour) -> None:
    server.script = [behaviour]
    refused(model(server, spent))
    assert spent.total > 0


def test_a_redirect_is_not_followed(server: Server, spent: Spent) -> None:
    server.script = [fails(307, Location=f"{server.url}/elsewhere"), well("Sixty steps.")]
    assert "redirect" in refused(model(server, spent)).next_step
    assert len(server.seen) == 1


@pytest.mark.parametrize(("text", "budget"), [(TEXT, 20), ("Two short words here.", 100)])
def test_a_summary_that_is_too_long_is_refused(server: Server, spent: Spent, text: str, budget: int) -> None:
    server.script = [well("It went on and on. " * 8, usage={"total_tokens": 500})]
    refused(model(server, spent), text, budget)
    assert spent.total == 500


def test_a_summary_a_little_above_its_budget_is_taken(server: Server, spent: Spent) -> None:
    server.script = [well("x" * 4 * 30)]
    assert count_tokens(model(server, spent).summarise(TEXT, 20)) == 30


def test_a_closed_port_is_told_and_costs_nothing(spent: Spent) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening, so no other program can get it
        port = taken.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/v1", f"https://127.0.0.1:{port}/v1", "http://a..b/v1"):
            refused(LanguageModel(settings.ModelSettings(url=url, name="small"), spent))
    assert spent.total == 0


def test_tls_is_not_spoken_with_a_server_that_has_none(server: Server, spent: Spent) -> None:
    refused(LanguageModel(settings.ModelSettings(url=server.url.replace("http:", "https:"), name="small"), spent))
    assert (server.seen, spent.total) == ([], 0)


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8080", "localhost", "ftp://example.org/v1", "file:///etc/passwd", "http://", "http://[::1/v1",
     "http://example.org:99999/v1", "http://example.org:x/v1", f"http://user:{KEY}@example.org/v1",
     f"http://example.org/v1?key={KEY}", f"http://example.org/v1#{KEY}", "http://example.org/a b", "http://exämple.org/v1",
     "http://example.org/\r\nX: y", f"HTTP//{KEY}"],
)  # fmt: skip
def test_an_address_that_cannot_be_used_is_refused_without_repeating_it(spent: Spent, url: str) -> None:
    with pytest.raises(Invalid) as caught:
        LanguageModel(settings.ModelSettings(url=url, name="small"), spent).summarise(TEXT, 100)
    assert KEY not in str(caught.value) and "[model]" in str(caught.value)


def test_without_a_url_there_is_no_model(spent: Spent) -> None:
    with pytest.raises(Unavailable, match="No model is set"):
        LanguageModel(settings.ModelSettings(), spent).summarise(TEXT, 100)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel"])
def test_what_cannot_be_a_key_is_refused_without_repeating_it(
    server: Server, spent: Spent, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("HOLDFAST_MODEL_KEY", key)
    with pytest.raises(Invalid) as caught:
        model(server, spent).summarise(TEXT, 100)
    assert "HOLDFAST_MODEL_KEY" in str(caught.value) and key not in repr(caught.value) + repr(caught.value.__context__)
    assert server.seen == []


# settings


def test_the_environment_sets_texts_as_they_are_and_numbers_as_numbers() -> None:
    given = {
        "HOLDFAST_MODEL_URL": "http://127.0.0.1:1/v1", "HOLDFAST_MODEL_NAME": "4", "HOLDFAST_MODEL_KEY": "77",
        "HOLDFAST_MODEL_KEY_ENV": "HOLDFAST_1e3", "HOLDFAST_MODEL_TIMEOUT_SECONDS": "2.5", "HOLDFAST_MODEL_DAY_TOKENS": "9",
        "HOLDFAST_PATHS_MEMORY": "7",
    }  # fmt: skip
    found = settings.load('[model]\nname = "file"\ncall_tokens = 5\n', given)
    assert found.model == settings.ModelSettings("http://127.0.0.1:1/v1", "4", "HOLDFAST_1e3", 2.5, 5, 9)
    assert found.paths.memory == "7"


@pytest.mark.parametrize(
    "text", ["key = 'secret'", "url = 7", "timeout_seconds = 0", "call_tokens = 0", "day_tokens = -1"]
)
def test_settings_of_a_model_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="model"):
        settings.load(f"[model]\n{text}\n", {})
