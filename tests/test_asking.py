"""A question is read for when and for whom; nothing in it can be an error."""

from __future__ import annotations

import time
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.model.queries import MAX_WORDS, end_of_day, read_question

ASKED = "2023-06-15T10:00:00Z"  # a Thursday


def day(text: str) -> float:
    return float((date.fromisoformat(text) - date(1970, 1, 1)).days)


def periods(question: str) -> list[tuple[float, float]]:
    return [(period.first, period.end) for period in read_question(question, ASKED).periods]


@pytest.mark.parametrize(
    ("question", "first", "end"),
    [
        ("what happened on 2023-05-08?", "2023-05-08", "2023-05-09"),
        ("what happened on May 8, 2023?", "2023-05-08", "2023-05-09"),
        ("what happened on the 8th of May 2023?", "2023-05-08", "2023-05-09"),
        ("what did we plan in February 2022?", "2022-02-01", "2022-03-01"),
        ("what did we plan in December 2022?", "2022-12-01", "2023-01-01"),
        ("what was decided in 2021?", "2021-01-01", "2022-01-01"),
        ("what did I say yesterday?", "2023-06-14", "2023-06-15"),
        ("what did I say two days ago?", "2023-06-13", "2023-06-14"),
        ("what did I buy last Monday?", "2023-06-12", "2023-06-13"),
        ("what did I buy on Thursday?", "2023-06-08", "2023-06-09"),
        ("what happened this week?", "2023-06-08", "2023-06-16"),
    ],
)
def test_a_time_is_read_as_days(question: str, first: str, end: str) -> None:
    assert periods(question) == [(day(first), day(end))]


def test_weeks_and_months_ago_are_days_around_then() -> None:
    ((first, end),) = periods("which book did I mention three weeks ago?")
    assert first < day("2023-05-25") < end
    assert end - first < 7


@pytest.mark.parametrize("question", ["who may march with us?", "a jan of the sun", "31 February 2023", "room 12", ""])
def test_what_names_no_time_is_none(question: str) -> None:
    assert periods(question) == []


def test_a_day_without_a_year_fits_every_year_and_what_was_told_soon_after_fits_too() -> None:
    (period,) = read_question("what happened on 8 May?", ASKED).periods
    for year in ("2019", "2022", "2026"):
        assert period.fits(day(f"{year}-05-08"), after=7, before=3) > 0.7
        after, before = (period.fits(day(f"{year}-05-{n}"), after=7, before=3) for n in ("12", "04"))
        assert after > before
        assert period.fits(day(f"{year}-11-08"), after=7, before=3) < 0.01


def test_names_are_what_may_name_somebody_and_dates_are_known_as_such() -> None:
    ask = read_question("When did Will tell Caroline about the race on May 8, 2023?", ASKED)
    assert {"will", "caroline"} <= ask.names
    assert "when" not in ask.names
    assert ask.dated == {"may", "8", "2023"}


@pytest.mark.parametrize(
    ("question", "own"),
    [
        ("What degree did I graduate with?", True),
        ("Where does my sister live?", True),
        ("Can you remind me of the recipe you told me?", False),
        ("What did Caroline say?", False),
        ("How large is the US?", False),
    ],
)
def test_a_question_about_the_asker_is_told_from_one_about_an_answer(question: str, own: bool) -> None:
    assert read_question(question, ASKED).own is own


def test_a_time_of_asking_that_is_none_is_refused() -> None:
    with pytest.raises(Invalid):
        end_of_day("teatime")


@given(st.text(max_size=200), st.sampled_from(["", ASKED, "1970-01-01"]))
def test_any_text_can_be_read(text: str, asked: str) -> None:
    read_question(text, asked)


@given(
    st.lists(
        st.sampled_from("last past 99 999 a few years months ago on may 31 february 0 9999 0000-00-00 of in".split())
    )
)
def test_any_words_of_time_can_be_read(words: list[str]) -> None:
    for period in read_question(" ".join(words), ASKED).periods:
        assert 0 <= period.fits(19_000.0, after=7, before=3) <= 1


@pytest.mark.parametrize("asked", [ASKED, "9999-12-31", "9999-12-31T23:59:59-12:00"])
def test_the_last_month_of_all_can_be_named(asked: str) -> None:
    assert read_question("in december 9999", asked).periods[0].end == day("9999-12-31") + 1
    assert read_question("in december", asked).periods[0].yearly


@pytest.mark.parametrize("text", ["may ", "may 5 ", "in may ", "2023-05-01 "])
def test_a_long_text_is_read_once_and_not_once_per_time_that_it_names(text: str) -> None:
    started = time.process_time()
    read_question(text * 10_000, ASKED)
    assert time.process_time() - started < 5


def test_of_very_many_times_the_first_ones_count() -> None:
    named = " ".join(f"{1900 + number // 12}-{number % 12 + 1:02}-01" for number in range(1_000))
    read = read_question(f"2023-05-08 {named}", ASKED).periods
    assert len(read) == MAX_WORDS
    assert read[0].first == day("2023-05-08")
