"""A memory in git: git commands while all writers wait, and the settings of a clone.

Every write takes a shared lock on the root folder; here it is taken exclusively, so writers wait. The index knows the
entries of each log before and after a merge; those that are missing afterwards are appended again from git's history.

`.gitattributes` is part of the repository: it names our driver for Markdown and git's own union merge for logs, so that
a clone without our driver loses nothing. `setup` adds the driver to the settings of one clone, and there uses it for
logs as well.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from holdfast.core import Core
from holdfast.errors import Conflict, Invalid, NotFound, Unavailable
from holdfast.formats import markdown
from holdfast.model.names import amount
from holdfast.owner import merge_driver
from holdfast.owner.history import repair
from holdfast.roots import ATTRIBUTES, extend
from holdfast.storage.files.descriptors import hold

_STATUS = {"A": "new", "M": "changed", "D": "removed"}
_PUSHES = 3
Say = Callable[[str], None]


# the settings of a clone


def setup(root: str) -> list[str]:
    """Let git merge the memory with our driver in this clone; return the changed settings."""
    inside = _read(root, "rev-parse", "--show-prefix")
    if inside is None:
        raise Invalid(f"{root} is not in a git repository.", f"Run: git init {shlex.quote(root)}")
    try:
        changed = extend(root, ".gitattributes", ATTRIBUTES)
        for name, driver in merge_driver.commands().items():
            if _driver_of(root, name) != driver:
                changed.append(f"merge.{name}.driver")
                if _read(root, "config", changed[-1], driver) is None:
                    raise Unavailable(
                        "git could not change its configuration.", "Check the permissions of .git/config."
                    )
        folder = os.path.join(root, _read(root, "rev-parse", "--git-path", "info") or "")
        os.makedirs(folder, exist_ok=True)
        lines = (f'"/{inside}**/*.jsonl" merge={merge_driver.LOGS}',)  # they override those of .gitattributes
        return changed + [f"info/{name}" for name in extend(folder, "attributes", lines)]
    except OSError as error:
        raise Unavailable(f"{error.filename}: {error.strerror}.", "Check its permissions.") from None


def lacks_driver(root: str) -> bool | None:
    """Does `.gitattributes` name our driver in a clone without it? None if it names none, or outside of git."""
    with contextlib.suppress(OSError, Unavailable), open(os.path.join(root, ".gitattributes"), "rb") as file:
        named = f" merge={merge_driver.PAGES}".encode() in file.read()
        if named and _read(root, "rev-parse", "--git-dir"):
            return not all(_driver_of(root, name) for name in merge_driver.commands())
    return None


def _driver_of(root: str, name: str) -> str:
    return _read(root, "config", "--get", f"merge.{name}.driver") or ""


# commands while writers wait


def run(memory: Core, command: str, options: Sequence[str], say: Say, *, merges: bool) -> int:
    """Run a git command while all writers wait, and return its exit code; if it merges, append lost entries again."""
    root = memory.folder("git")
    code = _call(root, "fetch") if command == "pull" else 0  # before writers wait: it may take long
    with _alone(memory, root):
        code = code or _call(root, command, *options)
    if merges:
        _repair(memory, command, say)
    return code


def sync(memory: Core, options: Sequence[str], say: Say) -> int:
    """Commit all changes, merge the changes that others pushed, and push; repeat if others push at the same time."""
    setup(root := memory.folder("git"))
    branch = _read(root, "symbolic-ref", "--short", "HEAD")
    if branch is None:
        raise Invalid("No branch is checked out, so there is nothing to sync with.", "Run: git switch BRANCH")
    remote, target = _upstream(root, branch)
    quiet, code, last = [one for one in options if one in ("-q", "--quiet")], 0, None
    for attempt in range(_PUSHES):
        fetched = bool(remote) and _call(root, "fetch", *quiet, remote) == 0
        theirs = f"refs/remotes/{remote}/{target}"
        now = _read(root, "rev-parse", "--verify", "--quiet", theirs)
        if attempt and now == last:  # the push failed for another reason
            break
        last = now
        with _alone(memory, root):
            _commit(memory, root, say if not quiet else lambda _text: None)
            code = _call(root, "merge", "--no-edit", *options, theirs) if fetched and now else 0
        _repair(memory, "sync", say)
        if code and (left := _unmerged(root)):
            raise _conflict(left)
        if not fetched:
            what = f"The remote {remote} could not be reached" if remote else "The repository has no remote"
            step = "Run it again later: holdfast git sync" if remote else "Add one: git remote add origin URL"
            raise Unavailable(f"{what}: the changes are committed here; nothing was pulled or pushed.", step)
        if code:
            return code
        tracks = [] if _read(root, "config", "--get", f"branch.{branch}.merge") else ["--set-upstream"]
        code = _call(root, "push", *quiet, *tracks, remote, f"HEAD:refs/heads/{target}")
        if not code:
            break
    return code


def _upstream(root: str, branch: str) -> tuple[str, str]:
    """Return the remote of a branch, "" if there is none, and the name that the branch has there."""
    known = (_read(root, "remote") or "").splitlines()
    usual = "origin" if "origin" in known else "".join(known[:1])
    remote = _read(root, "config", "--get", f"branch.{branch}.remote") or usual
    target = _read(root, "config", "--get", f"branch.{branch}.merge") or branch
    return remote, target.removeprefix("refs/heads/")


def _commit(memory: Core, root: str, say: Say) -> None:
    """Commit all changes of the memory, and conclude a merge in which all conflicts are resolved."""
    if left := _unmerged(root):
        raise _conflict(left)
    code = _call(root, "add", "--all", "--", ".")
    status = _read(root, "diff", "--cached", "--name-status", "--no-renames", "--relative", "-z", "--", ".") or ""
    words = status.split("\0")  # a letter and a path for each file
    changes = dict(zip(words[1::2], words[::2], strict=False))
    for path in changes:
        place = memory.layout.classify(path)
        if place and place.kind.shape != "line" and not place.kind.write_once:
            with contextlib.suppress(NotFound):
                if markdown.conflict_in(memory.tree.read(path).data):
                    left.append(path)
    if left:
        raise _conflict(left)
    counts = Counter(changes.values())
    listed = ", ".join(f"{counts[letter]} {what}" for letter, what in _STATUS.items() if counts[letter])
    message = f"Update the memory: {listed}"
    if _read(root, "rev-parse", "--verify", "--quiet", "MERGE_HEAD"):
        code = code or _call(root, "commit", "--quiet", "--no-edit")
    elif changes:
        code = code or _call(root, "commit", "--quiet", f"--message={message}", "--", ".")
        say(message)
    if code:
        raise Unavailable(
            "git could not commit the changes.", "Fix the problem that it reports above, then: holdfast git sync"
        )


def _unmerged(root: str) -> list[str]:
    """Return the files with conflicts in the whole repository, as paths from the root of the memory."""
    paths = (_read(root, "diff", "--name-only", "--diff-filter=U", "-z") or "").split("\0")[:-1]
    up = _read(root, "rev-parse", "--show-cdup") or ""
    return [os.path.normpath(up + path) for path in paths]


def _conflict(paths: list[str]) -> Conflict:
    listed = f"{amount(len(paths), 'file is', 'files are')} in conflict: {', '.join(paths)}."
    each = paths[0] if len(paths) == 1 else "each of them"
    return Conflict(
        listed, f"Resolve the conflict in {each}, then: git add {shlex.join(paths)}; then: holdfast git sync"
    )


@contextlib.contextmanager
def _alone(memory: Core, root: str) -> Iterator[None]:
    """Let all writers wait; the index knows the entries of each log, with which `repair` compares."""
    memory.refresh()
    folder = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        hold(folder, memory.settings.limits.lock_seconds, root)
        memory.refresh()
        yield
    finally:
        os.close(folder)


def _repair(memory: Core, command: str, say: Say) -> None:
    for path, done in repair(memory).items():
        say(f"{path}: after git {command}, {done}")


def _call(root: str, *words: str) -> int:
    """Run git with its output on the terminal, and return its exit code."""
    with _installed():
        return subprocess.call(["git", *words], cwd=root, env=os.environ | {"GIT_EDITOR": "true"})


def _read(root: str, *words: str) -> str | None:
    """Return the output of git, None if it fails."""
    with _installed():
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, check=False)
    return done.stdout.decode("utf-8", "surrogateescape").removesuffix("\n") if not done.returncode else None


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Unavailable("git is not installed.", "Install it, for example: apt install git") from None
