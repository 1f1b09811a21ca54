"""The formats: front matter, dated entries, logs, queries, names, times, places and scopes.

Each format is read as people and other programs write it, and what is written reads back the same.
"""

from __future__ import annotations

import json
import math
import re
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from holdfast import Memory
from holdfast.errors import AlreadyExists, Damaged, HoldfastError, Invalid, NotFound
from holdfast.formats import jsonl, markdown, sections
from holdfast.model import names, queries, times
from holdfast.model.kinds import KINDS, Layout
from holdfast.model.names import count_tokens
from holdfast.model.records import Scope
from holdfast.model.settings import Paths

many = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))

# front matter: reading


@pytest.mark.parametrize(
    ("text", "fields", "body"),
    [
        ("---\na: 1\n---\nbody\n", {"a": 1}, "body\n"),
        ("---\r\na: 1\r\nb: x\r\n---\r\nbody\r\n", {"a": 1, "b": "x"}, "body\r\n"),
        ("\ufeff---\na: 1\n---\nbody", {"a": 1}, "body"),
        ("---  \na: 1\n--- \t\nbody", {"a": 1}, "body"),
        ("---\n---\nbody", {}, "body"),
        ("---\n\n# only a comment\n---\nbody", {}, "body"),
        ("---\na: 1\n---", {"a": 1}, ""),
        ("no front matter\n---\na: 1\n---\n", {}, "no front matter\n---\na: 1\n---\n"),
        ("", {}, ""),
        ("\n---\na: 1\n---\n", {}, "\n---\na: 1\n---\n"),
        ("----\na: 1\n----\n", {}, "----\na: 1\n----\n"),
        ("---\na:\n  b: [1, 2]\n  c: {d: null}\n---\n", {"a": {"b": [1, 2], "c": {"d": None}}}, ""),
        ("---\n\"quoted key\": 1\n'single': two\n---\n", {"quoted key": 1, "single": "two"}, ""),
        ("---\na: 1 # why\n# a line\nb: '#not'\n---\n", {"a": 1, "b": "#not"}, ""),
        ("---\na: |\n  one\n  two\nb: >\n  three\n  four\n---\n", {"a": "one\ntwo\n", "b": "three four\n"}, ""),
        ("---\na: one\n  two\nb: [1,\n  2]\n---\n", {"a": "one two", "b": [1, 2]}, ""),
        ("---\ntags:\n- x\n- y\n---\n", {"tags": ["x", "y"]}, ""),
        ("---\na: 2026-02-23\nb: 2026-02-23T10:00:00Z\n---\n", {"a": "2026-02-23", "b": "2026-02-23T10:00:00Z"}, ""),
        ("---\na: 'it''s'\nb: \"x: y\"\n---\n", {"a": "it's", "b": "x: y"}, ""),
        ("---\na: 1\n---\n---\nb: 2\n---\n", {"a": 1}, "---\nb: 2\n---\n"),
    ],
)
def test_front_matter_is_read_as_people_write_it(text: str, fields: dict[str, Any], body: str) -> None:
    page = markdown.parse(text.encode())
    assert (page.fault, page.fields, page.body) == ("", fields, body)


def test_a_missing_front_matter_differs_from_an_empty_one() -> None:
    assert markdown.parse(b"text").front is None
    assert markdown.parse(b"---\n---\ntext").front == {}


@pytest.mark.parametrize("text", ["---\na: 1\nbody", "---\n", "---", "---\na: 1\n--\n", "---\na: 1\n ---\n"])
def test_front_matter_that_is_never_closed_is_reported_and_the_text_stays(text: str) -> None:
    page = markdown.parse(text.encode())
    assert page.fault
    assert page.fault_line == 1
    assert page.body == text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("---\na: 1\nb: [1, 2\nc: 3\n---\nbody\n", (3, 4)),
        ("---\na: 1\nb: 2\n\tc: 3\n---\nbody\n", (4, 4)),
        ("---\na: 'open\n---\nbody\n", (2, 3)),
        ("---\na: 1\nb: @x\n---\nbody\n", (3, 3)),
        ("---\na: 1\na: 2\n---\nbody\n", (2, 3)),
        ("---\n- a\n- b\n---\nbody\n", (2, 2)),
        ("---\njust words\n---\nbody\n", (2, 2)),
    ],
)
def test_broken_front_matter_is_reported_with_its_line_and_the_body_stays(text: str, line: tuple[int, int]) -> None:
    page = markdown.parse(text.encode())
    assert page.fault
    assert page.body == "body\n"
    assert line[0] <= page.fault_line <= line[1]


def test_a_file_that_is_not_utf_8_is_reported_and_still_read() -> None:
    page = markdown.parse(b"---\na: 1\n---\ncaf\xe9\n")
    assert page.fault
    assert page.fields == {"a": 1}
    assert page.body.startswith("caf")


