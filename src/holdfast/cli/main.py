"""The `holdfast` command: which commands there are, in which module each one is, and what an error becomes.

A command's module is loaded when the command is asked for, so that a search does not pay for the others.
"""

from __future__ import annotations

import importlib
import keyword
import os
import re
import sys

import click

from holdfast import __version__
from holdfast.errors import HoldfastError

_MODULES = {
    "records": (
        "init",
        "put",
        "get",
        "search",
        "tail",
        "hide",
        "related",
        "why",
        "refresh",
        "embed",
        "verify",
        "stats",
    ),
    "calling": ("tools", "call", "traces"),
    "generated": (
        "workspace",
        "state",
        "plan",
        "learnings",
        "skill",
        "compartment",
        "mind",
        "value",
        "chat",
        "jobs",
        "task",
        "overview",
        "recall",
        "remember",
    ),
    "prompting": ("context",),
    "serving": ("mcp", "serve"),
    "granting": ("token",),
    "installing": ("install", "uninstall"),
    "checking": ("doctor",),
    "configuring": ("settings",),
    "importing": ("import",),
    "hot": ("hot",),
    "owning": ("history", "undo", "forget", "rollback", "backup", "restore"),
    "moving": ("push", "pull", "export"),
    "tidying": ("lint", "migrate"),
    "watching": ("watch",),
    "measuring": ("bench",),
}
_HOME = {command: module for module, commands in _MODULES.items() for command in commands}


class Commands(click.Group):
    """A group whose commands are loaded when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_HOME, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _HOME and cmd_name not in self.commands:
            module = importlib.import_module(f"holdfast.cli.{_HOME[cmd_name]}")
            self.commands[cmd_name] = getattr(module, f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="holdfast")
@click.option("--root", type=click.Path(), help="The memory root; may also stand behind the command.")
def cli(root: str | None) -> None:
    """The memory that AI agents keep, in files their owner can read.

    The root is --root, else $HOLDFAST_ROOT, else the nearest folder upwards with a holdfast.toml.
    """
    if root:
        os.environ["HOLDFAST_ROOT"] = root


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; add its output to the shell's start file."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # the choices above are those that click has
    click.echo(kind(cli, {}, "holdfast", "_HOLDFAST_COMPLETE").source())


def _in_commands(text: str) -> str:
    """Say in the words of a shell what an error says in the names of tools."""
    from holdfast.cli.generated import VERBS

    for group, verbs in VERBS.items():
        for verb, tool in verbs.items():
            text = re.sub(rf"\bUse {tool}\b", f"Use `holdfast {group} {verb}`", text)
    return text


def main() -> None:
    """Run the command; an error becomes its text and its exit code."""
    arguments = sys.argv[1:]
    color = False if os.environ.get("NO_COLOR") else None  # None: as the terminal can
    try:
        cli.main(args=arguments, prog_name="holdfast", standalone_mode=False, color=color)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except HoldfastError as error:
        text = str(error).encode("utf-8", "replace").decode("utf-8")
        text = text if "call" in arguments else _in_commands(text)  # which speaks of tools
        if "--json" in arguments or not sys.stderr.isatty():
            import msgspec

            told = {"success": False, "error": text, "kind": type(error).__name__, "code": error.exit_code}
            click.echo(msgspec.json.encode(told).decode("utf-8"), err=True)
        else:
            click.secho(text, fg="red", err=True, color=color)
        sys.exit(error.exit_code)
