"""Our merge driver: the program that git starts to merge a file of a memory.

It needs no open memory: the name of a file decides how it is merged. When it cannot be started, git merges the file in
its own way.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast.errors import Unavailable
from holdfast.formats import three_way
from holdfast.formats.three_way import Merged, Sides
from holdfast.model.patterns import regex

PAGES, LOGS = "holdfast", "holdfast-log"
"""The names of the drivers in the settings of git and in its attributes."""
CONFLICT = 100
"""The exit code when a person has to resolve a conflict; a program that fails has another one."""
_DATED = regex(r"(?:.*/)?(?:decisions|lessons)(?:-\d{4})?\.md", re.DOTALL)


def commands() -> dict[str, str]:
    """Return the commands of the drivers, by name; they end in git's own merge if Holdfast cannot be started."""
    program = shlex.join([sys.executable, "-P", "-m", "holdfast", "git", "merge-file"]).replace("%", "%%")
    ours = f"{program} %O %A %B %P %L; case $? in 0) exit 0;; {CONFLICT}) exit 1;; esac"
    plain = "git merge-file --marker-size=%L -L ours -L base -L theirs"
    return {PAGES: f"{ours}; {plain} %A %O %B || exit 1", LOGS: f"{ours}; {plain} --union %A %O %B || exit 1"}


def merge_file(base: str, ours: str, theirs: str, path: str, marks: int) -> Merged:
    """Merge three files as git gives them to a merge driver; the result replaces `ours`."""
    sides = Sides(*(Path(name).read_bytes() for name in (base, ours, theirs)))

    def lines(parts: Sides) -> Merged:
        with tempfile.TemporaryDirectory() as folder:
            for name, data in parts._asdict().items():
                Path(folder, name).write_bytes(data)
            order = ("ours", "base", "theirs")
            words = [word for name in order for word in ("-L", name)] + [os.path.join(folder, name) for name in order]
            line = ["git", "merge-file", "-p", f"--marker-size={marks}", *words]
            done = subprocess.run(line, capture_output=True, check=False)
        if done.returncode > 127:
            raise Unavailable(f"git could not merge: {done.stderr.decode('utf-8', 'replace').strip()}")
        return Merged(done.stdout, conflict=done.returncode > 0)

    if path.endswith(".jsonl"):
        merged = three_way.merge_log(sides)
    elif _DATED.fullmatch(path):
        merged = three_way.merge_entries(sides, lines)
    else:
        merged = three_way.merge_document(sides, lines)
    made = Path(f"{ours}.merged")
    try:
        made.write_bytes(merged.data)
        made.replace(ours)  # so that a full disk leaves the file as it was
    finally:
        made.unlink(missing_ok=True)
    return merged
