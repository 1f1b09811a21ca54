"""Commands made from tools: each option is a parameter of the tool; and `tools`, `call` and `traces` for all tools.

`_GROUPS` maps commands to tools; options, help and checks come from the registry. Every parameter is an option, and so
is each field of an object. The only required parameter of a tool can also be given as an argument; a tool that requires
nothing takes its scope or title that way. A required list may be left out: it is empty then.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

from holdfast.cli import show
from holdfast.cli.main import Commands, Maker, command, commands_in, json_or_text, open_root, read_stdin
from holdfast.errors import HoldfastError, Invalid, NotFound, Unavailable
from holdfast.model.kinds import PLAN_STATUS
from holdfast.model.names import close_to, count_tokens
from holdfast.model.records import line_of
from holdfast.model.times import local
from holdfast.tools import toolsets
from holdfast.tools.calling import Context, Reply, Tool

_GROUPS = {
    "workspace": (
        "Manage workspaces, the projects of a memory.",
        "create=createWorkspace list=listWorkspaces load=loadWorkspace update=updateWorkspace archive=archiveWorkspace"
        " context=workspace_context",
    ),
    "state": (
        "Save and resume work in a workspace.",
        "create=createState list=listStates load=loadState archive=archiveState",
    ),
    "plan": ("List plans and set their status.", "list=retrieve_plans"),
    "learnings": ("List and save decisions and lessons.", "list=retrieve_learnings save=save_learning"),
    "skill": ("List, load and save skills that agents wrote.", "load=load_skill save=save_skill"),
    "compartment": ("Notes of a run, a session or a plan.", "save=save_memory get=get_memory clear=clear_memory"),
    "mind": (
        "Episodic, semantic and procedural memory of an agent.",
        "append=memory_append search=memory_search learn=memory_learn recall=memory_recall match=memory_match"
        " compact=memory_compact stats=memory_stats",
    ),
    "chat": (
        "Chat history of all channels, and MEMORY.md.",
        "search=search_history write=memory_write undo=memory_undo",
    ),
    "value": ("Read and search large stored results.", "read=value_read search=value_search summarize=value_summarize"),
    "jobs": ("Schedule messages and run those that are due.", "list=cron_list add=cron_add remove=cron_remove"),
    "task": (
        "A task queue for several workers.",
        "create=task_create claim=task_claim heartbeat=task_heartbeat report=task_report list=task_list",
    ),
}
VERBS = {group: dict(pair.split("=") for pair in pairs.split()) for group, (_, pairs) in _GROUPS.items()}
"""The tool of each command, by group and verb."""
_LEARNED = ("date", "category", "scope", "title")
_SHOWN: dict[str, Callable[[Reply], None]] = {
    "retrieve_plans": lambda reply: show.lists(reply, {"plans": ("status", "created", "id", "name")}),
    "retrieve_learnings": lambda reply: show.lists(reply, {"decisions": _LEARNED, "lessons": _LEARNED}),
    "memory_recall": lambda reply: show.reply(reply, "That key has no value."),
}
"""Functions that print a reply on a terminal, for tools whose reply `show.reply` does not print."""
_ALONE = "alone"
_LINE = 200
"""Characters of parameters or results in a table."""
_FLAGS = {"text": "the text", "when": '--key "…"', "role": "--field role=…"}  # parameters that are no options
_FREE_TEXT = ("query", "content", "situation", "title")
"""Arguments that may begin with a dash."""
_CLASSES = {"string": str, "integer": int, "number": float, None: json_or_text}
"""How an option is read whose JSON schema has this type, or none."""
_TOOLS = toolsets.registry().tools


def json(value: str, option: str = "") -> Any:
    """Read an option whose value is JSON; the help shows the name of this function."""
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        what = option or repr(value[:80])
        raise Invalid(f"{what} is not JSON: {error}.", 'Write it like {"name": "value"}.') from None


def text_or_json(value: str) -> Any:
    """Read an option that is text unless it is a JSON object or list."""
    return json_or_text(value) if value.lstrip().startswith(("{", "[")) else value


def _group(name: str, *extra: click.Command, makers: Mapping[str, Maker] | None = None) -> click.Group:
    own = {verb: functools.partial(_command, verb, _TOOLS[tool]) for verb, tool in VERBS[name].items()}
    group = Commands(name, help=_GROUPS[name][0], makers={**own, **(makers or {})})
    for made in extra:
        group.add_command(made)
    return group


def _command(name: str, tool: Tool) -> click.Command:
    """Return the command that runs a tool."""
    required = [param for param in tool.params.values() if param.required]
    argument = tool.params.get("scope") or tool.params.get("title")
    if required:
        argument = required[0] if len(required) == 1 else None
    params: list[click.Parameter] = []
    if argument:
        params.append(click.Argument([_ALONE], required=False, metavar=argument.name.upper()))
    parents: dict[str, str] = {}
    """The parameter that an option is a field of."""
    for param in tool.params.values():
        schema = param.schema
        for field, inner in schema.get("properties", {}).items():
            params.append(_option(field, inner, required=False))
            parents[field] = param.name
        if "properties" not in schema:
            params.append(_option(param.name, schema, required=param.required and param is not argument))

    @click.option("--workspace", default="", help="Workspace of the call; default: default.")
    @click.option("--session", default="", help="Session of the call; default: default.")
    def run(workspace: str, session: str, **given: Any) -> None:
        sent: dict[str, Any] = {}
        if argument:
            alone, named = given.pop(_ALONE), given[argument.name]
            if alone is not None and named is not None:
                raise click.UsageError(f"Give {argument.name} once: as the argument or with --{kebab(argument.name)}.")
            if alone is None and named is None and argument.required:
                raise click.UsageError(f"Missing argument '{argument.name.upper()}'.")
            if alone is not None:
                given[argument.name] = read_stdin() if alone == "-" else alone
        for name, value in given.items():
            if value is not None:
                (sent.setdefault(parents[name], {}) if name in parents else sent)[name] = value
        if tool.agent == "mind" and sent.get("type") == "working":
            raise Invalid(
                "Working memory exists only in one process and would end with this command.",
                "Use episodic, semantic or procedural; or a program that runs longer.",
            )
        _run(tool, sent, Context(workspaceId=workspace, sessionId=session))

    # an argument that may begin with a dash looks like an option to click
    lenient = argument is not None and argument.name in _FREE_TEXT
    settings = {"ignore_unknown_options": lenient}
    made = command(name, help=tool.about, short_help=_short(tool.about), context_settings=settings)(run)
    made.params[:0] = params
    return made


def _short(about: str) -> str:
    """Return the first sentence of a text, or its beginning that fits in a line of the help: 60 characters."""
    sentence = re.split(r"\.\s", about.removesuffix("."))[0]
    parts = (" ".join(re.split(end, sentence)[0].split()) for end in (r"\Z", r"[:;]\s", r",\s"))
    return next((f"{part}." for part in parts if len(part) < 60), about)


def _run(tool: Tool, params: dict[str, Any], context: Context) -> None:
    """Run a tool as an agent would, with a trace, and print its reply; raise its error, which has the exit code."""
    with open_root(create=not tool.reads) as memory:
        reply = memory.tools.run(tool, params, context, raises=True)
    show.json_and_exit(reply)
    reply |= {"text": named(reply["text"])} if "text" in reply else {}
    _SHOWN.get(tool.name, show.reply)(reply)


def advice(error: HoldfastError) -> str:
    """Return the text of an error, with the names of commands and options where it names tools and parameters."""
    flags = [_FLAGS.get(name, f'--{kebab(name)} "…"') for name in error.missing]
    return f"{error.message.rstrip('.')}: add {' '.join(flags)}" if flags else named(str(error))


def named(text: str) -> str:
    """Return a text for agents with the names of commands where it names tools to use."""
    for group, verbs in VERBS.items():
        for verb, tool in verbs.items():
            text = re.sub(rf"\bUse {tool}\b", f"Use `holdfast {group} {verb}`", text)
    return text


def _option(name: str, schema: Mapping[str, Any], *, required: bool) -> click.Option:
    option, about = f"--{kebab(name)}", schema.get("description") or kebab(name).replace("-", " ")
    about, default = about[0].upper() + about[1:], schema.get("default")
    if schema.get("type") == "boolean":
        flags = option if default is False else f"{option}/--no-{option[2:]}"
        return click.Option([flags, name], is_flag=True, default=default, help=f"{about}.")
    for part in schema.get("anyOf", [schema]):
        if part.get("type") == "array":
            text = f"{about}; may be given several times."

            def given(_context: click.Context, _parameter: click.Parameter, value: tuple[Any, ...]) -> list[Any] | None:
                return list(value) if value or required else None

            return click.Option([option, name], type=_type(part["items"]), multiple=True, callback=given, help=text)
    text = f"{about}." if default is None else f"{about}; default: {default}."
    return click.Option([option, name], type=_type(schema), required=required, help=text)


def _type(schema: Mapping[str, Any]) -> Any:
    """Return a type for click: a class, a choice, or a function that reads the text."""
    if "enum" in schema:
        return click.Choice(schema["enum"])
    types = [part.get("type") for part in schema.get("anyOf", [schema])]
    if len(types) == 1 and types[0] in _CLASSES:
        return _CLASSES[types[0]]
    return text_or_json if "string" in types else json


def kebab(name: str) -> str:
    """Return the option name of a parameter: rootFolder is root-folder."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower().replace("_", "-")