@pytest.mark.parametrize("text", ["---\na: &x [1]\nb: *x\n---\n", "---\na: !!python/object:os.system x\n---\n"])
def test_references_and_tags_of_yaml_are_data_or_a_fault(text: str) -> None:
    page = markdown.parse(text.encode())
    assert page.fault or page.fields


# front matter: editing

DOCUMENT = """---
# leading comment
name: Old name   # why it is called so
"quoted key": 1

tags:
  - red
  - blue
# about the status
status: new
text: |
  a: not a field
  # not a comment

  last line
nested: {a: [1, 2], b: "x: y"}
folded: one
  two
empty:
zebra: last
---

# Body
---
name: not a field
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("changes", "old", "new"),
    [
        ({"name": "New"}, "name: Old name   # why it is called so\n", "name: New   # why it is called so\n"),
        ({"status": "done"}, "status: new\n", "status: done\n"),
        ({"quoted key": 2}, '"quoted key": 1\n', '"quoted key": 2\n'),
        ({"tags": ["green"]}, "tags:\n  - red\n  - blue\n", 'tags: ["green"]\n'),
        ({"nested": {"c": 3}}, 'nested: {a: [1, 2], b: "x: y"}\n', 'nested: {"c":3}\n'),
        ({"folded": "x"}, "folded: one\n  two\n", "folded: x\n"),
        ({"text": "short"}, "text: |\n  a: not a field\n  # not a comment\n\n  last line\n", "text: short\n"),
        ({"empty": "full"}, "empty:\n", "empty: full\n"),
        ({"added": True}, "zebra: last\n", "zebra: last\nadded: true\n"),
        ({"status": None}, "status: new\n", ""),
        ({"tags": None}, "tags:\n  - red\n  - blue\n", ""),
        ({"text": None}, "text: |\n  a: not a field\n  # not a comment\n\n  last line\n", ""),
        ({"zebra": None, "status": "done"}, "zebra: last\n", ""),
        ({"absent": None}, "", ""),
        ({"status": "new"}, "", ""),
    ],
)
def test_an_edit_changes_the_lines_of_its_fields_and_no_other_byte(
    changes: dict[str, Any], old: str, new: str, mark: str, newline: str
) -> None:
    before = mark + DOCUMENT.replace("\n", newline)
    after = mark + DOCUMENT.replace(old, new, 1).replace("\n", newline)
    if "zebra" in changes:
        after = after.replace("status: new", "status: done", 1)
    assert markdown.edit(before.encode(), changes).decode() == after


@pytest.mark.parametrize(
    ("data", "changes", "result"),
    [
        (b"body\n", {"a": "x"}, b"---\na: x\n---\nbody\n"),
        (b"one\r\ntwo\r\n", {"a": "x"}, b"---\r\na: x\r\n---\r\none\r\ntwo\r\n"),
        (b"---\n---\nbody", {"a": "x"}, b"---\na: x\n---\nbody"),
        (b"", {"a": "x"}, b"---\na: x\n---\n"),
        (b"body", {"a": None}, b"body"),
        (b"\xef\xbb\xbfbody", {"a": "x"}, b"\xef\xbb\xbf---\na: x\n---\nbody"),
    ],
)
def test_front_matter_is_added_where_there_is_none(data: bytes, changes: dict[str, Any], result: bytes) -> None:
    assert markdown.edit(data, changes) == result


@pytest.mark.parametrize(
    "text",
    [
        "---\n{a: 1, b: 2}\n---\nbody",
        "---\na: &x 1\nb: *x\n---\nbody",
        "---\na: 1\n",
        "---\na: [1\n---\nbody",
        "---\n? a\n: 1\n---\nbody",
    ],
)
def test_what_cannot_be_changed_alone_is_refused(text: str) -> None:
    with pytest.raises(Damaged):
        markdown.edit(text.encode(), {"a": "other"})


@pytest.mark.parametrize(("old", "new"), [(1, True), (True, 1), (0, False), (1, 1.0), ("1", 1)])
def test_a_value_of_another_type_is_a_change(old: object, new: object) -> None:
    data = markdown.edit(markdown.render({"a": old, "b": 2}, "body"), {"a": new})
    assert type(markdown.parse(data).fields["a"]) is type(new)


def test_what_is_not_utf_8_or_holds_half_a_character_is_refused() -> None:
    with pytest.raises(Damaged):
        markdown.edit(b"---\na: 1\n---\ncaf\xe9", {"a": 2})
    with pytest.raises(Invalid):
        markdown.render({"a": "x"}, "half \ud800")
    with pytest.raises(Invalid):
        markdown.render({"a": object()}, "body")


words = st.text(max_size=20).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
values: st.SearchStrategy[Any] = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words
    | st.sampled_from(["yes", "No", "~", "null", "1e3", "0x1f", "1_000", "- x", "a: b", "2026-02-30", ".inf", "a #b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
fronts = st.dictionaries(words, values, max_size=5)


def plain(value: Any) -> str:
    """Values as JSON, in which 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


