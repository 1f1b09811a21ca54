"""Write docs/reference/ from the code: commands, settings, kinds, errors. `scripts/reference`; a test compares."""

from __future__ import annotations

import ast
import inspect
import pathlib

import click

from holdfast import errors, settings
from holdfast.cli.main import cli
from holdfast.kinds import KINDS

FOLDER = pathlib.Path(__file__).parent.parent / "docs" / "reference"
NOTE = "<!-- Written by scripts/reference from the code. Do not edit. -->\n"


def pages() -> dict[str, str]:
    """Return every page by its file name."""
    return {"commands.md": commands(), "settings.md": all_settings(), "kinds.md": kinds()}


def commands() -> str:
    parts = [NOTE, "# Commands\n", _help(cli), ""]
    for name in sorted(cli.commands):
        command = cli.commands[name]
        context = click.Context(command, info_name=f"holdfast {name}")
        usage = " ".join(command.collect_usage_pieces(context))
        parts += [f"## `holdfast {name}`\n", f"```\nholdfast {name} {usage}\n```\n", _help(command)]
        options = [option for option in command.params if isinstance(option, click.Option)]
        if options:
            parts += ["| option | meaning |", "|---|---|"]
            parts += [
                f"| `{', '.join(option.opts)}` | {(option.help or '').replace('|', chr(92) + '|')} |"
                for option in options
            ]
        parts.append("")
    parts += ["## Exit codes\n", "| code | error | meaning |", "|---|---|---|", "| 0 | | it worked |"]
    parts += [f"| {code} | `{name}` | {meaning} |" for code, name, meaning in _errors()]
    return "\n".join(parts) + "\n"


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


def all_settings() -> str:
    """Read names, defaults and docstrings from the source of `settings`."""
    tree = ast.parse(inspect.getsource(settings))
    parts = [
        NOTE,
        "# Settings\n",
        "In `holdfast.toml`, or in the environment as `HOLDFAST_<TABLE>_<NAME>`; the environment wins. All are optional.\n",
    ]
    for table in ("Settings", "Paths", "Limits", "Search"):
        rows = []
        (node,) = [item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == table]
        for field, doc in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
                name = ast.unparse(field.target)
                default = getattr(getattr(settings, table)(), name)
                rows.append(f"| `{name}` | `{default!r}` | {' '.join(str(doc.value.value).split())} |")
        heading = "## Top level\n" if table == "Settings" else f"## `[{table.lower()}]`\n"
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


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"docs/reference/{name}")