# commands over tools that need arguments of their own


@command("status")
@click.argument("plan")
@click.argument("status", type=click.Choice(PLAN_STATUS))
def plan_status(plan: str, status: str) -> None:
    """Set the status of PLAN, given by path, id or name."""
    _run(_TOOLS["set_plan_status"], {"path" if "/" in plan else "id": plan, "status": status}, Context())


@command()
@click.argument("id")
def enable(id: str) -> None:
    """Enable the job ID from now on."""
    _run(_TOOLS["cron_set_enabled"], {"id": id, "enabled": True}, Context())


@command()
@click.argument("id")
def disable(id: str) -> None:
    """Disable the job ID until it is enabled again."""
    _run(_TOOLS["cron_set_enabled"], {"id": id, "enabled": False}, Context())


@command("list")
@click.argument("scope", required=False)
def skill_list(scope: str | None) -> None:
    """List the skills of SCOPE (default: every workspace)."""
    with open_root() as memory:
        tops = [scope] if scope else memory.scopes.children("")
        found = [one for top in tops for one in memory.skills.all(memory.scopes.resolve(top))]
    show.json_and_exit(found)
    show.lists({"skills": found}, {"skills": ("name", "scope", "description")})


@command("history")
@click.option("-n", "--last", type=click.IntRange(1), default=20, show_default=True, help="How many messages.")
def chat_history(last: int) -> None:
    """Show the last messages of all channels, oldest first."""
    with open_root() as memory:
        found = memory.chat.load_history(last)
        rows = [(local(one.timestamp), memory.chat.label(one) or f"[{one.role}]", one.content) for one in found]
    show.json_and_exit({"messages": found, "problems": found.problems})
    for when, label, content in rows:
        click.echo(f"{click.style(f'{when} {show.printable(label)}', fg='cyan')}\n{show.printable(content)}\n")
    if found:
        show.warnings(found.problems)
    else:
        click.echo("There are no messages yet.")


