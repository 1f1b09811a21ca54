"""Schedules: what is read, what is refused, and which slots there are, summer time included."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.formats import schedules
from holdfast.formats.schedules import MOST_COUNTED, Timetable, parse, zone

SINCE = datetime(2024, 1, 1, tzinfo=UTC)
ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC")


def table(schedule: str, where: str = "UTC", since: datetime = SINCE) -> Timetable:
    return Timetable(parse(schedule), zone(where), since)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def slots(schedule: str, where: str, start: str, end: str) -> list[str]:
    """Return the slots between two moments, by the clock of their zone."""
    made, found = table(schedule, where), []
    slot = made.next(at(start))
    while slot and slot < at(end):
        found.append(slot.astimezone(zone(where)).strftime("%d %H:%M %Z"))
        slot = made.next(slot)
    return found


# what is read


@pytest.mark.parametrize(
    "text",
    ["", "x", "every", "every 0", "every -1", "every x", "every 1.5", "every 5s", "every 99999999999", "* * * *",
     "* * * * * *", "60 * * * *", "0 24 * * *", "0 0 32 1 *", "0 0 1 13 *", "0 0 * * 8", "@reboot", "*/0 * * * *",
     "5-1 * * * *", "a b c d e", "\0", "* " * 400],
)  # fmt: skip
def test_what_is_no_schedule_is_refused_in_the_words_of_the_contract(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    assert str(refused.value) == f"Invalid schedule '{shown}'. Use cron syntax or 'every N'."


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 12 31 2 *"])
def test_a_schedule_that_never_fires_is_refused_and_says_so(text: str) -> None:
    with pytest.raises(Invalid, match="never fires"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "cron"),
    [("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@WEEKLY", "0 0 * * 0"), ("@monthly", "0 0 1 * *"),
     ("@yearly", "0 0 1 1 *"), (" 0  9 * * mon-fri ", "0 9 * * mon-fri"), ("0 0 29 2 *", "0 0 29 2 *")],
)  # fmt: skip
def test_nicknames_and_spaces_are_understood(text: str, cron: str) -> None:
    assert parse(text).cron == cron


@given(st.text(max_size=40) | st.from_regex(r"[0-9*/,LW#-]{1,6}( [0-9*/,LW#A-Z-]{1,6}){4}", fullmatch=True))
def test_any_text_is_a_schedule_or_is_refused(text: str) -> None:
    try:
        made = parse(text)
    except Invalid:
        return
    assert table(made.text).next(SINCE) is not None


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "", "America", "../../etc/passwd", "/etc/localtime", "Europe/Berlin\0", "x" * 5_000]
)
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="There is no time zone"):
        zone(name)


def test_a_zone_that_is_nearly_right_is_hinted_at() -> None:
    with pytest.raises(Invalid) as refused:
        zone("europe/berln")
    assert str(refused.value) == (
        'There is no time zone "europe/berln". Did you mean "Europe/Berlin"? '
        "Use an IANA name like Europe/Berlin, or local."
    )


@pytest.mark.parametrize("name", ["Europe/Berlin", ":Europe/Berlin", "/usr/share/zoneinfo/Europe/Berlin"])
def test_local_is_the_zone_of_the_machine_with_its_summer_time(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TZ", name)
    try:
        found = zone("local")
    except Invalid:
        pytest.skip("this machine has no zone files")
    hours = {datetime(2026, month, 1, tzinfo=found).utcoffset() for month in (1, 7)}
    assert hours == {timedelta(hours=1), timedelta(hours=2)}


def test_a_local_zone_that_cannot_be_found_is_a_fixed_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "No/Where")
    assert datetime(2026, 1, 1, tzinfo=zone("local")).utcoffset() is not None
    monkeypatch.delenv("TZ")
    monkeypatch.setattr(schedules, "_LOCALTIME", "/nowhere/localtime")
    assert datetime(2026, 1, 1, tzinfo=zone("local")).utcoffset() is not None


# summer time: Europe/Berlin leaves out 02:00-03:00 on 2026-03-29, and has it twice on 2026-10-25;
# America/New_York leaves out 02:00-03:00 on 2026-03-08, and has 01:00-02:00 twice on 2026-11-01


@pytest.mark.parametrize(
    ("schedule", "where", "start", "end", "found"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", "2026-03-31T00:00Z", ["29 03:00 CEST", "30 02:30 CEST"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", "2026-10-27T00:00Z", ["25 02:30 CEST", "26 02:30 CET"]),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T00:00Z", "2026-10-25T02:00Z", ["25 02:30 CEST", "25 02:30 CET"]),
        ("30 * * * *", "Europe/Berlin", "2026-03-29T00:00Z", "2026-03-29T02:00Z", ["29 01:30 CET", "29 03:30 CEST"]),
        ("0 2 * * *", "America/New_York", "2026-03-08T00:00Z", "2026-03-10T00:00Z", ["08 03:00 EDT", "09 02:00 EDT"]),
        ("30 1 * * *", "America/New_York", "2026-11-01T00:00Z", "2026-11-03T00:00Z", ["01 01:30 EDT", "02 01:30 EST"]),
        ("0 9 * * 1-5", "America/New_York", "2026-03-06T00:00Z", "2026-03-10T00:00Z", ["06 09:00 EST", "09 09:00 EDT"]),
    ],
)  # fmt: skip
def test_slots_at_the_edges_of_summer_time(schedule: str, where: str, start: str, end: str, found: list[str]) -> None:
    assert slots(schedule, where, start, end) == found


@pytest.mark.parametrize("where", ZONES)
@pytest.mark.parametrize(
    "schedule", ["30 2 * * *", "*/7 * * * *", "* 2 * * *", "0 */2 * * *", "59 1-3 * * *", "@daily"]
)
def test_the_way_back_finds_what_the_way_on_finds(schedule: str, where: str) -> None:
    """Also in the hour that happens twice, and next to the one that does not happen."""
    made = table(schedule, where)
    for day in ("2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01"):
        start = at(f"{day}T00:00Z") - timedelta(hours=30)
        on, slot = [], made.next(start)
        while slot and slot < start + timedelta(hours=48):
            on.append(slot)
            slot = made.next(slot)
        for minute in range(0, 18 * 60, 10):
            moment = at(f"{day}T00:00Z") + timedelta(minutes=minute)
            assert made.last(moment) == max(one for one in on if one <= moment)


# invariants

_FIELD = st.sampled_from(["*", "*/2", "*/7", "0", "3", "5-9", "1,4,8", "2-8/3"])
_CRON = st.tuples(_FIELD, _FIELD, st.sampled_from(["*", "1", "29", "L", "*/5"]), st.sampled_from(["*", "2", "1-6"]),
                  st.sampled_from(["*", "1-5", "MON#2", "5L"])).map(" ".join)  # fmt: skip
_SCHEDULE = _CRON | st.integers(1, 100_000).map(lambda seconds: f"every {seconds}")
_MOMENT = st.datetimes(datetime(2024, 1, 2), datetime(2030, 1, 1), timezones=st.just(UTC))


@given(_SCHEDULE, st.sampled_from(ZONES), _MOMENT)
def test_next_and_last_agree(schedule: str, where: str, moment: datetime) -> None:
    made = table(schedule, where)
    following, before = made.next(moment), made.last(moment)
    assert following is not None and following > moment
    assert following.microsecond == 0
    assert made.last(following) == following
    assert made.last(following - timedelta(seconds=1)) == before
    if before:
        assert SINCE < before <= moment
        assert made.next(before) == following
        assert made.count(before, following) == 0


@given(_SCHEDULE, st.sampled_from(ZONES), _MOMENT, st.integers(0, 40))
def test_slots_between_two_moments_are_counted(schedule: str, where: str, moment: datetime, count: int) -> None:
    made = table(schedule, where)
    found: list[datetime] = []
    for _ in range(count + 1):
        slot = made.next(found[-1] if found else moment)
        assert slot is not None
        found.append(slot)
    assert made.count(moment, found[-1]) == count
    assert all(one < other for one, other in itertools.pairwise(found))


@given(st.integers(1, 10_000), _MOMENT, _MOMENT)
def test_every_n_counts_from_when_it_holds_so_that_two_agree(seconds: int, since: datetime, moment: datetime) -> None:
    slot = table(f"every {seconds}", since=since).last(moment)
    whole = since.replace(microsecond=0)
    if moment < whole + timedelta(seconds=seconds):
        assert slot is None
    else:
        assert slot is not None
        assert (slot - whole) % timedelta(seconds=seconds) == timedelta(0)
        assert timedelta(0) <= moment - slot < timedelta(seconds=seconds)


def test_a_year_of_minutes_is_counted_in_no_time() -> None:
    for schedule in ("* * * * *", "every 1"):
        assert table(schedule).count(SINCE, SINCE + timedelta(days=365)) == MOST_COUNTED
