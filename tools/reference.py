"""Write docs/reference/ from the code: commands, settings, kinds, errors. `scripts/reference`; a test compares."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import click
import msgspec

import holdfast
from holdfast import errors
from holdfast.cli.main import cli
from holdfast.model import settings
from holdfast.model.kinds import KINDS
from holdfast.tools import toolsets
from holdfast.tools.calling import Param

FOLDER = pathlib.Path(__file__).parent.parent / "docs" / "reference"
NOTE = "<!-- Written by scripts/reference from the code. Do not edit. -->\n"


def pages() -> dict[str, str]:
    """Return every page by its file name."""
    return {
        "commands.md": commands(),
        "settings.md": all_settings(),
        "kinds.md": kinds(),
        "tools.md": all_tools(),
        "python.md": python(),
    }


def commands() -> str:
    parts = [NOTE, "# Commands\n", _help(cli), ""]
    for name, command in every_command(cli):
        if (same := command.name) != name.rpartition(" ")[2]:
            parts += [f"## `{name}`\n", f"Another name of [`holdfast {same}`](#holdfast-{same}).\n"]
            continue
        context = click.Context(command, info_name=name)
        usage = " ".join(command.collect_usage_pieces(context))
        parts += [f"## `{name}`\n", f"```\n{name} {usage}\n```\n", _help(command)]
        options = [option for option in command.params if isinstance(option, click.Option)]
        if options:
            parts += ["| option | meaning |", "|---|---|"]
            parts += [
                f"| `{', '.join((*option.opts, *option.secondary_opts))}` | {(option.help or '').replace('|', chr(92) + '|')} |"
                for option in options
            ]
        parts.append("")
    parts += ["## Exit codes\n", "| code | error | meaning |", "|---|---|---|", "| 0 | | it worked |"]
    parts += [f"| {code} | `{name}` | {meaning} |" for code, name, meaning in _errors()]
    return "\n".join(parts) + "\n"


def every_command(group: click.Group, name: str = "holdfast") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its whole name; a group comes before its commands."""
    context = click.Context(group, info_name=name)
    for part in sorted(group.list_commands(context)):
        command = group.get_command(context, part)
        assert command is not None  # listed
        yield f"{name} {part}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{name} {part}")


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "") + "\n"


def _errors() -> list[tuple[int, str, str]]:
    """Read the tree that the docstring of `errors` draws."""
    rows = []
    for line in (errors.__doc__ or "").splitlines():
        words = line.replace("├──", "").replace("└──", "").split(None, 2)
        if len(words) >= 2 and words[1].isdigit() and hasattr(errors, words[0]):
            rows.append((int(words[1]), words[0], words[2] if len(words) > 2 else "anything else"))
    return rows


def all_tools() -> str:
    """Describe every tool as an agent sees it."""
    made = toolsets.registry()
    parts = [
        NOTE,
        "# Tools\n",
        f"A server shows a model {len(toolsets.CORE)} of them: {', '.join(f'`{name}`' for name in toolsets.CORE)}. The others are"
        " reached through `useTools`, or shown with `holdfast mcp --toolset all`. Every tool but the last two also takes"
        " `context`.\n",
    ]
    for agent, names in made.agents().items():
        parts.append(f"## Agent `{agent}`\n")
        for name in names:
            tool = made.tools[name]
            parts += [f"### `{name}`\n", " ".join(tool.about.split()) + "\n"]
            if tool.params:
                parts += ["| parameter | type | needed | meaning |", "|---|---|---|---|"]
                parts += [_parameter(param) for param in tool.params.values()]
                parts.append("")
    return "\n".join(parts)


def _parameter(param: Param) -> str:
    needed = "yes" if param.required else "no" if param.default is None else f"`{param.default!r}`"
    return f"| `{param.name}` | {_type(param.schema)} | {needed} | {param.about.replace('|', chr(92) + '|')} |"


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and schema.get("properties"):
        return "{" + ", ".join(schema["properties"]) + "}"
    return str(schema.get("type", "anything"))


