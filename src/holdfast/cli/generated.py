"""Commands that are made of tools: each option is a parameter of the tool's function.

`VERBS` says which tool a command runs; all else (options, help, checks) comes from the registry. All parameters are
options, and so are the fields of one that is an object. A tool's only required parameter may be given as an argument as
well, or its scope or title where it requires nothing. A list that a tool requires may be empty, so it may be left out.
"""

from __future__ import annotations

import contextlib
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import msgspec

from holdfast.cli import scheduling, show, tasking, tidying
from holdfast.cli.common import common, open_root, read_stdin
from holdfast.errors import HoldfastError, Invalid
from holdfast.model.kinds import PLAN_STATUS
from holdfast.model.times import local
from holdfast.model.tokens import count_tokens
from holdfast.tools import toolsets
from holdfast.tools.calling import Context, Reply
from holdfast.tools.registry import Param, Tool

VERBS = {
    "workspace": {
        "create": "createWorkspace",
        "list": "listWorkspaces",
        "load": "loadWorkspace",
        "update": "updateWorkspace",
        "archive": "archiveWorkspace",
        "context": "workspace_context",
    },
    "state": {"create": "createState", "list": "listStates", "load": "loadState", "archive": "archiveState"},
    "plan": {"list": "retrieve_plans"},
    "learnings": {"list": "retrieve_learnings", "save": "save_learning"},
    "skill": {"load": "load_skill", "save": "save_skill"},
    "compartment": {"save": "save_memory", "get": "get_memory", "clear": "clear_memory"},
    "mind": {
        "append": "memory_append",
        "search": "memory_search",
        "learn": "memory_learn",
        "recall": "memory_recall",
        "match": "memory_match",
        "compact": "memory_compact",
        "stats": "memory_stats",
    },
    "chat": {"search": "search_history", "write": "memory_write", "undo": "memory_undo"},
    "value": {"read": "value_read", "search": "value_search", "summarize": "value_summarize"},
    "jobs": {"list": "cron_list", "add": "cron_add", "remove": "cron_remove"},
    "task": {
        "create": "task_create",
        "claim": "task_claim",
        "heartbeat": "task_heartbeat",
        "report": "task_report",
        "list": "task_list",
    },
}
_ABOUT = {
    "workspace": "The places that a project's memory belongs to.",
    "state": "Save points of a workspace, written once, from which any conversation can resume.",
    "plan": "What was done and what is planned.",
    "learnings": "What was decided, and what went wrong.",
    "skill": "Ways of doing something that agents wrote down for themselves.",
    "compartment": "Notes of a session or a plan; those of a run end with the command.",
    "mind": "Episodes, knowledge by key, procedures: the memories of an agent loop.",
    "chat": "What was said on all channels, and MEMORY.md.",
    "value": "Large results that an entry refers to.",
    "jobs": "Messages that are due by a schedule, and running them.",
    "task": "Work that an orchestrator hands out and workers take: dependencies, leases, retries, results.",
}
_LEARNED = ("date", "category", "scope", "title")
_TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "retrieve_plans": {"plans": ("status", "created", "id", "name")},
    "retrieve_learnings": {"decisions": _LEARNED, "lessons": _LEARNED},
}
"""Replies that a terminal shows as tables: which list of the reply, and which of its fields."""
_NOTHING = {"memory_recall": "Nothing is known under that key."}
"""What a terminal says when a reply has no data."""
_ALONE = "alone"
_SAID = ("query", "content", "situation", "title")
"""Arguments that are text, which may begin with a dash."""
_TOOLS = toolsets.registry().tools


def json(value: str) -> Any:
    """Read an option whose value is JSON; its name is what the help shows."""
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(f"{value[:80]!r} is not JSON: {error}.", 'Write it like {"name": "value"}.') from None


