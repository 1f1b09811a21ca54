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
    "records": (
        "init put remember add save get show cat search recall find ls list tail hide rm delete related why refresh"
        " embed verify stats"
    ),
    "tool_commands": (
        "workspace state plan learnings skill compartment mind value chat jobs task overview revise tools call traces"
    ),
    "hook": "context hook",
    "serve": "mcp serve token",
    "setup": "install uninstall doctor",
    "owner": "history undo forget rollback watch settings trust usage review lint migrate hot",
    "transfer": "push pull backup restore export import",
    "git": "git",
}
_GROUPS = {
    "Start": ("init install doctor", "uninstall mcp hook serve token settings trust completion"),
    "Remember": ("remember,put recall,search get hide", "revise review tail related why overview stats"),
    "Work": ("workspace state", "context plan learnings skill hot chat mind compartment value jobs task tools call"),
    "Care": (
        "history undo verify",
        "lint rollback forget usage traces watch refresh embed migrate backup restore export import push pull git",
    ),
}
"""The commands in the help: those of every day, and those that --all adds."""
_ALIASES = {
    "remember": "put", "add": "put", "save": "put", "recall": "search", "ls": "search", "list": "search",
    "find": "search", "show": "get", "cat": "get", "rm": "hide", "delete": "hide",
}  # fmt: skip
_INSTEAD = {"edit": "revise", "erase": "forget"}  # suggestions for names that are not similar
Command = TypeVar("Command", bound=Callable[..., Any])
Maker = Callable[[], click.Command]


def _store(context: click.Context, option: click.Parameter, value: object) -> None:
    if value or f"holdfast.{option.name}" not in context.meta:  # --root may also precede the command
        context.meta[f"holdfast.{option.name}"] = value


class RootCommand(click.Command):
    """A command that takes --root, --json and --plain; `given_root` and `show.wants_json` return them."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)

        shared: dict[str, Any] = {"expose_value": False, "callback": _store}
        root = click.Option(["--root"], type=click.Path(), help="The memory root.", **shared)
        json = click.Option(["--json"], is_flag=True, help="Print JSON, also on a terminal.", **shared)
        plain = click.Option(["--plain"], is_flag=True, help="Print text, also in a pipe.", **shared)
        self.params += [root, json, plain]


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

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if not (args[0].startswith("-") or ctx.resilient_parsing or self.get_command(ctx, args[0])):
            from holdfast.model.names import nearest

            near = _INSTEAD.get(args[0]) or nearest(args[0], self.list_commands(ctx))
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near}?" if near else ""))
        return super().resolve_command(ctx, args)


class RootGroup(Commands):
    """The commands of `holdfast`, in groups; the help has those of every day, and with --all the others too."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, (usual, others) in _GROUPS.items():
            rows = []
            for name in f"{usual} {others if ctx.meta.get('holdfast.all') else ''}".split():
                if command := self.get_command(ctx, name.partition(",")[0]):
                    shown = name.replace(",", ", ").ljust(14)
                    rows.append((shown, command.get_short_help_str(formatter.width)))
            with formatter.section(title):
                formatter.write_dl(rows)


def commands_in(module: str, names: str) -> dict[str, Maker]:
    """Return makers of the commands with these names in a module of this package."""

    def find(name: str) -> click.Command:
        found, name = importlib.import_module(f"holdfast.cli.{module}"), _ALIASES.get(name, name)
        command: click.Command = getattr(found, f"{name}_" if keyword.iskeyword(name) else name)
        return command

    return {name: functools.partial(find, name) for name in names.split()}


@click.group(
    cls=RootGroup,
    makers={name: make for module, names in _MODULES.items() for name, make in commands_in(module, names).items()},
    add_help_option=False,
    epilog="All commands: holdfast --help --all. One command: holdfast COMMAND --help.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.help_option("-h", "--help", is_eager=False)  # --all may be after it
@click.version_option(__version__, prog_name="holdfast")
@click.option("--root", type=click.Path(), help="The memory root.", expose_value=False, callback=_store)
@click.option(
    "--all", is_flag=True, is_eager=True, help="With --help: all commands.", expose_value=False, callback=_store
)
def cli() -> None:
    """Long-term memory of AI agents, in files their owner can read.

    The memory is --root, else $HOLDFAST_ROOT, else the nearest folder upwards with a holdfast.toml, else ~/.holdfast.
    """


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
    gc.set_threshold(10_000)  # a command leaves little garbage; collecting it takes a tenth of a search
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
        from holdfast.cli.tool_commands import advice

        text = str(error) if "call" in arguments else advice(error)
        text = text.encode("utf-8", "replace").decode("utf-8")
        if "--json" in arguments or not (sys.stderr.isatty() or "--plain" in arguments):
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


def open_root(root: str = "", *, create: bool = False) -> Memory:
    """Open a memory, by default that of the command; with `create`, make the default one if there is none."""
    from holdfast.memory import open_memory

    return open_memory(root or locate(create=create)[0], writer="cli")


def given_root() -> str:
    """Return the root that the caller named, "" for none."""
    return click.get_current_context().meta["holdfast.root"] or os.environ.get("HOLDFAST_ROOT", "")


def locate(*, create: bool = False) -> tuple[str, str]:
    """Return the root of the command and where it comes from; with `create`, make the default one if there is none."""
    from holdfast import roots

    root, source = roots.find_root(click.get_current_context().meta["holdfast.root"] or "")
    if source == roots.DEFAULT and create and roots.make_missing(root):
        click.echo(f"Created a memory in {roots.HOME}. For another place, use --root or holdfast init.", err=True)
    elif source == roots.DEFAULT and not os.path.lexists(root):
        what = f"There is no memory yet: no holdfast.toml here or above, and no {roots.HOME}."
        raise Unavailable(what, 'Save something: holdfast remember "…". Or run: holdfast init, or give --root.')
    return root, source


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