@many
@example(fields={}, body="---\na: 1\n---\ntext")
@example(fields={}, body="---")
@example(fields={"a": "x\u2028y: z", "b": "\x85", "c": "\ufeff"}, body="\ufefftext")
@given(fields=fronts, body=words.filter(lambda text: "\0" not in text))
def test_what_is_written_is_read_back(fields: dict[str, Any], body: str) -> None:
    page = markdown.parse(markdown.render(fields, body))
    assert page.fault == ""
    assert plain(page.fields) == plain(fields)
    gap = "\n" if fields or body.startswith("---") else ""  # keeps a line of dashes from opening front matter
    assert page.body.removeprefix(gap).removesuffix("\n") == body.removesuffix("\n")


@many
@given(
    fields=fronts,
    body=words.filter(lambda text: "\0" not in text),
    changes=st.dictionaries(words, values | st.none(), max_size=3),
)
def test_an_edit_of_what_was_written_sets_its_fields_and_nothing_else(
    fields: dict[str, Any], body: str, changes: dict[str, Any]
) -> None:
    assume(fields)
    before = markdown.render(fields, body)
    page = markdown.parse(markdown.edit(before, changes))
    wanted = {name: value for name, value in {**fields, **changes}.items() if value is not None}
    assert plain(page.fields) == plain(wanted)
    assert page.body == markdown.parse(before).body


PIECES = (
    "a: 1\n", "b: two # why\n", "'c': [1,\n  2]\n", "d: |\n  x: y\n\n  z\n", "# comment\n", "\n", "e:\n- 1\n- 2\n",
    '"f g": {h: i}\n', "j:\n  k:\n    l: m\n", "n: 'it''s'\n", "o: >-\n  folded\n  text\n", "p: one\n  two\n", "q:\n",
    "r: \"a \\\" b\"\n", "# s: 1\n", "t: http://x.org/#y\n",
)  # fmt: skip


@many
@given(
    pieces=st.permutations(PIECES).flatmap(lambda found: st.integers(0, len(found)).map(lambda n: found[:n])),
    changes=st.dictionaries(st.sampled_from([*"abcdejnopqrt", "f g", "new"]), values | st.none(), max_size=3),
    newline=st.sampled_from(["\n", "\r\n"]),
    body=words,
)
def test_an_edit_of_any_document_sets_its_fields_and_keeps_the_rest(
    pieces: list[str], changes: dict[str, Any], newline: str, body: str
) -> None:
    before = ("---\n" + "".join(pieces) + "---\n").replace("\n", newline) + body
    page = markdown.parse(before.encode())
    assume(not page.fault)
    after = markdown.edit(before.encode(), changes).decode()
    found = markdown.parse(after.encode())
    wanted = {
        name: value for name, value in {**page.fields, **changes}.items() if name not in changes or value is not None
    }
    assert plain(found.fields) == plain(wanted)
    assert found.body == body
    touched = {name for name, value in changes.items() if value is None or plain(value) != plain(page.fields.get(name))}
    for piece in pieces:
        if piece.strip("'\"# \n").partition(":")[0].strip("'\" #") not in touched:
            assert piece.replace("\n", newline) in after


# dated entries

ENTRIES = """# Decisions

Words before the first entry.

### [2026-01-02] Use SQLite

**Category:** storage
**Tags:** db, big choice

Because it is there.

---

And more below a line.

---

### [2026-01-02] Use SQLite

Again.

### [2026-01-03]   Spaces around
"""


def test_entries_are_split_at_their_headings_only() -> None:
    found = sections.parse(ENTRIES)
    assert [(entry.anchor, entry.title, entry.line) for entry in found] == [
        ("2026-01-02-use-sqlite", "Use SQLite", 5),
        ("2026-01-02-use-sqlite~2", "Use SQLite", 18),
        ("2026-01-03-spaces-around", "Spaces around", 22),
    ]
    assert (found[0].category, found[0].tags) == ("storage", ("db", "big choice"))
    assert found[0].text == "Because it is there.\n\n---\n\nAnd more below a line."
    assert "".join(entry.source for entry in found) == ENTRIES[ENTRIES.index("###") :]


@pytest.mark.parametrize(
    "line",
    [
        "## [2026-01-02] X",
        "#### [2026-01-02] X",
        "### 2026-01-02 X",
        "### [26-01-02] X",
        " ### [2026-01-02] X",
        "### X",
    ],
)
def test_other_headings_belong_to_the_text(line: str) -> None:
    (entry,) = sections.parse(f"### [2026-01-01] One\n\nbefore\n{line}\nafter\n")
    assert line in entry.text