def text_or_json(value: str) -> Any:
    """Read an option that may be text; what is no JSON object or list is text."""
    if value.lstrip().startswith(("{", "[")):
        with contextlib.suppress(msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return msgspec.json.decode(value)
    return value


def json_or_text(value: str) -> Any:
    """Read an option that may be any JSON value; what is no JSON is text."""
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return value


def _group(name: str) -> click.Group:
    group = click.Group(name, help=_ABOUT[name])
    for verb, tool in VERBS[name].items():
        group.add_command(_command(verb, _TOOLS[tool]))
    return group


def _command(name: str, tool: Tool) -> click.Command:
    """Make the command that runs a tool."""
    argument = _argument(tool)
    homes = [(param, inner) for param in tool.params.values() for inner in _fields(param) or [param]]
    params: list[click.Parameter] = [_option(inner, needed=param is not argument) for param, inner in homes]
    names = {str(made.name): home for made, home in zip(params, homes, strict=True)}
    if argument:
        params.insert(0, click.Argument([_ALONE], required=False, metavar=argument.name.upper()))

    @click.option("--workspace", default="", help="The workspace that the call works in; default: default.")
    @click.option("--session", default="", help="The session that the call belongs to; default: default.")
    @common
    def run(root: str | None, as_json: bool, workspace: str, session: str, **given: Any) -> None:
        sent: dict[str, Any] = {}
        if argument:
            given[argument.name] = _one(argument, given.pop(_ALONE), given[argument.name])
        for name, value in given.items():
            param, inner = names[name]
            if value is not None and param is inner:
                sent[param.name] = value
            elif value is not None:
                sent.setdefault(param.name, {})[inner.name] = value
        if tool.agent == "mind" and sent.get("type") == "working":
            raise Invalid(
                "Working memory lives in one process: here it would end with this command.",
                "Use episodic, semantic or procedural; or a program that runs longer.",
            )
        reply = _run(tool, sent, Context(workspaceId=workspace, sessionId=session), root)
        if show.wants_json(as_json):
            show.as_json(reply)
        elif tool.name in _TABLES:
            show.lists(reply, _TABLES[tool.name])
        elif tool.name == "cron_list":
            scheduling.listed(reply)
        elif tool.name == "task_list":
            tasking.listed(reply)
        elif tool.name == "task_claim":
            tasking.claimed(reply)
        else:
            show.reply(reply, _NOTHING.get(tool.name, "Done."))

    lenient = argument is not None and argument.name in _SAID  # an option that is none is then one argument too many
    made = click.command(name, help=tool.about, context_settings={"ignore_unknown_options": lenient})(run)
    made.params[:0] = params
    return made


def _argument(tool: Tool) -> Param | None:
    """Return the parameter that may be given without its name."""
    needed = [param for param in tool.params.values() if param.required]
    if needed:
        return needed[0] if len(needed) == 1 else None
    return tool.params.get("scope") or tool.params.get("title")


def _one(param: Param, alone: str | None, named: Any) -> Any:
    """Return what was given as an argument, `-` for standard input, or as the option of the same name."""
    if alone is not None and named is not None:
        raise click.UsageError(f"Give {param.name} once: as the argument or with --{kebab(param.name)}.")
    if alone is None and named is None and param.required:
        raise click.UsageError(f"Missing argument '{param.name.upper()}'.")
    if alone is None:
        return named
    return read_stdin() if alone == "-" else alone


def _run(tool: Tool, params: dict[str, Any], context: Context, root: str | None) -> Reply:
    """Run a tool as an agent would, trace included, but raise what it raised, which has the exit code."""
    raised: list[HoldfastError] = []

    def function(*args: Any, **values: Any) -> Any:
        try:
            return tool.function(*args, **values)
        except HoldfastError as error:
            raised.append(error)
            raise

    with open_root(root) as memory:
        reply = memory.tools.run(msgspec.structs.replace(tool, function=function), params, context)
    if reply.get("success") is False:
        raise raised[0] if raised else Invalid(reply["error"])
    return reply


def _fields(param: Param) -> list[Param]:
    """Return the fields of a parameter that is an object, each as a parameter of its own."""
    hints = _alternatives(param.type)
    if len(hints) > 1 or not isinstance(hints[0], type) or not issubclass(hints[0], msgspec.Struct):
        return []
    return [Param(field.name, field.type, False, field.default) for field in msgspec.structs.fields(hints[0])]


def _option(param: Param, *, needed: bool) -> click.Option:
    hints = _alternatives(param.type)
    option, about = f"--{kebab(param.name)}", param.about or kebab(param.name).replace("-", " ")
    about = about[0].upper() + about[1:]
    if hints == (bool,):
        if param.default is not False:
            both = f"{option}/--no-{option[2:]}"
            return click.Option([both, param.name], default=param.default, help=f"{about}.")
        return click.Option([option, param.name], is_flag=True, default=False, help=f"{about}.")
    if get_origin(hints[0]) is list:
        item = _type(_alternatives(get_args(hints[0])[0]))
        given: Callable[..., Any] = _listed if param.required else _listed_or_none
        text = f"{about}; may be given several times."
        return click.Option([option, param.name], type=item, multiple=True, callback=given, help=text)
    text = f"{about}." if param.default in (None, "") else f"{about}; default: {param.default}."
    return click.Option([option, param.name], type=_type(hints), required=needed and param.required, help=text)


def _type(hints: tuple[Any, ...]) -> Any:
    """Return what click calls a type: a type, a choice, or a function that reads the text."""
    if get_origin(hints[0]) is Literal:
        return click.Choice(get_args(hints[0]))
    if hints in ((str,), (int,), (float,)):
        return hints[0]
    if hints == (Any,):
        return json_or_text
    return text_or_json if str in hints else json


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types that a value may have, but for None."""
    if get_origin(hint) is Annotated:
        return _alternatives(get_args(hint)[0])
    if get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(inner for part in get_args(hint) if part is not type(None) for inner in _alternatives(part))
    return (hint,)


def _listed(_context: click.Context, _parameter: click.Parameter, value: tuple[Any, ...]) -> list[Any]:
    return list(value)


def _listed_or_none(_context: click.Context, _parameter: click.Parameter, value: tuple[Any, ...]) -> list[Any] | None:
    return list(value) or None


@click.command("status")
@click.argument("plan")
@click.argument("status", type=click.Choice(PLAN_STATUS))
@common
def _plan_status(plan: str, status: str, root: str | None, as_json: bool) -> None:
    """Say how far PLAN is, by its path, id or name. Changes its status and the day of the change, nothing else."""
    named = {"path" if "/" in plan else "id": plan}
    reply = _run(_TOOLS["set_plan_status"], {**named, "status": status}, Context(), root)
    if show.wants_json(as_json):
        show.as_json(reply)
    else:
        show.reply(reply)


def _enabling(verb: str, enabled: bool) -> click.Command:
    @click.argument("id")
    @common
    def run(id: str, root: str | None, as_json: bool) -> None:
        reply = _run(_TOOLS["cron_set_enabled"], {"id": id, "enabled": enabled}, Context(), root)
        if show.wants_json(as_json):
            show.as_json(reply)
        else:
            show.reply(reply)

    about = "Let the job ID be due again, from now on." if enabled else "Keep the job ID from being due, for a while."
    return click.command(verb, help=about)(run)


@click.command("list")
@click.argument("scope", required=False)
@common
def _skill_list(scope: str | None, root: str | None, as_json: bool) -> None:
    """List the skills of SCOPE (default: every workspace)."""
    with open_root(root) as memory:
        tops = [scope] if scope else memory.scopes.children("")
        found = [one for top in tops for one in memory.skills.all(memory.scopes.resolve(top))]
    if show.wants_json(as_json):
        show.as_json(found)
    else:
        show.lists({"skills": found}, {"skills": ("name", "scope", "description")})


@click.command("history")
@click.option("-n", "--last", type=click.IntRange(1), default=20, show_default=True, help="How many messages.")
@common
def _chat_history(last: int, root: str | None, as_json: bool) -> None:
    """Show the last messages of all channels, oldest first."""
    with open_root(root) as memory:
        found = memory.chat.load_history(last)
        rows = [(local(one.timestamp), memory.chat.label(one) or f"[{one.role}]", one.content) for one in found]
    if show.wants_json(as_json):
        show.as_json({"messages": found, "problems": found.problems})
    elif not found:
        click.echo("Nothing was said yet.")
    else:
        for when, label, content in rows:
            click.echo(f"{click.style(f'{when} {show.printable(label)}', fg='cyan')}\n{show.printable(content)}\n")
        for problem in found.problems:
            click.secho(show.printable(str(problem)), fg="yellow", err=True)


@click.command("memory")
@common
def _chat_memory(root: str | None, as_json: bool) -> None:
    """Show MEMORY.md, which is in every prompt."""
    with open_root(root) as memory:
        text = memory.chat.load_global_memory()
    if show.wants_json(as_json):
        show.as_json({"text": text, "tokens": count_tokens(text)})
    else:
        click.echo(show.printable(text) if text.strip() else "MEMORY.md is empty.")


def kebab(name: str) -> str:
    """Return the name of a parameter as an option has it: rootFolder is root-folder."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower().replace("_", "-")


workspace = _group("workspace")
state = _group("state")
plan = _group("plan")
plan.add_command(_plan_status)
learnings = _group("learnings")
learnings.add_command(tidying.archive)
skill = _group("skill")
skill.add_command(_skill_list)
compartment = _group("compartment")
mind = _group("mind")
value = _group("value")
chat = _group("chat")
chat.add_command(_chat_history)
chat.add_command(_chat_memory)
jobs = _group("jobs")
for _extra in (_enabling("enable", True), _enabling("disable", False), scheduling.run, scheduling.log):
    jobs.add_command(_extra)
task = _group("task")
overview = _command("overview", _TOOLS["retrieve_overview"])
recall = _command("recall", _TOOLS["recall"])
remember = _command("remember", _TOOLS["remember"])
