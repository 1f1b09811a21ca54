"""Memory roots: opening the memory in a folder or a database, and making a new one.

Making a root never overwrites anything.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
import tomllib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import secrets, templates
from holdfast.errors import AlreadyExists, HoldfastError, Invalid, NotFound, OverBudget, Unavailable
from holdfast.model import settings
from holdfast.model.kinds import Layout
from holdfast.model.patterns import regex
from holdfast.model.records import version_of
from holdfast.model.settings import Paths
from holdfast.storage.files.store import FileStore
from holdfast.storage.files.tree import Files
from holdfast.storage.store import Store
from holdfast.storage.tree import ABSENT, Folder, Tree
from holdfast.storage.write_log import kept_path

if TYPE_CHECKING:
    from holdfast.storage.postgres.database import Database, DatabaseHealth

MOST_SETTINGS = 1 << 20
_ADDRESS = regex(r"postgres(ql)?:|[a-z][a-z0-9+.-]*://", re.IGNORECASE)
ATTRIBUTES = ("*.jsonl merge=union", "*.md merge=holdfast")
"""How git merges a memory; a clone that does not know our driver merges Markdown by lines."""
_TOML = f"""\
# Settings of this memory. All have defaults; docs/reference/settings.md lists them.
format = {settings.FORMAT}
"""

HOME = "~/.holdfast"
"""The default memory of a user."""
DEFAULT = "the default"
"""The source of the default root."""

# opening


def find_root(given: str = "") -> tuple[str, str]:
    """Return the root and where it comes from: given, `$HOLDFAST_ROOT`, the nearest folder upwards, else `HOME`."""
    if given:
        return given, "--root"
    if named := os.environ.get("HOLDFAST_ROOT", ""):
        return named, "$HOLDFAST_ROOT"
    folder, last = os.getcwd(), ""
    while folder != last:
        if os.path.exists(os.path.join(folder, settings.FILE)):
            return folder, f"the nearest {settings.FILE}"
        folder, last = os.path.dirname(folder), folder
    home = os.path.expanduser("~")  # if that is a root, `HOME` is its index
    return (home if os.path.exists(os.path.join(home, settings.FILE)) else os.path.expanduser(HOME)), DEFAULT


def make_missing(root: str) -> bool:
    """Make a memory root where none exists; a database is set up when it is opened. Return whether it was made."""
    location = os.path.expanduser(root)
    if is_address(root) or os.path.lexists(location):
        return False
    make_root(location)
    return True


def open_store(root: str | os.PathLike[str], *, watch: bool = False, writer: str = "") -> Store:
    """Open the store of a memory: in a folder that exists, or at the address of a database."""
    if is_address(given := os.fspath(root)):
        store = _open_on(_database(given), writer)
    else:
        location = folder_of(root)
        with contextlib.closing(Files(location)) as files:  # which follows no link out of the root
            text, source = settings_text(files), os.path.join(location, settings.FILE)
        config = settings.load(text, source=source, without=functools.partial(ignored, location))
        tree = Files(location, lock_seconds=config.limits.lock_seconds, line_bytes=config.limits.line_bytes)
        derived = os.path.join(location, settings.DERIVED)
        if not os.access(derived if os.path.isdir(derived) else location, os.W_OK | os.X_OK):
            derived = ""
        store = FileStore(tree, derived, Layout(config.paths), config, writer)
    if watch:
        store.watch()
    return store


def is_address(root: str) -> bool:
    """Is this the address of a database rather than a folder?"""
    return bool(_ADDRESS.match(root))


def on_disk(path: str) -> str:
    """Return the path of a file or folder that a user named; an address is refused, as it may contain a password."""
    if is_address(path):
        raise Invalid(
            "A file or folder is needed here, not an address.",
            "Name one; holdfast push copies a memory to a database.",
        )
    return os.path.expanduser(path)


def folder_of(root: str | os.PathLike[str]) -> str:
    """Return the folder of a memory root, which must exist."""
    location = os.path.realpath(on_disk(os.fspath(root)))
    if not os.path.isdir(location):
        what = "is not a folder" if os.path.lexists(location) else "does not exist"
        raise Unavailable(f"The memory root {location} {what}.", f"Run: holdfast init {location}")
    return location


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """Open a folder that is not a memory root, such as a project's, so that every write stays inside it."""
    location = os.path.realpath(on_disk(os.fspath(path)))
    if not os.path.isdir(location):
        raise Unavailable(f"{location} is not a folder.", "Name a folder that exists.")
    return Files(location)


