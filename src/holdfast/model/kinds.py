"""What a record is: one table, one row per kind.

A row says where the kind lies, what shape it has there and which rules a write must keep. Everything else
(reading a file, writing one, indexing, searching, listing) is done from the row, so a new kind is a new row.

Shapes: a *document* is one Markdown file, a *section* is one `### [date] title` entry of a Markdown file,
a *line* is one JSON object of an append-only log. The first place that fits a path decides its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import close_to

Shape = Literal["document", "section", "line"]


class Kind(msgspec.Struct, frozen=True):
    """One row of the table.

    `place` is a path template: `{workspaces}`, `{memory}`, `{rules}` are settings, `{scope}` is one to three
    folders, `{session}` and `{workspace}` one folder each, `{month}` is YYYY-MM, `{name}` is made by `model.names`,
    `{any}` is whatever a person chose (such a kind is read everywhere below and written by its path), `{inside}` are
    folders of any name, `{year}` is YYYY.
    """

    name: str
    about: str
    shape: Shape
    place: str
    also: str = ""
    """A second place where such files are read."""
    text: str = "text"
    """The field of a line that carries the text."""
    title: str = "name"
    """The field that carries the title; lines may have none."""
    inline: bool = False
    """Does the text of a line stand in it however long it is?"""
    time: str = "time"
    """The field that says when it happened."""
    key: str = ""
    """The field by which a newer line supersedes an older one."""
    pair: str = ""
    """The field that two lines share which count together or not at all."""
    session: str = "session"
    """The field that says to which session, or channel, a line belongs."""
    required: tuple[str, ...] = ()
    """What must be given and not be blank: `title`, `text` or a field."""
    choices: Mapping[str, tuple[str, ...]] = {}
    defaults: Mapping[str, str] = {}
    dated: bool = False
    """Does the file name start with YYMMDD?"""
    write_once: bool = False
    ignore_case: bool = False
    """Are two titles that differ only in case the same?"""
    max_chars: int = 1_000_000
    searchable: bool = True
    quiet: str = ""
    """A record with this field set is kept out of full-text search."""
    layer: Literal["hot", "warm", "cold", "own"] = "warm"
    """When it is loaded: always, on demand, or only when asked for; `own` is searched only by its kind."""
    owned: bool = False
    """Written by Holdfast itself, never through `put`."""
    foreign: bool = False
    """Written by other programs, each in its own form; read only when asked for."""
    heard: bool = False
    """Does it take down what is said and done as it comes? Then a secret in it is redacted, elsewhere it is refused."""
    slugged: bool = False
    """Is the name just the slug of the title? Then two titles can be one name, and the second is refused."""
    front: tuple[str, ...] = ()
    """What the front matter should have: `lint` names what is missing, `migrate` adds it."""
    dates: tuple[str, ...] = ()
    """Fields that hold a date of the calendar."""

    @property
    def one(self) -> str:
        """The kind as a sentence about it begins: A note, An episode."""
        return f"{'An' if self.name[0] in 'aeiou' else 'A'} {self.name}"


_WORKSPACE = "{workspaces}/{scope}"
_LEARNED = "{memory}/workspaces/{scope}"
LEDGER = "ledger.jsonl"
ROLES = ("user", "assistant", "system", "tool")
PLAN_STATUS = ("new", "in_progress", "partial", "done", "abandoned")

_ROWS = (
    Kind(
        "rule", "hot memory: a rule for every conversation", "document", "{rules}/{any}.md",
        required=("text",), layer="hot",
    ),
    Kind(
        "overview", "what a workspace, domain or repository is", "document", _WORKSPACE + "/OVERVIEW.md",
        required=("title",), time="updated", front=("name", "description"), dates=("updated",),
    ),
    Kind(
        "plan", "work that is planned, under way or done", "document", _WORKSPACE + "/_plans/{name}.md",
        also=_WORKSPACE + "/{inside}/_plans/{name}.md", required=("title",), choices={"status": PLAN_STATUS},
        defaults={"status": "new"}, time="created", dated=True, front=("name", "description", "status", "created"),
        dates=("created", "updated"),
    ),
    Kind(
        "skill", "a way of doing something that an agent wrote down for itself", "document",
        _WORKSPACE + "/_skills/{name}/SKILL.md", required=("title", "description", "text"), time="updated",
        slugged=True, front=("name", "description"), dates=("updated",),
    ),
    Kind(
        "state", "a save point, written once", "document", _WORKSPACE + "/_states/{name}.md",
        required=("title",), time="created", write_once=True, ignore_case=True, max_chars=4_000_000,
    ),
    Kind(
        "ledger", "which save points were written, hidden and shown again", "line",
        _WORKSPACE + "/_states/" + LEDGER, searchable=False, owned=True,
    ),
    Kind(
        "note", "anything worth keeping about a workspace", "document", _WORKSPACE + "/_notes/{name}.md",
        required=("title", "text"), time="created",
    ),
    Kind(
        "decision", "a choice that must be respected, and why", "section", _LEARNED + "/decisions.md",
        also=_LEARNED + "/decisions-{year}.md", required=("title", "text"), title="title", time="date",
    ),
    Kind(
        "lesson", "what went wrong, why, and what to do instead", "section", _LEARNED + "/lessons.md",
        also=_LEARNED + "/lessons-{year}.md", required=("title", "text"), title="title", time="date",
    ),
    Kind("memory", "long-term memory that is in every prompt", "document", "{memory}/MEMORY.md"),
    Kind(
        "message", "one message of the chat history", "line", "{memory}/history.jsonl",
        also="{memory}/history/{any}.jsonl", text="content", time="timestamp", inline=True, pair="exchange",
        session="channel",
        required=("role", "text"), choices={"role": ROLES}, defaults={"role": "user"}, heard=True,
    ),
    Kind(
        "fact", "knowledge by key; the newest value holds", "line", "{memory}/semantic.jsonl",
        text="value", title="key", key="key", required=("key", "text"),
    ),
    Kind(
        "procedure", "when this happens, do that", "line", "{memory}/procedural.jsonl",
        text="do", title="when", required=("when", "text"),
    ),
    Kind(
        "episode", "what happened in a session", "line", "{memory}/sessions/{session}/episodic.jsonl",
        required=("text",),
    ),
    Kind(
        "summary", "what older entries of a memory come to", "line", "{memory}/sessions/{session}/summaries.jsonl",
        also="{memory}/summaries.jsonl", required=("text",), owned=True,
    ),
    Kind(
        "entry", "a note of a session or of a plan", "line", "{memory}/sessions/{session}/entries.jsonl",
        text="content", choices={"compartment": ("session", "plan")}, required=("text",), owned=True,
    ),
    Kind(
        "job", "a message that is due by a schedule", "line", "{memory}/jobs.jsonl",
        text="message", key="job", owned=True,
    ),
    Kind(
        "claim", "one line for every slot of a job that was taken, and one for how it ended", "line",
        "{memory}/claims/{month}.jsonl", text="output", searchable=False, owned=True, heard=True,
    ),
    Kind(
        "task", "what is to be done, who works on it, how it ended: one line for every event", "line",
        _LEARNED + "/tasks.jsonl", text="instructions", title="title", searchable=False, owned=True,
    ),
    Kind(
        "trace", "one line for every tool call", "line", "{memory}/traces/{workspace}/{month}.jsonl",
        text="result", title="tool", quiet="read", owned=True, layer="own", heard=True,
    ),
    Kind(
        "write", "one line for every document that Holdfast wrote", "line", "{memory}/writes/{month}.jsonl",
        searchable=False, owned=True,
    ),
    Kind(
        "transcript", "one turn of an earlier conversation", "line", "{transcripts}/{any}.jsonl",
        choices={"role": ROLES}, layer="cold", owned=True, foreign=True, heard=True,
    ),
    Kind(
        "document", "any other Markdown file", "document", _WORKSPACE + "/{any}.md", also="{memory}/{any}.md",
        time="created",
    ),
)  # fmt: skip

KINDS: Mapping[str, Kind] = {row.name: row for row in _ROWS}

FOREIGN = tuple(name for name, row in KINDS.items() if row.foreign)
"""Kinds of files that other programs write."""


def kind(name: str) -> Kind:
    """Return the row of that name, or say which names there are."""
    try:
        return KINDS[name]
    except KeyError:
        known = ", ".join(KINDS)
        raise Invalid(f'There is no kind "{name}".{close_to(name, KINDS)}', f"Use one of: {known}.") from None
