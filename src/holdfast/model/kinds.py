"""The kinds of records: one table, one row per kind.

A row defines the path of a kind, its shape and the rules for writing it. Parsing, writing, indexing, searching and
listing all work from the row, so a new kind is a new row.

Shapes: a *document* is one Markdown file, a *section* is one `### [date] title` entry of a Markdown file, a *line* is
one JSON object of an append-only log. The first row whose place matches a path decides its kind. `Layout` applies the
places in both directions: which path has which kind, and which kind goes to which path.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.errors import Invalid
from holdfast.model import names
from holdfast.model.patterns import regex
from holdfast.model.records import DEFAULT, Scope, from_path
from holdfast.model.settings import Paths


class Kind(msgspec.Struct, frozen=True):
    """One row of the table.

    `place` is a path template. `{workspaces}`, `{memory}` and `{rules}` are settings; `{scope}` is one to three
    folders; `{session}` and `{workspace}` are one folder each; `{month}` is YYYY-MM and `{year}` YYYY; `{name}` is made
    by `model.names`; `{inside}` is any folders; `{any}` is any path that a person chose: such a kind is written by
    its path.
    """

    name: str
    about: str
    shape: Literal["document", "section", "line"]
    place: str
    also: str = ""
    """A second place where files of this kind are read."""
    text: str = "text"
    """The field of a line that contains the text."""
    title: str = "name"
    """The field that contains the title; lines may have none."""
    inline: bool = False
    """Keep the text in the line, even if it is long."""
    time: str = "time"
    """The field with the time when it happened."""
    key: str = ""
    """A newer line supersedes an older one with the same value in this field."""
    pair: str = ""
    """Two lines with the same value in this field count only together."""
    session: str = "session"
    """The field with the session or channel of a line."""
    required: tuple[str, ...] = ()
    """`title`, `text` or fields that must be given and not be blank."""
    choices: Mapping[str, tuple[str, ...]] = {}
    defaults: Mapping[str, str] = {}
    dated: bool = False
    """The file name starts with YYMMDD."""
    write_once: bool = False
    ignore_case: bool = False
    """Titles that differ only in case are the same."""
    max_chars: int = 1_000_000
    searchable: bool = True
    quiet: tuple[str, ...] = ()
    """Records with one of these fields set are not in full-text search."""
    layer: Literal["hot", "warm", "cold", "own"] = "warm"
    """When it is loaded: always, on demand, or only on request; `own` is searched only by its kind."""
    owned: bool = False
    """Written by Holdfast itself, not through `put`."""
    foreign: bool = False
    """Written by other programs in their own formats; read only on request."""
    heard: bool = False
    """It records conversations and events as they happen: secrets in it are redacted, not refused."""
    slugged: bool = False
    """The name is only the slug of the title; a second title with the same slug is refused."""
    front: tuple[str, ...] = ()
    """Fields that the front matter should have: `lint` reports missing ones, `migrate` adds them."""
    dates: tuple[str, ...] = ()
    """Fields that contain a calendar date."""
    private: bool = False
    """Visible only in its session and not searched."""

    @property
    def is_named(self) -> bool:
        """Does Holdfast choose the name of the file?"""
        return "{any}" not in self.place

    @property
    def own(self) -> tuple[str, ...]:
        """The fields of this kind that have a name of their own."""
        names = (self.key, *self.required, *self.choices, *self.front, self.session if self.shape == "line" else "")
        usual = {"", "title", "text", "name", "session", *self.dates, self.time}
        return tuple(dict.fromkeys(name for name in names if name not in usual))

    @property
    def on_request(self) -> bool:
        """Is it searched only when a query names its kind? Then its words are counted separately."""
        return self.layer in ("cold", "own")

    @property
    def one(self) -> str:
        """The name with its article: A note, An episode."""
        return f"{'An' if self.name[0] in 'aeiou' else 'A'} {self.name}"


_WORKSPACE = "{workspaces}/{scope}"
_LEARNED = "{memory}/workspaces/{scope}"
LEDGER = "ledger.jsonl"
ROLES = ("user", "assistant", "system", "tool")
PLAN_STATUS = ("new", "in_progress", "partial", "done", "abandoned")

_ROWS = (
    Kind("rule", "hot memory: a rule for every conversation", "document", "{rules}/{any}.md", required=("text",),
         layer="hot"),
    Kind("overview", "what a workspace, domain or repository is", "document", _WORKSPACE + "/OVERVIEW.md",
         required=("title",), time="updated", front=("name", "description"), dates=("updated",)),
    Kind("plan", "work that is planned, in progress or done", "document", _WORKSPACE + "/_plans/{name}.md",
         also=_WORKSPACE + "/{inside}/_plans/{name}.md", required=("title",), choices={"status": PLAN_STATUS},
         defaults={"status": "new"}, time="created", dated=True, front=("name", "description", "status", "created"),
         dates=("created", "updated")),
    Kind("skill", "instructions that an agent wrote for itself", "document",
         _WORKSPACE + "/_skills/{name}/SKILL.md", required=("title", "description", "text"), time="updated",
         slugged=True, front=("name", "description"), dates=("updated",)),
    Kind("state", "a save point, written once", "document", _WORKSPACE + "/_states/{name}.md", required=("title",),
         time="created", write_once=True, ignore_case=True, max_chars=4_000_000),
    Kind("ledger", "save points that were written, hidden or restored", "line", _WORKSPACE + "/_states/" + LEDGER,
         searchable=False, owned=True),
    Kind("note", "anything worth remembering about a workspace", "document", _WORKSPACE + "/_notes/{name}.md",
         required=("title", "text"), time="created"),
    Kind("decision", "a choice that must be respected, and why", "section", _LEARNED + "/decisions.md",
         also=_LEARNED + "/decisions-{year}.md", required=("title", "text"), title="title", time="date"),
    Kind("lesson", "what went wrong, why, and what to do instead", "section", _LEARNED + "/lessons.md",
         also=_LEARNED + "/lessons-{year}.md", required=("title", "text"), title="title", time="date"),
    Kind("proposal", "what an agent wrote and the owner has not approved yet", "line", _LEARNED + "/proposals.jsonl",
         title="title", owned=True),
    Kind("memory", "long-term memory, part of every prompt", "document", "{memory}/MEMORY.md"),
    Kind("message", "one message of the chat history", "line", "{memory}/history.jsonl",
         also="{memory}/history/{any}.jsonl", text="content", time="timestamp", inline=True, pair="exchange",
         session="channel", required=("role", "text"), choices={"role": ROLES}, defaults={"role": "user"},
         heard=True),
    Kind("fact", "knowledge by key; the newest value is current", "line", "{memory}/semantic.jsonl", text="value",
         title="key", key="key", required=("key", "text")),
    Kind("procedure", "when this happens, do that", "line", "{memory}/procedural.jsonl", text="do", title="when",
         required=("when", "text")),
    Kind("episode", "what happened in a session", "line", "{memory}/sessions/{session}/episodic.jsonl",
         required=("text",)),
    Kind("summary", "a summary of older entries", "line", "{memory}/sessions/{session}/summaries.jsonl",
         also="{memory}/summaries.jsonl", required=("text",), owned=True),
    Kind("entry", "a note of a session or of a plan", "line", "{memory}/sessions/{session}/entries.jsonl",
         text="content", choices={"compartment": ("session", "plan")}, required=("text",), owned=True, searchable=False,
         private=True),
    Kind("job", "a message that is due by a schedule", "line", "{memory}/jobs.jsonl", text="message", key="job",
         owned=True),
    Kind("claim", "one line when a run of a job starts, and one when it ends", "line",
         "{memory}/claims/{month}.jsonl", text="output", searchable=False, owned=True, heard=True),
    Kind("task", "one line for every event of a task: created, claimed, finished", "line",
         _LEARNED + "/tasks.jsonl", text="instructions", title="title", searchable=False, owned=True),
    Kind("trace", "one line for every tool call", "line", "{memory}/traces/{workspace}/{month}.jsonl",
         text="result", title="tool", quiet=("read", "private"), owned=True, layer="own", heard=True),
    Kind("write", "one line for every document that Holdfast wrote", "line", "{memory}/writes/{month}.jsonl",
         searchable=False, owned=True),
    Kind("transcript", "one turn of an earlier conversation", "line", "{transcripts}/{any}.jsonl",
         choices={"role": ROLES}, layer="cold", owned=True, foreign=True, heard=True),
    Kind("document", "any other Markdown file", "document", _WORKSPACE + "/{any}.md", also="{memory}/{any}.md",
         time="created"),
)  # fmt: skip

KINDS: Mapping[str, Kind] = {row.name: row for row in _ROWS}

FOREIGN = tuple(name for name, row in KINDS.items() if row.foreign)
"""Kinds that other programs write."""
NOT_RECORDS = ("write", "ledger", "claim")
"""Kinds with entries about records; they are not records themselves."""


CORRECTABLE = ("note", "decision", "lesson", "fact", "procedure", "episode", "plan", "skill", "document")
"""Kinds that a tool may revise, retire and supersede."""


def kind(name: str) -> Kind:
    """Return the row of this name, or refuse the name and list the valid ones."""
    if (row := KINDS.get(name)) is None:
        raise Invalid(f'There is no kind "{name}".{names.close_to(name, KINDS)}', f"Use one of: {', '.join(KINDS)}.")
    return row


# Places


_HOLE = regex(r"\{(\w+)\}")
_PATTERNS = {
    "scope": r"(?P<scope{}>[^_./][^/]*(?:/[^_./][^/]*)*)",
    "session": r"(?P<session{}>[^/]+)",
    "workspace": r"[^/]+",
    "month": r"\d{{4}}-\d{{2}}",
    "year": r"\d{{4}}",
    "name": r"(?P<name{}>[^/]+)",
    "inside": r".+",
    "any": r"(?P<name{}>.+)",
}
"""A pattern for each hole of a template; `{}` is the number of the template."""
_COPY = regex(
    r"(.+?)(?:\.sync-conflict-[\w-]+| \([^()/]*conflicted copy[^()/]*\))(\.\w+)|(.+\.(?:md|jsonl))\.orig", re.DOTALL
)


class Place(msgspec.Struct, frozen=True):
    """The kind, scope and name that a path implies for its records."""

    path: str
    kind: Kind
    scope: Scope
    name: str = ""


class Layout:
    """The templates of all kinds, filled in with the folders of one memory."""

    def __init__(self, paths: Paths) -> None:
        self.roots = tuple(dict.fromkeys((paths.rules, paths.memory, paths.workspaces)))
        """The folders that are always indexed."""
        self.memory = paths.memory
        self.workspaces = paths.workspaces
        self._folders = {name: getattr(paths, name) for name in paths.__struct_fields__}
        self._legacy = f"{paths.memory}/summary.md"  # left by older chat bots; it is out of date
        self.classify = functools.lru_cache(maxsize=4096)(self._classify)
        """Return the kind, scope and name of a path, or None if the path is not part of the memory."""
        templates = [(row, place) for row in KINDS.values() for place in (row.place, row.also) if place]
        self._kinds = [row for row, _ in templates]
        patterns = []
        for number, (_, place) in enumerate(templates):
            parts = _HOLE.split(place)  # text, hole, text, hole, … text
            parts[::2] = map(re.escape, parts[::2])
            for index, hole in list(enumerate(parts))[1::2]:
                pattern = _PATTERNS.get(hole)
                parts[index] = pattern.format(number) if pattern else re.escape(self._folders[hole])
            patterns.append(f"(?P<kind{number}>{''.join(parts)})")
        self._any = regex("|".join(patterns))

    def _classify(self, path: str) -> Place | None:
        if path.startswith(".") or "/." in path or path == self._legacy or copy_of(path):
            return None
        found = self._any.fullmatch(path)
        if found is None or found.lastgroup is None:
            return None
        number, known = found.lastgroup.removeprefix("kind"), self._any.groupindex
        wanted = [f"{part}{number}" for part in ("scope", "session", "name")]
        folders, session, name = (found[group] if group in known else "" for group in wanted)
        scope = from_path(folders)
        if session:
            scope = msgspec.structs.replace(scope, session=session)
        return Place(path, self._kinds[int(number)], scope, name)

    def path_for(
        self, kind: Kind, scope: Scope, name: str = "", *, month: str = "", session: str = "", workspace: str = ""
    ) -> str:
        """Return the path of a record of this kind and scope."""
        if not kind.is_named:
            raise Invalid(f"{kind.one} is written by its path.", "Give the path as the id.")
        return kind.place.format(
            scope=scope.path or DEFAULT, name=name, month=month, workspace=workspace or scope.workspace,
            session=session_folder(session or scope.session or DEFAULT) if "{session}" in kind.place else "",
            **self._folders,
        )  # fmt: skip

    def example(self, kind: Kind) -> str:
        """Return an example path for a kind that is written by its path."""
        return kind.place.format(any="name", scope="workspace", **self._folders)

    def below(self, kinds: tuple[str, ...], scope: str, *, above: bool = False) -> tuple[str, ...]:
        """Return the files and folders that can contain records of these kinds in this scope, or in levels above it."""
        found: dict[str, None] = {}
        scopes = [scope + "/{deeper}" if scope else ""]
        scopes += from_path(scope).above if above else ()
        for row in (KINDS[name] for name in kinds or KINDS):
            for place in (row.place, row.also):
                for name, folder in self._folders.items():
                    place = place.replace("{" + name + "}", folder)
                for filled in (place.replace("{scope}", level or "{scope}") for level in scopes):
                    found[filled.split("{")[0].rpartition("/")[0] if "{" in filled else filled] = None
        tops = tuple(path for path in found if path)
        return tuple(path for path in tops if not any(path.startswith(top + "/") for top in tops))

    def watched(self, path: str) -> bool:
        """Check whether a path is in a folder that is always indexed."""
        return path.startswith(tuple(f"{root}/" for root in self.roots))

    def overview(self, scope_path: str) -> str:
        """Return the file that defines a workspace, domain or repository."""
        return f"{self.workspaces}/{scope_path}/OVERVIEW.md"


def copy_of(path: str) -> str:
    """Return the file of a conflict copy by Syncthing, Dropbox or git, "" for any other path."""
    found = _COPY.fullmatch(path) if "conflict" in path or path.endswith(".orig") else None
    return "".join(part or "" for part in found.groups()) if found else ""


@functools.lru_cache(maxsize=1024)
def session_folder(session: str) -> str:
    """Return the folder of a session; different strings have different folders."""
    return f"{names.slug(session, 'session')}-{names.short_hash(session)}"
