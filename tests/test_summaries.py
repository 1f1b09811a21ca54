"""Summaries without a model: important sentences are kept, nothing is made up, and omissions are reported."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.formats.summaries import Entry, extract, head
from holdfast.model.names import count_tokens

many = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
PREFIX = re.compile(r"(?:\d{4}-\d\d-\d\d|undated): ")
LEFT_OUT = re.compile(
    r"\((?:\d+ of \d+ entr(?:y|ies) (?:is|are) in no sentence here(?:; \d+ of them contains? only a greeting)?\."
    r"|All of them are here, but some are shortened\.|\d+ of \d+ left out)\)|…"
)
CHATTER = (
    "Good morning!", "Thanks, that sounds great.", "Now let me look at the next file.", "That seems fine to me.",
    "I am still reading the code and will tell you more later.", "OK, going on with the work.", "Hi there, how are you today?",
    "Looking at the tests again, nothing new so far.", "Still waiting for the build to finish.", "You're welcome :)",
    "Could you please have a look at this when you have time?", "The page reads well and the words are simple.",
    "Ran the whole suite again, everything is as before.", "I think we are making some progress here.",
    "The weather is nice and the coffee was good.", "Let me check that once more.", "So, going to read on.",
)  # fmt: skip
SUBJECTS = (
    "parser window button page list colour margin footer header table menu column border icon label panel".split()
)
VERBS = "is a bit odd|could be nicer|reads well|seems slow|looks the same|is quite short|was moved around".split("|")
FACTS = (
    "We decided to use SQLite instead of Postgres because one file is enough.",
    "The release is planned for 2026-05-14.",
    "The build failed with error E1234: missing symbol.",
    "The configuration lives in /etc/holdfast/main.toml.",
    "Maria Keller owns the billing service.",
    "Latency dropped from 480 ms to 95 ms after the cache.",
    "Never restart the queue during a backup.",
    "The limit is 250 requests per minute.",
    "The refresh happens in refresh_session() before every call.",
    'The customer said "no cloud storage" in the last talk.',
)


def entry(number: int, text: str, day: int = 1) -> Entry:
    return Entry(id=str(number), time=f"2026-03-{day:02d}T10:00:00.000Z", text=text)


def talk(seed: int, varied: bool) -> list[Entry]:
    """200 entries of chatter, ten of which contain a fact between two unimportant sentences."""
    chance = random.Random(seed)

    def idle() -> str:
        if varied and chance.random() < 0.7:
            return f"The {chance.choice(SUBJECTS)} near the {chance.choice(SUBJECTS)} {chance.choice(VERBS)}."
        return chance.choice(CHATTER)

    places = sorted(chance.sample(range(200), len(FACTS)))
    found = []
    for number in range(200):
        middle = FACTS[places.index(number)] if number in places else idle()
        found.append(entry(number, f"{idle()} {middle} {idle()}", 1 + number // 20))
    return found


def spoken(line: str) -> str:
    """The text that a line of a summary repeats."""
    return PREFIX.sub("", line).strip("…")


# what is kept


@pytest.mark.parametrize("varied", [False, True], ids=["the same chatter", "varied chatter"])
@pytest.mark.parametrize("seed", range(5))
def test_facts_among_chatter_are_kept(seed: int, varied: bool) -> None:
    entries = talk(seed, varied)
    made = extract(entries, 600)
    assert [fact for fact in FACTS if fact not in made] == []
    assert count_tokens(made) <= 600
    assert [line for line in made.splitlines() if "Good morning" in line or "welcome" in line] == []
    assert sorted(FACTS, key=made.index) == list(FACTS), "in the order of time"


def test_the_day_stands_where_it_changes_and_only_there() -> None:
    entries = [
        entry(number, f"Run {number} used file_{number}.py. " + "So it goes on and on. " * 9, 1 + number // 3)
        for number in range(9)
    ]
    made = extract(entries, 150).splitlines()
    days = [found[0] for line in made if (found := PREFIX.match(line))]
    assert days == sorted(set(days)) and days[0] == "2026-03-01: "


def test_what_is_short_enough_is_returned_whole() -> None:
    entries = [
        entry(1, "Hello!"),
        entry(2, " One fact.\nAnd a line. "),
        entry(3, ""),
        entry(4, "Next day.", 2),
        Entry("5", "", "When?"),
    ]
    whole = "2026-03-01: Hello!\nOne fact.\n  And a line.\n2026-03-02: Next day.\nundated: When?"
    assert extract(entries, 1_000) == whole
    assert extract(entries, count_tokens(whole)) == whole
    assert extract(entries, count_tokens(whole) - 1) != whole
    assert extract([Entry("1", "", "No day."), Entry("2", "yesterday", "None.")], 100) == "No day.\nNone."


def test_nothing_gives_nothing() -> None:
    assert extract([], 100) == extract([entry(1, "")], 100) == ""
    assert extract([entry(1, "x")], 0) == extract([entry(1, "x")], -1) == ""


def test_what_is_said_again_and_again_is_said_once() -> None:
    entries = [entry(number, "The deploy of api-server failed with status 503. " * 2) for number in range(50)]
    entries += [
        entry(50 + number, f"Poll {number}: the queue of the worker holds {number * 3} jobs.") for number in range(300)
    ]
    made = extract([*entries, entry(999, "We chose RabbitMQ because of its acknowledgements.")], 120)
    assert made.count("api-server") == 1
    assert made.count("Poll") < 5
    assert "RabbitMQ" in made


def test_a_sentence_that_is_too_long_is_cut_where_the_fact_is() -> None:
    tail = "so that the port of the gateway must be 9443 and never 443"
    long = "the text goes on about nothing in particular, " * 40 + tail
    made = extract([entry(1, long)], 100)
    assert tail in made and f"…{tail}" not in long
    assert made.splitlines()[-1] == "(All of them are here, but some are shortened.)"
    assert all(len(line) < 300 for line in made.splitlines())


def test_short_forms_initials_and_dates_end_no_sentence() -> None:
    parts = [
        "See e.g. Table 4 in the report by J. Smith.",
        "Das Treffen ist am 12. März in Raum 7.",
        'He said "stop." Then 5 left.',
    ]
    filler = [entry(9, "It is what it is and so on. " * 60)]
    made = extract([entry(1, " ".join(parts)), *filler], 80)
    assert parts[0] in made and parts[1] in made
    assert 'He said "stop."' in made and '"stop." Then' not in made


# the report of what was left out


def test_the_last_line_says_what_was_left_out() -> None:
    entries = [entry(number, text) for number, text in enumerate(["Hello!", "Thanks a lot!", "", "你好！"])]
    entries += [entry(9, f"Decision {number}: part_{number} must stay.") for number in range(5)]
    entries += [entry(10, f"Nothing much to tell about the {word} here, it reads well, I guess.") for word in SUBJECTS]
    made = extract(entries, 95)
    last = made.splitlines()[-1]
    here = [one for one in entries if one.text and one.text in made]
    assert here
    assert (
        last
        == f"({len(entries) - len(here)} of {len(entries)} entries are in no sentence here; 4 of them contain only a greeting.)"
    )


def test_entries_that_are_only_greetings_leave_only_the_note() -> None:
    made = extract([entry(number, "Good morning, everyone!") for number in range(40)], 50)
    assert made == "(40 of 40 entries are in no sentence here; 40 of them contain only a greeting.)"


@pytest.mark.parametrize("budget", range(1, 40))
def test_a_small_budget_is_kept_and_still_tells_of_a_cut(budget: int) -> None:
    made = extract(talk(1, True), budget)
    assert 0 < count_tokens(made) <= budget
    assert LEFT_OUT.fullmatch(made.splitlines()[-1])


# other scripts


def test_text_without_spaces_is_read_sentence_by_sentence() -> None:
    facts = [
        "我们决定使用SQLite，因为它很简单。",
        "服务器在端口8080上运行。",
        "部署失败：错误代码503。",
        "请看「数据库迁移」一章。",
    ]
    idle = [
        "今天天气很好，大家都在慢慢地做事。",
        "我正在看下一个文件，稍后再说。",
        "你好！",
        "谢谢！",
        "一切都和以前一样，没有什么新的。",
    ]
    texts = [
        "".join((idle[number % 5], facts[number // 10] if number % 10 == 5 else "", idle[(number + 2) % 5]))
        for number in range(40)
    ]
    made = extract([entry(number, text) for number, text in enumerate(texts)], 120)
    assert [fact for fact in facts if fact not in made] == []
    assert "你好" not in made and "谢谢" not in made
    assert count_tokens(made) <= 120


def test_other_alphabets_keep_their_numbers_and_names() -> None:
    idle = "Сегодня мы опять читали код и ничего нового не нашли."
    entries = [entry(number, f"{idle} {idle}") for number in range(30)]
    entries.insert(7, entry(99, f"{idle} Сервер Берёза слушает порт 8443. {idle}"))
    assert "Сервер Берёза слушает порт 8443." in extract(entries, 60)


# invariants

words = st.text(max_size=30).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
sentences = st.sampled_from(
    [
        *CHATTER,
        *FACTS,
        "你好！",
        "我们决定使用它，因为它很简单。",
        "- a list\n- of 3\n\n```\ncode()\n```",
        "x" * 700,
        "字" * 300,
        "a, " * 200,
    ]
)
texts = st.lists(sentences | words, max_size=5).map(" ".join)
entries_of_all_kinds = st.lists(
    st.builds(Entry, st.just("id"), st.sampled_from(["", "2026-01-01", "2026-01-02T10:00:00Z", "soon", "2026-01-03T00:00:00.000Z"]), texts),
    max_size=12,
)  # fmt: skip


@many
@example(entries=[Entry("", "", "x")], budget=0)
@example(entries=[Entry("", "2026-01-01", "字" * 300)], budget=30)
@given(entries=entries_of_all_kinds, budget=st.integers(0, 300))
def test_every_line_is_of_an_entry_and_all_fit_the_budget(entries: list[Entry], budget: int) -> None:
    made = extract(entries, budget)
    assert count_tokens(made) <= budget
    assert made == extract(entries, budget)
    whole = extract(entries, 1 << 40)
    assert count_tokens(made) <= count_tokens(whole), "never longer than what it summarises"
    if made == whole or not made:
        assert not made or all(one.text.strip().replace("\n", "\n  ") in made for one in entries)
        return
    *lines, last = made.split("\n")
    assert LEFT_OUT.fullmatch(last)
    place = 0
    for line in lines:
        here = [number for number, one in enumerate(entries) if spoken(line) in one.text]
        assert here, line
        place = next((number for number in here if number >= place), -1)
        assert place >= 0, "in the order of the entries"


def test_another_process_with_other_hashes_writes_the_same() -> None:
    code = (
        "import json, sys\nfrom holdfast.formats.summaries import Entry, extract\n"
        "entries = [Entry(**one) for one in json.load(sys.stdin)]\n"
        "print(json.dumps([extract(entries, budget) for budget in (60, 300, 900)]))"
    )
    entries = [*talk(3, True), entry(1000, "我们决定使用SQLite，因为它很简单。今天天气很好。", 11)]
    given = json.dumps([{"id": one.id, "time": one.time, "text": one.text} for one in entries])
    made = set()
    for seed in ("0", "1", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], input=given, env=environment, capture_output=True, text=True, check=True
        )
        made.add(done.stdout)
    assert made == {json.dumps([extract(entries, budget) for budget in (60, 300, 900)]) + "\n"}


@many
@example(text="字" * 50, most=10)
@example(text="one two three", most=2)
@given(text=words | texts, most=st.integers(-1, 100))
def test_the_head_of_a_text_fits_and_is_marked(text: str, most: int) -> None:
    made = head(text, most)
    assert count_tokens(made) <= max(0, most)
    assert made == text or (made == "" and most < 1) or (made.endswith("…") and text.startswith(made[:-1]))


def test_a_cut_falls_between_words() -> None:
    assert head("alpha beta gamma delta", 4) == "alpha beta…"
    assert head("alpha, beta", 2) == "alpha…"