@pytest.mark.parametrize("fence", ["```", "~~~", "````", "```python", "   ```"])
def test_a_heading_inside_a_fence_is_text(fence: str) -> None:
    close = fence.strip().replace("python", "")
    (entry,) = sections.parse(f"### [2026-01-01] One\n\n{fence}\n### [2026-01-02] Not one\n{close}\nafter\n")
    assert "Not one" in entry.text


@pytest.mark.parametrize("later", ["plain text", "```\ncode\n```", "```python\ncode\n```", "~~~\ncode\n~~~"])
@pytest.mark.parametrize("fence", ["```", "~~~", "```sh"])
def test_a_fence_that_is_never_closed_swallows_no_entry(fence: str, later: str) -> None:
    text = f"### [2026-01-01] One\n\n{fence}\nopen\n\n---\n\n### [2026-01-02] Two\n\n{later}\n\n---\n"
    assert [entry.title for entry in sections.parse(text)] == ["One", "Two"]


def test_dates_that_no_calendar_has_are_flagged_and_kept() -> None:
    found = sections.parse("### [2026-02-30] A\n\nx\n\n### [2024-02-29] B\n\n### [2025-13-01] C\n")
    assert [bool(entry.fault) for entry in found] == [True, False, True]
    assert [entry.title for entry in found] == ["A", "B", "C"]


def test_windows_line_ends_are_read_alike() -> None:
    unix, windows = sections.parse(ENTRIES), sections.parse(ENTRIES.replace("\n", "\r\n"))
    for one, two in zip(unix, windows, strict=True):
        assert (one.anchor, one.title, one.tags, one.category, one.line) == (
            two.anchor, two.title, two.tags, two.category, two.line,
        )  # fmt: skip
        assert two.text.replace("\r\n", "\n") == one.text


@pytest.mark.parametrize("text", ["a dash at the end ---", "| a | b |\n|---|---", "x\n\n----", "text --- \n"])
def test_dashes_at_the_end_of_a_text_are_text(text: str) -> None:
    (entry,) = sections.parse(f"### [2026-01-01] One\n\n{text}\n")
    assert entry.text == text.strip()


@pytest.mark.parametrize("date", ["2026-02-30", "26-01-01", "", "2026-1-1", "tomorrow", "20260101", "2026-W01-1"])
def test_an_entry_needs_a_date_of_the_calendar(date: str) -> None:
    with pytest.raises(Invalid):
        sections.render(date, "Title", "text")


@pytest.mark.parametrize("title", ["", "  ", "two\nlines", "a\rb", "a\u2028b"])
def test_the_title_of_an_entry_is_one_line(title: str) -> None:
    with pytest.raises(Invalid):
        sections.render("2026-01-01", title, "text")


@pytest.mark.parametrize("text", ["### [2026-01-01] Another", "a\n### [2026-01-01] b", "```\nopen", "~~~"])
def test_text_that_would_swallow_or_make_an_entry_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        sections.render("2026-01-01", "Title", text)


lines_of_text = st.lists(
    st.sampled_from(
        ["", "---", "text", "### [2026-01-01] no", "    ### [2026-01-01] x", "```", "~~~", "**Tags:** x", "**Category:** y",
         "**Archived:** 2026-01-01", "**Until:** 2026-01-01", "**Until:** later", "**Supersedes:** x", "# Heading", "- item", "a ---", "\u2028", "\x0c", "tab\t", "**Note:** z", "### plain"]
    )
    | words,
    max_size=6,
).map("\n".join)  # fmt: skip
titles = words | st.sampled_from(["Use SQLite", "a, b", "[x]", "# x", "x #", "`x`", "---"])


@many
@given(
    title=titles,
    text=lines_of_text,
    category=st.sampled_from(["", "storage", "two words", "a, b", "x\ny", " x"]) | words,
    tags=st.lists(st.sampled_from(["db", "big choice", "ü"]) | words, max_size=3).map(tuple),
    more=st.fixed_dictionaries(
        {}, optional={"until": st.just("2027-01-01"), "supersedes": st.just("a.md#b"), "superseded_by": st.just("c.md")}
    ),
)
def test_an_entry_that_is_written_is_read_back(
    title: str, text: str, category: str, tags: tuple[str, ...], more: dict[str, str]
) -> None:
    try:
        entry = sections.render("2026-01-02", title, text, category, tags, **more)
    except Invalid:
        return
    (found,) = sections.parse(entry)
    assert (found.date, found.title) == ("2026-01-02", title.strip())
    assert found.text == text.strip()
    assert found.category == category.strip()
    assert found.tags == tuple(tag.strip() for tag in tags)
    assert all(getattr(found, name) == value for name, value in more.items())
    assert found.rendered() == found.source == entry