@command("memory")
@click.option("--approve", is_flag=True, help="Let prompts show it as yours, not quoted.")
def chat_memory(approve: bool) -> None:
    """Show MEMORY.md, which is in every prompt."""
    with open_root() as memory:
        if approve:
            memory.chat.approve_global_memory()
        text = memory.chat.load_global_memory()
    show.json_and_exit({"text": text, "tokens": count_tokens(text)})
    click.echo(show.printable(text) if text.strip() else "MEMORY.md is empty.")


workspace, state, compartment, mind, value, task = map(
    _group, ("workspace", "state", "compartment", "mind", "value", "task")
)
plan = _group("plan", plan_status)
learnings = _group("learnings", makers=commands_in("owner", "archive"))
skill = _group("skill", skill_list)
chat = _group("chat", chat_history, chat_memory)
jobs = _group("jobs", enable, disable, makers=commands_in("jobs", "run log"))
_ALIASES = {"overview": "retrieve_overview", "revise": "revise"}
"""The tools with a command of their own."""


def __getattr__(name: str) -> click.Command:
    """Make a command of one tool when it is used: the options of all tools take a while."""
    if name in _ALIASES:
        return _command(name, _TOOLS[_ALIASES[name]])
    raise AttributeError(name)


# commands over all tools


def _complete(_context: click.Context, _parameter: click.Parameter, start: str) -> list[str]:
    return [name for name in _TOOLS if name.startswith(start)]


