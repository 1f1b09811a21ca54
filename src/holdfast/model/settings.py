"""Settings of one memory root: `holdfast.toml`, then the environment, over defaults that need neither.

Every setting is a field below, and its docstring is its documentation. `HOLDFAST_LIMITS_LOCK_SECONDS=2` in the
environment overrides `lock_seconds` of the table `[limits]`.
"""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import check_path, close_to
from holdfast.secrets import NAMES

FILE = "holdfast.toml"
DERIVED = ".holdfast"
FORMAT = 1
_DOTS = 1_000


_Weight = Annotated[float, msgspec.Meta(ge=0, le=10)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class Paths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workspaces: str = "resources/workspaces"
    """Workspaces, domains, repositories and their documents."""
    memory: str = "user/memory"
    """What was learned, said and done."""
    rules: str = "agent/rules"
    """Hot memory."""
    commands: str = "agent/commands"
    """Commands that an agent follows when asked to, like `save-memory`."""
    transcripts: str = "agent-transcripts"
    """Cold memory: conversations, one log each; looked at only when asked for."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lock_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 10.0
    """How long a write waits for another one before it gives up, loudly."""
    document_bytes: _Size = 16 * 1024 * 1024
    """Larger Markdown files are reported and not read."""
    line_bytes: _Size = 8 * 1024 * 1024
    """Longer lines of a log are reported and skipped."""
    inline_chars: _Size = 16_000
    """Longer text of a line is kept in a file of its own beside the log."""


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    common_records: _Size = 20_000
    """A word in more records than this is left out of a search while rarer words remain."""
    candidates: Annotated[int, msgspec.Meta(ge=10, le=10_000)] = 200
    """Records that fit the words best, among which the ranking chooses."""
    around: _Weight = 0.5
    """How much of a record's fit is that of the record together with what stands around it."""
    embedder: Literal["auto", "none", "semantic", "quality"] = "auto"
    """What finds records by meaning: `semantic` or `quality`, each with the extra of that name installed; `auto` takes
    the better of those that are installed, `none` goes by words alone."""
    meaning: _Weight = 0.7
    """Weight of nearness in meaning, where an embedder is installed."""
    assistant: _Weight = 0.5
    """What an assistant said counts so much when the question is about the asker; 1 leaves this out."""
    author: _Weight = 0.5
    """Bonus when the question names the author."""
    beside: _Weight = 0.2
    """Part of the score of what stands next to it that a record gets."""
    date: _Weight = 1.0
    """Bonus at a time that the question names."""
    recent: _Weight = 0.2
    """Bonus for what is new; it halves in a month."""
    priority: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2
    """Bonus or malus for a note of the highest or lowest priority."""
    session: _Weight = 0.4
    """Part of the best score of its session that a record gets."""
    floor: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3
    """`recall` answers that nothing is relevant when less than this share of the question is found anywhere."""


STEPS: Mapping[str, float] = {
    "around": 0, "meaning": 0, "assistant": 1, "author": 0, "beside": 0, "date": 0, "recent": 0, "priority": 0,
    "session": 0, "floor": 0,
}  # fmt: skip
"""The settings of `[search]` that are a step of the ranking, and the value that leaves it out."""


class Hot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lines: _Size = 300
    """Most lines of all rules together: every conversation pays for them."""
    tokens: _Size = 3_000
    """Most tokens of all rules together."""


class Learnings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entries: _Size = 50
    """Entries that a file of decisions or lessons may have before `lint` asks to archive the older ones."""


class Compartments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_chars: _Size = 10_000
    """Characters that each of the compartments run, session and plan may hold."""
    plan_scope: Literal["run", "session"] = "session"
    """How long plans last: as long as the `session`, or no longer than the `run`."""


class Mind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    window_entries: _Size = 50
    """Entries that working memory holds; what falls out of it is gone."""
    window_tokens: _Size = 8_000
    """Tokens that working memory holds."""
    summary_tokens: _Size = 1_000
    """Tokens that a summary of older entries may have."""


class Alias(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: str
    channel: str = ""
    """Only in this channel, and in its rooms; "" is every channel."""


class Chat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    history_context_messages: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 80
    """How many of the last messages a prompt shows; must be above 0."""
    memory_tokens: _Size = 500
    """Tokens that `MEMORY.md` should have at most; a longer one is saved with a warning."""
    owner_aliases: tuple[str | Alias, ...] = ()
    """Who the owner is on each channel: addresses, or `{address, channel}` for one channel alone."""

    def aliases(self) -> tuple[str | dict[str, str], ...]:
        """Return the aliases as prompts take them."""
        return tuple(alias if isinstance(alias, str) else msgspec.structs.asdict(alias) for alias in self.owner_aliases)


class Jobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: tuple[str, ...] = ()
    """Program and arguments that run for a due job, its message on standard input, without a shell; without one, the
    message is added to the chat history. Nothing but this setting and `jobs run --command` names a command."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0
    """How long the command may take; then it is ended, with all that it started."""


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str = ""
    """Where an OpenAI-compatible model answers, like `http://127.0.0.1:8080/v1`; without it, no model is asked."""
    name: str = ""
    """The model to ask for, by the name that its server knows."""
    key_env: Annotated[str, msgspec.Meta(pattern="^HOLDFAST_")] = "HOLDFAST_MODEL_KEY"
    """The variable of the environment that holds the key, named HOLDFAST_…; the key itself stands in no file."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    """How long one call may take, from the first byte sent to the last one read."""
    call_tokens: _Size = 4_000
    """Most tokens of one call, prompt and answer together."""
    day_tokens: _Size = 100_000
    """Most tokens of one day, in UTC; a call that would go over is not made."""


class Secrets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    written: Literal["refuse", "redact", "keep"] = "refuse"
    """What becomes of a secret of a known form in what somebody wants to be kept: the write is refused with the reason,
    the secret is taken out, or it is kept."""
    heard: Literal["refuse", "redact", "keep"] = "redact"
    """The same for what is taken down as it comes: chat, traces, outputs of jobs, imports. What nobody waits for, such
    as a trace or an import, is not refused but redacted."""
    allow: tuple[str, ...] = ()
    """Formats that are no secrets here, by the names that a refusal gives, like `["JSON web token"]`."""


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str = ""
    """Another memory that is shared with others: `postgresql://user@host/name?tenant=team`, or a folder. `recall` and
    `search` look there too, and `push` and `pull` mean it. `$HOLDFAST_…` in it stands for that variable of the
    environment, no other name does; a password is better kept in PGPASSWORD or ~/.pgpass."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 3.0
    """How long a search waits for the shared memory before it answers without it."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int = FORMAT
    """Version of the layout on disk; a newer one is refused."""
    paths: Paths = Paths()
    limits: Limits = Limits()
    search: Search = Search()
    hot: Hot = Hot()
    learnings: Learnings = Learnings()
    compartments: Compartments = Compartments()
    mind: Mind = Mind()
    chat: Chat = Chat()
    jobs: Jobs = Jobs()
    model: Model = Model()
    secrets: Secrets = Secrets()
    shared: Shared = Shared()


def load(text: str, environment: Mapping[str, str] = os.environ, source: str = FILE) -> Settings:
    """Read settings from the text of `holdfast.toml` and from the environment."""
    try:
        if any(line.partition("=")[0].count(".") > _DOTS for line in text.splitlines() if line[:1] != "#"):
            raise RecursionError  # the memory that a name takes grows with the square of its parts
        given: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise Invalid(f"{source} is not valid TOML: it is nested too deeply.", "Flatten it.") from None
    except ValueError as error:  # also a number of more digits than Python reads
        raise Invalid(f"{source} is not valid TOML: {error}.", "Mend that line.") from None
    if isinstance(given.get("format"), int) and given["format"] > FORMAT:
        raise Invalid(
            f"{source} says format {given['format']}; this Holdfast reads up to {FORMAT}.",
            "Upgrade Holdfast; nothing was changed.",
        )
    variables = _from_environment(given, environment)
    try:
        settings = msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        _check_each(given, variables, source)
        raise Invalid(f"{source}: {error}.", _valid()) from None
    for name in settings.paths.__struct_fields__:
        where = variables.get(f"paths.{name}", f"{source}: paths.{name}")
        _check_place(where, getattr(settings.paths, name))
    if unknown := [name for name in settings.secrets.allow if name not in NAMES]:
        where = variables.get("secrets.allow", f"{source}: secrets.allow")
        raise Invalid(f'{where} has "{unknown[0]}".{close_to(unknown[0], NAMES)}', f"Use names of: {', '.join(NAMES)}.")
    return settings


def _from_environment(given: dict[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Put what the environment says over what was given; return which variable each such setting comes from."""
    usual = Settings()
    variables = {}
    for section, fields in tables().items():
        for field in fields:
            variable = f"HOLDFAST_{section}_{field}".upper()
            value = environment.get(variable)
            if value is not None and isinstance(given.setdefault(section, {}), dict):
                given[section][field] = _typed(value, getattr(getattr(usual, section), field))
                variables[f"{section}.{field}"] = variable
    return variables


def _check_each(given: Mapping[str, Any], variables: Mapping[str, str], source: str) -> None:
    """Name the setting that cannot be used, with where it was set; of a choice, with all that there is."""
    for section in msgspec.structs.fields(Settings):
        values = given.get(section.name)
        for field in msgspec.structs.fields(section.type) if section.name in tables() else ():
            if not isinstance(values, dict) or field.name not in values:
                continue
            try:
                msgspec.convert(values[field.name], field.type)
            except msgspec.ValidationError as error:
                name = f"{section.name}.{field.name}"
                where = f"{variables[name]} ({name})" if name in variables else f"{source}: {name}"
                choices = get_args(field.type) if get_origin(field.type) is Literal else ()
                advice = f"Use one of: {', '.join(choices)}." if choices else "Change it, or leave it out."
                raise Invalid(f"{where} is {values[field.name]!r}: {error}.", advice) from None


def _typed(text: str, usual: object) -> Any:
    """Read a setting from the environment as what it usually is; a list is written like words of a shell."""
    if isinstance(usual, tuple):
        try:
            return shlex.split(text)
        except ValueError as error:
            raise Invalid(f"{text[:200]!r} cannot be split into words: {error}.", "Close the quotes.") from None
    return text if isinstance(usual, str) else _number(text)


def _number(text: str) -> int | float | str:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def tables() -> dict[str, tuple[str, ...]]:
    """Return the names of the settings in each table."""
    return {
        "paths": Paths.__struct_fields__,
        "limits": Limits.__struct_fields__,
        "search": Search.__struct_fields__,
        "hot": Hot.__struct_fields__,
        "learnings": Learnings.__struct_fields__,
        "compartments": Compartments.__struct_fields__,
        "mind": Mind.__struct_fields__,
        "chat": Chat.__struct_fields__,
        "jobs": Jobs.__struct_fields__,
        "model": Model.__struct_fields__,
        "secrets": Secrets.__struct_fields__,
        "shared": Shared.__struct_fields__,
    }


def _valid() -> str:
    lines = [f"[{name}] {', '.join(fields)}" for name, fields in tables().items()]
    return "Valid settings: format; " + "; ".join(lines) + "."


def _check_place(where: str, value: str) -> None:
    try:
        hidden = any(part.startswith(".") for part in check_path(value))
    except Invalid:
        hidden = True
    if hidden:
        raise Invalid(
            f"{where} = {value[:200]!r} leaves the root, is hidden or is no name.",
            "Use a folder below the root.",
        )