@many
@given(before=lines_of_text, entries=st.lists(st.tuples(titles, lines_of_text), min_size=1, max_size=4))
def test_adding_an_entry_leaves_every_earlier_byte_and_entry_alone(before: str, entries: list[tuple[str, str]]) -> None:
    text = before
    for title, body in entries:
        try:
            entry = sections.render("2026-01-02", title, body)
        except Invalid:
            continue
        after = sections.add(text, entry)
        assert after.startswith(text)
        plain_entry = entry.replace("\r\n", "\n")
        assert after.endswith((plain_entry, plain_entry.replace("\n", "\r\n")))
        earlier, now = sections.parse(text), sections.parse(after)
        assert [(old.anchor, old.title, old.text) for old in earlier] == [
            (new.anchor, new.title, new.text) for new in now[: len(earlier)]
        ]
        assert len(now) == len(earlier) + 1
        assert (now[-1].title, now[-1].text.replace("\r\n", "\n")) == (
            title.strip(),
            body.strip().replace("\r\n", "\n"),
        )
        text = after


# logs


def objects(data: bytes) -> list[dict[str, Any]]:
    found = jsonl.parse(data)
    assert isinstance(found, list)
    return found


json_objects = st.dictionaries(words, values, max_size=5)


@many
@given(line=json_objects)
def test_a_line_that_is_written_is_read_back(line: dict[str, Any]) -> None:
    data = jsonl.render(line)
    assert data.endswith(b"\n")
    assert b"\n" not in data[:-1]
    (found,) = objects(data)
    assert plain(found) == plain(line)


@many
@given(line=json_objects, when=st.sampled_from([None, "2026-01-02", "2026-01-02T10:00:00+02:00", 1.7e9, "never"]))
def test_the_identity_of_a_line_without_an_id_depends_on_what_it_says_not_on_its_spacing(
    line: dict[str, Any], when: object
) -> None:
    line = {name: value for name, value in line.items() if name not in ("id", "time")}
    if when is not None:
        line["time"] = when
    tight = json.dumps(line, separators=(",", ":"), ensure_ascii=False)
    loose = "  " + json.dumps(line, separators=(" ,  ", " :\t"), ensure_ascii=True) + " \r"
    (one,), (two,) = objects(tight.encode()), objects(loose.encode())
    identity = jsonl.identity(one, "time")
    assert identity == jsonl.identity(two, "time")
    assert times.is_id(identity[0])
    assert jsonl.identity({**one, "more": 1}, "time")[0] != identity[0]


def test_a_line_with_an_id_of_its_own_keeps_it() -> None:
    minted = times.mint(ms=1_700_000_000_000)
    assert jsonl.identity({"id": minted}, "time") == (minted, minted, "2023-11-14T22:13:20.000Z")
    identifier, order, _ = jsonl.identity({"id": "mine", "time": "2026-01-01T00:00:00Z"}, "time")
    assert identifier == "mine"
    assert times.is_id(order)
    strange_ids: tuple[Any, ...] = (None, 7, "", [], {"a": 1})
    for strange in strange_ids:
        assert times.is_id(jsonl.identity({"id": strange}, "time")[0])


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b'{"a":1}', 1),
        (b' {"a":1}\r', 1),
        (b'{"a":1}{"b":2}', 2),
        (b'{"a":1}, {"b":2}', 2),
        (b'{"a":1} {"b":2}\t{"c":3}', 3),
        (b'\xef\xbb\xbf{"a":1}', 1),
        (b'\0\0\0{"a":1}\0\0', 1),
        (b"", 0),
        (b" \t\r", 0),
    ],
)
def test_lines_are_read_as_the_wild_writes_them(data: bytes, count: int) -> None:
    assert len(objects(data)) == count


@pytest.mark.parametrize(
    "data",
    [b"[1]", b"1", b'"x"', b"null", b'{"a":1', b'{"a":NaN}', b'{"a":1}{"b"', b'{"a":1} [2]', b"\0\0", b"caf\xe9",
     b'{"a":"\\ud800"}', b"{'a': 1}", b"[" * 100_000, b'{"a":' * 100_000, b"{" * 5],
)  # fmt: skip
def test_what_is_no_line_is_named_and_never_raised(data: bytes) -> None:
    assert isinstance(jsonl.parse(data), str)


@many
@given(data=st.binary(max_size=60))
def test_no_bytes_make_reading_a_log_fail(data: bytes) -> None:
    assert isinstance(jsonl.parse(data), str | list)


# times and ids


