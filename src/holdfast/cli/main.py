"""The `holdfast` command: the table of commands, their common options, and error handling.

The module of a command is imported when the command is used, so that a search does not load the others.
"""

from __future__ import annotations

import functools
import gc
import importlib
import keyword
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast import __version__
from holdfast.errors import HoldfastError, Invalid, Unavailable

if TYPE_CHECKING:
    from holdfast.memory import Memory

_MODULES = {
    "records": "init put get search tail hide related why refresh embed verify stats",
    "tool_commands": (
        "workspace state plan learnings skill compartment mind value chat jobs task overview recall remember revise"
        " tools call traces"
    ),
    "hook": "context hook",
    "serve": "mcp serve token",
    "setup": "install uninstall doctor",
    "upkeep": "lint migrate hot",
    "owner": "history undo forget rollback watch settings trust usage review",
    "transfer": "push pull backup restore export import git",
}
Command = TypeVar("Command", bound=Callable[..., Any])
Maker = Callable[[], click.Command]


class RootCommand(click.Command):
    """A command that takes --root and --json; `given_root` and `show.wants_json` return them."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)

        def store(context: click.Context, option: click.Parameter, value: object) -> None:
            context.meta[f"holdfast.{option.name}"] = value

        shared: dict[str, Any] = {"expose_value": False, "callback": store}
        root = click.Option(["--root"], type=click.Path(), help="The memory root.", envvar="HOLDFAST_ROOT", **shared)
        json = click.Option(["--json"], is_flag=True, help="Print JSON, also on a terminal.", **shared)
        self.params += [root, json]


class Commands(click.Group):
    """A group whose commands may be made when they are used: `makers` has a function for each of these."""

    command_class = RootCommand

    def __init__(self, *args: Any, makers: Mapping[str, Maker] | None = None, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._makers = makers or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._makers, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._makers and cmd_name not in self.commands:
            self.add_command(self._makers[cmd_name](), cmd_name)
        return super().get_command(ctx, cmd_name)


def commands_in(module: str, names: str) -> dict[str, Maker]:
    """Return makers of the commands with these names in a module of this package."""

    def find(name: str) -> click.Command:
        found = importlib.import_module(f"holdfast.cli.{module}")
        command: click.Command = getattr(found, f"{name}_" if keyword.iskeyword(name) else name)
        return command

    return {name: functools.partial(find, name) for name in names.split()}


@click.group(
    cls=Commands,
    makers={name: make for module, names in _MODULES.items() for name, make in commands_in(module, names).items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="holdfast")
@click.option("--root", type=click.Path(), help="The memory root; may also follow the command.")
def cli(root: str | None) -> None:
    """Long-term memory of AI agents, in files their owner can read.

    The root is --root, else $HOLDFAST_ROOT, else the nearest parent folder with a holdfast.toml.
    """
    if root:
        os.environ["HOLDFAST_ROOT"] = root


@cli.command(cls=click.Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click has all of these choices
    click.echo(kind(cli, {}, "holdfast", "_HOLDFAST_COMPLETE").source())


def main(command: click.Command = cli, name: str = "holdfast") -> None:
    """Run a command; an error becomes its text and its exit code."""
    gc.set_threshold(10_000)  # modules and a few records are no garbage; looking for it takes a tenth of a search
    arguments = sys.argv[1:]
    color = False if os.environ.get("NO_COLOR") else None  # None: let click decide
    try:
        sys.exit(command.main(args=arguments, prog_name=name, standalone_mode=False, color=color) or 0)
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
        if "call" not in arguments:
            from holdfast.cli.tool_commands import named

            text = named(text)
        if "--json" in arguments or not sys.stderr.isatty():
            import msgspec

            reply = {"success": False, "error": text, "kind": type(error).__name__, "code": error.exit_code}
            click.echo(msgspec.json.encode(reply).decode("utf-8"), err=True)
        else:
            click.secho(text, fg="red", err=True, color=color)
        sys.exit(error.exit_code)
    finally:
        gc.freeze()  # the process ends: everything is freed at once, so nothing is examined first


# shared by the commands

op_option = click.option("--op-id", default="", help="A repeated call with the same op id has no effect.")
scope_option = click.option("--scope", help="Only this workspace, domain or repository and below.")
kinds_option = click.option("--kind", "kinds", multiple=True, help="Only this kind; may be given several times.")


def command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command that takes --root and --json."""
    return click.command(name, cls=RootCommand, **attributes)


def open_root(root: str = "") -> Memory:
    """Open a memory, by default that of the command."""
    from holdfast.memory import open_memory

    return open_memory(root or find_root(), writer="cli")


def given_root() -> str | None:
    root: str | None = click.get_current_context().meta["holdfast.root"]
    return root


def find_root() -> str:
    """Return the given root, else the nearest folder, from here upwards, that is one."""
    from holdfast.model import settings

    if root := given_root():
        return root
    folder = os.getcwd()
    while not os.path.exists(os.path.join(folder, settings.FILE)):
        above = os.path.dirname(folder)
        if above == folder:
            raise Unavailable("There is no memory root here or above.", "Run: holdfast init, or give --root.")
        folder = above
    return folder


def json_or_text(value: str) -> Any:
    """Read an option that is JSON if it can be read as such, else text."""
    import msgspec

    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return value


def read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:
        raise Invalid("Standard input is not UTF-8 text.", "Convert it first.") from None