def all_settings() -> str:
    """Read names, defaults and docstrings from the source of `settings`."""
    tree = ast.parse(inspect.getsource(settings))
    parts = [
        NOTE,
        "# Settings\n",
        "In `holdfast.toml`, or in the environment as `HOLDFAST_<TABLE>_<NAME>`; the environment wins. All are optional.\n",
    ]
    every = settings.Settings()
    for table in ("", *settings.tables()):
        rows, group = [], getattr(every, table) if table else every
        (node,) = [item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == type(group).__name__]
        for field, doc in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                name = ast.unparse(field.target)
                rows.append(f"| `{name}` | `{getattr(group, name)!r}` | {' '.join(str(doc.value.value).split())} |")
        heading = f"## `[{table}]`\n" if table else "## Top level\n"
        parts += [heading, "| name | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def kinds() -> str:
    parts = [
        NOTE,
        "# Kinds\n",
        "What a record can be. `holdfast put KIND …` writes those that are not marked as Holdfast's own.\n",
        "| kind | what it is | shape | place | needs |",
        "|---|---|---|---|---|",
    ]
    for row in KINDS.values():
        needs = "Holdfast's own" if row.owned else ", ".join(row.required)
        parts.append(f"| `{row.name}` | {row.about} | {row.shape} | `{row.place}` | {needs} |")
    parts += ["", "| kind | field | values |", "|---|---|---|"]
    parts += [
        f"| `{row.name}` | `{field}` | {', '.join(values)} |"
        for row in KINDS.values()
        for field, values in row.choices.items()
    ]
    return "\n".join(parts) + "\n"


# the Python interface

_PARTS = {
    "memory.Memory": "put get find tail hide undo related explain call prompt mind run changes stats usage refresh verify embed"
    " versions text_at rollback forget backup export push pull close root embedder sources every",
    "aio.AsyncMemory": "run changes close",
    "memories.mind.Mind": "", "memories.compartments.Run": "", "memories.chat.Chat": "", "memory.Changes": "poll close",
    "model.records.Draft": "", "model.records.Receipt": "", "model.records.Record": "where", "model.records.Scope": "path above",
    "model.queries.Query": "", "recall.answers.Found": "", "recall.answers.Hit": "", "memory.Change": "",
    "owner.backup.Copied": "", "owner.transfer.Moved": "records nothing", "owner.forget.Forgotten": "",
}  # fmt: skip
"""The classes that a program meets, and those of their members that are for it; "" for all public ones."""
_EXAMPLE = FOLDER.parent.parent / "examples" / "library.py"


def python() -> str:
    """Describe every public name with its signature and docstring, and show an example that a test runs."""
    functions = [getattr(holdfast, name) for name in holdfast.__all__]
    parts = [NOTE, "# Python\n", "`python -m examples.library` runs this:\n"]
    parts += [f"```python\n{_EXAMPLE.read_text(encoding='utf-8').strip()}\n```\n", "## Module `holdfast`\n"]
    parts += [_function(f"holdfast.{each.__name__}", each) for each in functions if inspect.isfunction(each)]
    for name, members in _PARTS.items():
        module, _, kind = name.rpartition(".")
        parts += _class(getattr(importlib.import_module(f"holdfast.{module}"), kind), members.split())
    parts += [
        "## Errors\n",
        "All are in `holdfast.errors` and derive from `HoldfastError`. `message` says what happened, `step` what to do next.\n",
    ]
    parts += ["| error | when |", "|---|---|"]
    parts += [f"| `{name}` | {meaning} |" for _, name, meaning in _errors()]
    return "\n".join(parts) + "\n"


def _class(kind: type, members: list[str]) -> list[str]:
    parts = [f"## `{kind.__name__}`\n", inspect.cleandoc(kind.__doc__ or "") + "\n"]
    if fields := _fields(kind):
        parts += ["| field | type | default | meaning |", "|---|---|---|---|", *fields, ""]
    named = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items() if name[0] != "_"}
    for name in members or sorted(named):
        value = named.get(name)
        if isinstance(value, property) and value.__doc__:
            parts.append(f"- `{name}`: {' '.join(value.__doc__.split())}\n")
        elif inspect.isfunction(value) and value.__doc__:
            parts.append(_function(f"{kind.__name__}.{name}", value))
    return parts


def _function(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    given = [each for each in signature.parameters.values() if each.name not in ("self", "memory")]
    shown = re.sub(r"""(: |-> )(['"])(.*?)\2(?=[,) ]|$)""", r"\1\3", str(signature.replace(parameters=given)))
    return f"### `{name}`\n\n```python\n{name.rpartition('.')[2]}{shown}\n```\n\n{inspect.cleandoc(function.__doc__ or '')}\n"


def _fields(kind: type) -> list[str]:
    if not issubclass(kind, msgspec.Struct):
        return []
    (node,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(node, ast.ClassDef)
    rows = []
    for field, after in itertools.zip_longest(node.body, node.body[1:]):
        if isinstance(field, ast.AnnAssign):
            doc = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            default = f"`{ast.unparse(field.value)}`" if field.value else ""
            kind_of = ast.unparse(field.annotation).replace("|", "\\|")
            rows.append(f"| `{ast.unparse(field.target)}` | `{kind_of}` | {default} | {' '.join(str(doc).split())} |")
    return rows


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"docs/reference/{name}")