@given(st.lists(st.integers(0, 2**47), min_size=2, max_size=30))
@settings(max_examples=100, deadline=None)
def test_ids_increase_strictly_whatever_the_clock_does(clock: list[int]) -> None:
    last = ""
    for ms in clock:
        minted = times.mint(after=last, ms=ms)
        assert times.is_id(minted)
        assert minted > last
        assert times.id_ms(minted) >= ms or last
        last = minted


def test_ids_minted_after_the_same_id_differ() -> None:
    """Two machines that continue copies of one log must not both arrive at the same id."""
    ahead = times.mint(ms=4_102_444_800_000)
    assert len({times.mint(after=ahead) for _ in range(50)}) == 50


def test_derived_ids_are_stable_and_carry_their_time() -> None:
    derived = times.derived_id(1_700_000_000_000, b"content")
    assert derived == times.derived_id(1_700_000_000_000, b"content")
    assert derived != times.derived_id(1_700_000_000_000, b"other")
    assert times.is_id(derived)
    assert times.id_ms(derived) == 1_700_000_000_000


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    if time.tzname[0] != "CET":
        pytest.skip("the system has no time zone data: local times cannot be tested")
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("given_time", "utc"),
    [
        ("2026-02-23", "2026-02-22T23:00:00.000Z"),
        ("2026-07-01T12:00:00", "2026-07-01T10:00:00.000Z"),
        ("2026-07-01 12:00", "2026-07-01T10:00:00.000Z"),
        ("2026-07-01T12:00:00Z", "2026-07-01T12:00:00.000Z"),
        ("2026-07-01T12:00:00.1239+05:30", "2026-07-01T06:30:00.123Z"),
        (1_700_000_000, "2023-11-14T22:13:20.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (1_700_000_000.5, "2023-11-14T22:13:20.500Z"),
        ("soon", ""), ("", ""), (None, ""), (True, ""), ([], ""), (math.nan, ""), (math.inf, ""), (1e300, ""),
        ("9999-12-31T23:59:59-23:59", ""), ("0001-01-01", ""), (-5, ""), (10**400, ""),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("berlin")
def test_times_are_kept_in_utc_and_naive_ones_are_local(given_time: object, utc: str) -> None:
    assert times.normal(given_time) == utc


@pytest.mark.parametrize(
    ("day", "last"),
    [
        ("2026-02-23", "2026-02-23T22:59:59.999Z"),
        ("2026-07-01", "2026-07-01T21:59:59.999Z"),
        ("2026-10-25", "2026-10-25T22:59:59.999Z"),
        ("2026-03-29", "2026-03-29T21:59:59.999Z"),
    ],
)
@pytest.mark.usefixtures("berlin")
def test_a_bare_date_as_an_end_means_the_whole_local_day(day: str, last: str) -> None:
    assert times.bound(day, end=True) == last
    assert times.bound(f"{day}T12:00:00Z", end=True) == f"{day}T12:00:00.000Z"


def test_a_bound_that_is_no_time_is_refused() -> None:
    for wrong in ("yesterday", "2026-02-30", "", "12"):
        with pytest.raises(Invalid):
            times.bound(wrong)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "just now"), (50, "1 minute ago"), (120, "2 minutes ago"), (7_200, "2 hours ago"), (90_000, "1 day ago"),
     (3e6, "1 month ago"), (7e7, "2 years ago"), (-100, "in the future")],
)  # fmt: skip
def test_an_age_is_said_in_words(seconds: float, said: str) -> None:
    assert times.age("2026-01-01T10:20:30.000Z", 1_767_262_830 + seconds) == said


# queries


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("granite", [("granite",)]),
        ("GRANITE Quartz granite", [("granite",), ("quartz",)]),
        ("where is the granite", [("granite",)]),
        ("where is the", [("where",), ("is",), ("the",)]),
        ("granite AND quartz*", [("granite",), ("quartz",)]),
        ("src/auth.py", [("src",), ("auth",), ("py",)]),
        ("数据库", [("数", "据"), ("据", "库")]),
        ("数", [("数",)]),
        ("use数据now", [("use",), ("数", "据"), ("now",)]),
        ("", []), ("*", []), ("\0", []), ('"', []), ("tag:", [("tag",)]),
    ],
)  # fmt: skip
def test_a_query_is_literal_words(text: str, found: list[tuple[str, ...]]) -> None:
    terms = queries.parse(text)
    assert list(terms.words) == found
    assert terms.phrases == ()


def test_quoted_words_are_a_phrase_and_filters_are_taken_out() -> None:
    terms = queries.parse('"deep quartz" vein tag:Stone kind:note kind:fact "" tag:two')
    assert terms.phrases == (("deep", "quartz"),)
    assert terms.words == (("vein",),)
    assert terms.tags == ("Stone", "two")
    assert terms.kinds == ("note", "fact")