@contextlib.contextmanager
def open_tree(root: str) -> Iterator[Tree]:
    """Open the files of a memory without its settings, to read or repair those."""
    if not is_address(root):
        with contextlib.closing(Files(folder_of(root))) as files:
            yield files
        return
    with contextlib.closing(_database(root)) as database:
        from holdfast.storage.postgres.files import PgTree

        yield PgTree(database, Layout(Paths()))


def settings_text(tree: Tree) -> str:
    """Return the text of a memory's settings, "" when there is none."""
    try:
        return tree.read(settings.FILE, MOST_SETTINGS).data.decode("utf-8")
    except NotFound:
        return ""
    except UnicodeDecodeError:
        raise Invalid(f"{settings.FILE} of {tree.location} is not UTF-8.", "Save it as UTF-8.") from None


# databases


@contextlib.contextmanager
def driver() -> Iterator[None]:
    """Report which package to install if the database driver is missing."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(
            f"A memory in a database needs a driver: {error}.", "Run: pip install 'holdfast[postgres]'"
        ) from None


def without_password(address: str) -> str:
    """Return an address without its password; unchanged when it has none."""
    with driver():
        from holdfast.storage.postgres.connections import parse_address
    read = parse_address(address)
    return read.bare if read.secret else address


def shown(value: object) -> object:
    """Return a setting as people see it: without secrets, whatever form an address has."""
    try:
        if isinstance(value, str) and is_address(value):
            value = without_password(value)
    except HoldfastError:
        return "postgresql://[an address that cannot be read]"
    return secrets.redact_all(value)


def without_clear_passwords(address: str) -> str:
    """Return an address from a settings file, changed so that no password is sent to its server in clear text."""
    with driver():
        from holdfast.storage.postgres import connections
    return connections.without_clear_passwords(address)


def health_of(address: str) -> DatabaseHealth:
    """Return the health of a database, whether or not the memory in it can be opened."""
    with contextlib.closing(_database(address)) as database:
        from holdfast.storage.postgres.database import check_health

        return check_health(database)


class Tenants:
    """Opens the stores of the tenants of one database over shared connections."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._database: Database | None = None

    def open_store(self, tenant: str, *, writer: str = "") -> Store:
        """Open the store of a tenant; after a failure the next call tries again."""
        with self._lock:
            if self._database is None:
                self._database = _database(self._address)
            database = self._database
        return _open_on(database.beside(tenant), writer)

    def close(self) -> None:
        """Close the connections; close the memories first."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None


def _database(address: str) -> Database:
    with driver():
        from holdfast.storage.postgres import database
    return database.Database(address)


def _open_on(database: Database, writer: str) -> Store:
    from holdfast.storage.postgres.files import PgTree
    from holdfast.storage.postgres.store import PgStore

    try:
        text, source = settings_text(PgTree(database, Layout(Paths()))), f"{settings.FILE} of {database.location}"
        config = settings.load(text, source=source, without=functools.partial(ignored, database.location))
        database.wait_for_others(config.limits.lock_seconds)
        return PgStore(database, Layout(config.paths), config, writer)
    except BaseException:
        database.close()
        raise


# making


def make_root(location: str, template: bool = False) -> list[str]:
    """Make the folder a memory root, with rules to start from if wanted; return the files written or extended."""
    if is_address(location):
        return set_up(location, template)[1]
    source = os.path.join(location, settings.FILE)
    try:
        os.makedirs(location, exist_ok=True)
        written = []
        with contextlib.suppress(FileExistsError), open(source, "x", encoding="utf-8") as file:
            file.write(_TOML)
            written.append(settings.FILE)
        try:
            with open(source, encoding="utf-8") as file:
                paths = settings.load(file.read(), source=source).paths
        except UnicodeDecodeError:
            raise Invalid(f"{source} is not UTF-8.", "Save it as UTF-8.") from None
        ignored = (f"/{paths.memory}/{place}" for place in ("traces/", "sessions/*/runs/", "writes/kept/"))
        written += [
            *extend(location, ".gitattributes", ATTRIBUTES),
            *extend(location, ".gitignore", (f"{settings.DERIVED}/", ".holdfast-tmp-*", *ignored)),
        ]
        for folder in (paths.rules, paths.memory, paths.workspaces):  # others are made with the first file in them
            os.makedirs(os.path.join(location, folder), exist_ok=True)
        if template:
            with contextlib.closing(open_folder(location)) as tree:  # through a tree: no link leads out of the root
                written += _put(tree, _templates(paths))
    except OSError as error:
        raise Unavailable(
            f"{location} cannot be made a memory root: {error.strerror}.", "Choose a folder that you may write to."
        ) from None
    return written


def set_up(address: str, template: bool = False) -> tuple[str, list[str]]:
    """Set up a memory in a database that may be empty; return its address for display, and the files written."""
    with contextlib.closing(open_store(address)) as store:
        files = {settings.FILE: _TOML} | (_templates(store.settings.paths) if template else {})
        return store.address, _put(store.tree, files)


def _templates(paths: Paths) -> dict[str, str]:
    """Return the template files by their paths in this root."""
    found = {}
    for path, text in templates.files().items():
        for usual, here in ((templates.RULES, paths.rules), (templates.COMMANDS, paths.commands)):
            if path.startswith(f"{usual}/"):
                found[here + path.removeprefix(usual)] = text
    return found


def _put(tree: Tree, files: dict[str, str]) -> list[str]:
    """Write the files that do not exist yet."""
    written = []
    for path, text in files.items():
        with contextlib.suppress(AlreadyExists):
            tree.write(path, text.encode(), expect=ABSENT)
            written.append(path)
    return written


def extend(location: str, name: str, lines: tuple[str, ...]) -> list[str]:
    """Add the lines that a file lacks; return its name if it was changed."""
    path = os.path.join(location, name)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    missing = [line for line in lines if line not in text.splitlines()]
    if not missing:
        return []
    with open(path, "a", encoding="utf-8") as file:
        file.write(("" if text.endswith("\n") or not text else "\n") + "\n".join(missing) + "\n")
    return [name]


# settings, which can be read and fixed even if they keep the memory from being opened


class Setting(msgspec.Struct, frozen=True):
    """One setting, with secrets redacted."""

    name: str
    value: object
    source: str
    """`holdfast.toml`, the environment variable that it comes from, or `default`."""


def settings_in_effect(root: str) -> list[Setting]:
    """Return all settings of a memory, from its text and the environment, and those that are ignored."""
    with open_tree(root) as tree:
        text, location = settings_text(tree), tree.location
    config = settings.load(text, without=functools.partial(ignored, location))
    untrusted, given = ignored(location, text), tomllib.loads(text)
    found = [Setting("format", config.format, settings.FILE if "format" in given else "default")]
    for section, fields in settings.tables().items():
        for field in fields:
            variable = f"HOLDFAST_{section}_{field}".upper()
            source = settings.FILE if field in given.get(section, {}) else "default"
            name, value = f"{section}.{field}", getattr(getattr(config, section), field)
            if variable in os.environ:
                source = variable
            elif name in untrusted:
                value, source = untrusted[name], f"ignored, run: holdfast trust {location}"
            found.append(Setting(name, shown(msgspec.to_builtins(value)), source))
    return found


def ignored(location: str, text: str) -> dict[str, Any]:
    """Return the settings of a memory that need trust and do not have it: the text may come from someone else."""
    tables, given = tomllib.loads(text), dict[str, Any]()
    for section, name in (each.split(".") for each in settings.NEED_TRUST):
        if isinstance(table := tables.get(section), dict) and name in table:
            given[f"{section}.{name}"] = table[name]
    path, line = _decision(location, given)
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        given = {} if line in file else given
    return {} if os.environ.get("HOLDFAST_TRUST") == "all" else given


def trust(root: str) -> dict[str, Any]:
    """Trust the ignored settings of a memory for this user, as they are now, and return them."""
    with open_tree(root) as tree:
        settings.load(text := settings_text(tree))
        path, line = _decision(tree.location, given := ignored(tree.location, text))
    if given:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
            file.write(line)
    return given


def _decision(location: str, given: dict[str, Any]) -> tuple[str, str]:
    """Return the file with what this user trusts, and the line that trusts these settings of this memory."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    digest = version_of(repr((location, given)).encode("utf-8", "replace"))
    return os.path.join(folder, "holdfast", "trusted"), f"{digest}  {location!a}\n"


def put_settings(root: str, text: str) -> None:
    """Replace the settings by this text if it is valid; the text before is kept."""
    data = text.encode()
    if len(data) > MOST_SETTINGS:
        raise OverBudget(f"The new text is longer than {MOST_SETTINGS:,} bytes.", "Shorten it.")
    config = settings.load(text, environment={}, source="The new text")
    with open_tree(root) as tree:
        try:
            version = tree.read(settings.FILE).version
        except NotFound:
            version = ABSENT
        keep = kept_path(config.paths.memory, version) if version != ABSENT else ""
        tree.write(settings.FILE, data, expect=version, keep=keep)
    trust(root)