@command()
@click.argument("tool", required=False, default="", shell_complete=_complete)
def tools(tool: str) -> None:
    """List the tools for agents, or describe TOOL."""
    if tool and tool not in _TOOLS:
        raise NotFound(f'There is no tool "{tool}".{close_to(tool, _TOOLS)}', "Run: holdfast tools")
    described = [
        {"agent": each.agent, "name": each.name, "description": each.about, "inputSchema": each.schema}
        for each in ([_TOOLS[tool]] if tool else _TOOLS.values())
    ]
    show.json_and_exit(described[0] if tool else described)
    if tool:
        click.echo(f"{_TOOLS[tool].agent}: {tool}\n\n{_TOOLS[tool].about}\n")
        rows = []
        for name, param in _TOOLS[tool].params.items():
            parts = param.schema.get("anyOf", [param.schema])
            types = ["|".join(map(str, part["enum"])) if "enum" in part else part.get("type", "any") for part in parts]
            rows.append((name, " or ".join(types), "yes" if param.required else "", param.about))
        show.table(("parameter", "type", "needed", "what"), rows)
    else:
        first = [(each.agent, each.name, " ".join(each.about.split()).partition(". ")[0]) for each in _TOOLS.values()]
        show.table(("agent", "tool", "what"), first)
        click.echo("\nholdfast tools TOOL describes one; holdfast call TOOL --params JSON runs it.")


@command()
@click.argument("tool", shell_complete=_complete)
@click.option("--params", default="{}", metavar="JSON|@FILE|-", help="Parameters: JSON, a file, or standard input.")
@click.option("--context", metavar="JSON|@FILE", help="Context: workspaceId, sessionId, goal and others.")
def call(tool: str, params: str, context: str | None) -> None:
    """Run TOOL and print the reply that an agent gets.

    The exit code is 1 if the reply is an error.
    """
    given = _json("--params", params)
    about = None if context is None else _json("--context", context)
    with open_root(create=tool in _TOOLS and not _TOOLS[tool].reads) as memory:
        reply = memory.call(tool, given, about)
    if "text" in reply and not show.wants_json():
        click.echo(show.printable(str(reply["text"])))
    else:
        show.as_json(reply)
    if reply.get("success") is False:
        sys.exit(1)


def _json(option: str, given: str) -> Any:
    """Read the JSON of an option, of the file that it names, or of standard input."""
    if given == "-":
        given = read_stdin()
    elif given.startswith("@"):
        try:
            with open(given[1:], encoding="utf-8") as file:
                given = file.read()
        except OSError as error:
            raise Unavailable(f"{given[1:]}: {error.strerror}.", f"Give {option} a file that can be read.") from None
        except UnicodeDecodeError:
            raise Invalid(f"{given[1:]} is not UTF-8.", "Save it as UTF-8.") from None
    return json(given, option)


@command()
@click.option("--workspace", default="", help="Only calls in this workspace.")
@click.option("--agent", default="", help="Only calls of this agent.")
@click.option("-n", "--count", default=20, show_default=True, type=click.IntRange(min=1), help="How many.")
def traces(workspace: str, agent: str, count: int) -> None:
    """Print the last tool calls, oldest first."""
    with open_root() as memory:
        scope = memory.scopes.resolve(workspace) if workspace else None
        found = memory.traces.last(count, scope, agent)
    rows = []
    for each in found:
        ended, came = ("ok", each["result"]) if each["success"] else ("error", each["error"])
        what = "\n→ ".join(line[:_LINE] for line in (line_of(each["params"]), line_of(came)) if line)
        rows.append((local(each["time"]), each["agent"], each["session"], each["tool"], each["ms"], ended, what))
    columns = ("time", "agent", "session", "tool", "ms", "ended", "what")
    show.listing(found, "No such call yet.", columns, rows, whole=("time", "tool"))