@pytest.mark.parametrize("text", ['"granite', 'granite"', 'gra"nite', '"granite" "', '""granite""'])
def test_quotes_that_do_not_match_are_no_error(text: str) -> None:
    assert not queries.parse(text).empty


@many
@given(text=st.text(max_size=80))
def test_every_text_is_a_query(text: str) -> None:
    terms = queries.parse(text)
    assert len(terms.words) <= queries.MAX_WORDS
    for run in (*terms.words, *terms.phrases):
        assert run
        for word in run:
            assert word
            assert '"' not in word
            assert "\0" not in word
            assert not re.search(r"\s", word)


@many
@given(found=st.lists(st.sampled_from(["granite", "quartz", "vein", "deep"]), min_size=1, max_size=5))
def test_a_phrase_holds_its_words_in_order(found: list[str]) -> None:
    assert queries.parse('"' + " ".join(found) + '"').phrases == (tuple(found),)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 1001}, {"budget": -1}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        queries.check(queries.Query(**wrong))  # type: ignore[arg-type]  # the names are valid, the numbers are not


# names and tokens


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("Use SQLite!", "use-sqlite"),
        ("  a__b  c ", "a-b-c"),
        ("../../etc/passwd", "etc-passwd"),
        ("Ünïcode Straße", "ünïcode-strasse"),
        ("数据库", "数据库"),
        ("ﬁle", "file"),
        ("😀", "untitled"),
        ("", "untitled"),
        (".git", "git"),
        ("a\0b", "a-b"),
    ],
)
def test_a_slug_is_readable_and_safe(text: str, slug: str) -> None:
    assert names.slug(text) == slug


@many
@given(text=st.text(max_size=300))
def test_a_name_fits_any_file_system(text: str) -> None:
    name = names.unique(text)
    assert len(name.encode("utf-8", "surrogatepass")) <= 140
    assert not re.search(r"[\s/\\\0.:*?\"<>|]", name)
    assert name == name.strip("-. ")
    assert name == names.unique(unicodedata.normalize("NFD", text)) or unicodedata.normalize("NFC", text) != text


def test_two_titles_never_share_a_name_and_twins_in_case_do_when_asked() -> None:
    titles = ["Title", "title", "Title!", "Title ", "x" * 100, "x" * 101, "😀", "😁"]
    assert len({names.unique(title) for title in titles}) == len(titles)
    assert len({names.unique(title).casefold() for title in titles}) == len(titles)
    assert names.unique("Title", ignore_case=True) == names.unique("TITLE", ignore_case=True)
    assert names.unique("cafe\u0301") == names.unique("café")


def test_the_nearest_name_is_suggested_or_none() -> None:
    assert names.close_to("platfrom", ["Platform", "Website"]) == ' Did you mean "Platform"?'
    assert names.close_to("zzz", ["Platform", "Website"]) == ""
    assert names.close_to("x", []) == ""


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("数据库", 3), ("数abcd", 2)]
)
def test_tokens_are_estimated_from_letters_and_wide_characters(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


@given(st.text(max_size=100), st.text(max_size=100))
@settings(max_examples=100, deadline=None)
def test_more_text_is_never_fewer_tokens(one: str, two: str) -> None:
    assert max(count_tokens(one), count_tokens(two)) <= count_tokens(one + two) <= count_tokens(one) + count_tokens(two)


# places


@pytest.mark.parametrize("scope", [Scope("w"), Scope("w", "d"), Scope("w", "d", "r"), Scope("default", "x", "notes")])
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if "{any}" not in kind.place])
@pytest.mark.parametrize("paths", [Paths(), Paths(workspaces="w", memory="m/x", rules="r"), Paths(memory="user (1)+")])
def test_where_a_kind_is_written_is_where_it_is_read(name: str, scope: Scope, paths: Paths) -> None:
    places, kind = Layout(paths), KINDS[name]
    path = places.path_for(kind, scope, "some-name-12345678", month="2026-02")
    place = places.classify(path)
    assert place is not None
    assert place.kind is kind
    if "{scope}" in kind.place:
        assert place.scope.path == scope.path
    below = places.below((name,), scope.path if "{scope}" in kind.place else "")
    assert any(path == top or path.startswith(top + "/") for top in below)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("agent/rules/common/a.md", "rule"),
        ("resources/workspaces/w/_features/x.md", "document"),
        ("resources/workspaces/w/d/r/deep/er/_notes/x.md", "note"),
        ("resources/workspaces/w/README.md", "document"),
        ("user/memory/workspaces/w/decisions.md", "decision"),
        ("user/memory/workspaces/w/other.md", "document"),
        ("user/memory/MEMORY.md", "memory"),
        ("user/memory/sessions/s-1/episodic.jsonl", "episode"),
        ("user/memory/writes/2026-02.jsonl", "write"),
        ("user/memory/writes/2026-2.jsonl", None),
        ("user/memory/other.jsonl", None),
        ("resources/workspaces/OVERVIEW.md", None),
        ("resources/workspaces/_x/OVERVIEW.md", None),
        ("README.md", None),
        ("", None),
        ("resources/workspaces/w/a.txt", None),
    ],
)
def test_a_path_says_what_is_in_it(path: str, kind: str | None) -> None:
    place = Layout(Paths()).classify(path)
    assert (place.kind.name if place else None) == kind


def test_two_sessions_never_share_a_folder() -> None:
    places = Layout(Paths())
    sessions = ["a/b", "a-b", "A/B", "a b", "..", "", "é", "e\u0301", "x" * 300, "x" * 301]
    folders = {places.path_for(KINDS["episode"], Scope(session=session or "default")) for session in sessions}
    assert len(folders) == len(sessions)


# scopes


@pytest.fixture
def tree(memory: Memory) -> Memory:
    memory.put("overview", "x", title="My Platform")
    memory.put("overview", "x", title="Backend", scope="my-platform")
    memory.put("overview", "x", title="Frontend", scope="my-platform")
    memory.put("overview", "x", title="API", scope="my-platform/backend")
    memory.put("overview", "x", title="Shared", scope="my-platform/backend")
    memory.put("overview", "x", title="Shared", scope="my-platform/frontend")
    memory.put("overview", "x", title="Café")
    return memory


@pytest.mark.parametrize(
    ("given_name", "path"),
    [
        ("my-platform", "my-platform"),
        ("MY-PLATFORM", "my-platform"),
        ("My Platform", "my-platform"),
        ("my platform", "my-platform"),
        (" My Platform ", "my-platform"),
        ("My Platform/Backend/api", "my-platform/backend/api"),
        ("my-platform/api", "my-platform/backend/api"),
        ("my-platform / backend", "my-platform/backend"),
        ("cafe\u0301", "café"),
        ("CAFÉ", "café"),
        ("default", "default"),
        ("Default", "default"),
        (None, "default"),
    ],
)
def test_a_scope_is_found_by_folder_or_name_without_case(tree: Memory, given_name: str | None, path: str) -> None:
    assert tree.scopes.resolve(given_name).path == path


def test_a_repository_without_its_domain_must_be_the_only_one(tree: Memory) -> None:
    with pytest.raises(Invalid, match="backend/shared, frontend/shared"):
        tree.scopes.resolve("my-platform/shared")
    assert tree.scopes.resolve("my-platform/frontend/shared").repository == "shared"


def test_an_unknown_workspace_is_an_error_that_says_what_next(tree: Memory) -> None:
    with pytest.raises(NotFound) as far:
        tree.scopes.resolve("Zyx")
    assert str(far.value) == 'Workspace "Zyx" not found. Use listWorkspaces to see available workspaces.'
    with pytest.raises(NotFound) as near:
        tree.scopes.resolve("My Platfrom")
    assert str(near.value) == (
        'Workspace "My Platfrom" not found. Use listWorkspaces to see available workspaces. Did you mean "My Platform"?'
    )
    with pytest.raises(NotFound, match="backend, frontend"):
        tree.scopes.resolve("my-platform/nowhere")
    for doing in (lambda: tree.find("x", scope="Zyx"), lambda: tree.put("note", "x", title="x", scope="Zyx")):
        with pytest.raises(NotFound):
            doing()


@pytest.mark.parametrize("wrong", ["a/b/c/d", "/", "a//b", "..", "../x", "a/../b", ".", "a/\0"])
def test_what_is_no_scope_is_refused(tree: Memory, wrong: str) -> None:
    with pytest.raises(HoldfastError):
        tree.scopes.resolve(wrong)


def test_a_workspace_that_was_only_learned_about_exists(memory: Memory, root: Path) -> None:
    folder = root / "user/memory/workspaces/learned"
    folder.mkdir(parents=True)
    (folder / "decisions.md").write_text("### [2026-01-01] A\n\nb\n")
    assert memory.scopes.resolve("Learned") == Scope("learned")


def test_two_folders_of_one_name_are_told_apart_by_folder(memory: Memory, root: Path) -> None:
    for folder in ("one", "two"):
        path = root / "resources/workspaces" / folder
        path.mkdir(parents=True)
        (path / "OVERVIEW.md").write_text("---\nname: Twin\n---\n")
    with pytest.raises(Invalid, match="one, two"):
        memory.scopes.resolve("twin")
    assert memory.scopes.resolve("two").workspace == "two"


def test_a_new_overview_of_a_name_that_is_taken_is_refused(tree: Memory) -> None:
    for title in ("My Platform", "MY PLATFORM", "my-platform"):
        with pytest.raises(AlreadyExists):
            tree.put("overview", "x", title=title)
