"""Write docs/story.svg: the story of the README, as it really looks in a terminal. `scripts/story`; a test compares.

The commands are those of the README. They run in a terminal of 100 columns, in a new memory, and their output becomes the
picture, line after line. It is text and CSS only: no script, no font from elsewhere, and still for those who prefer that.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from html import escape, unescape
from typing import NamedTuple

from rich.text import Text

TOP = pathlib.Path(__file__).parent.parent
TARGET = TOP / "docs" / "story.svg"
COLUMNS = 100
_WIDTH, _HEIGHT, _TOP_BAR = 8.43, 20, 40
_COMMAND_SECONDS, _LINE_SECONDS, _REST_SECONDS = 0.9, 0.12, 1.2
_STYLE = """\
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d6deeb;white-space:pre}
.day{fill:#82aaff;font-weight:700}.command{fill:#c3e88d}.bold{font-weight:700}.dim{fill:#7f8c9d}
g{opacity:0;animation:show .25s forwards}@keyframes show{to{opacity:1}}
@media(prefers-reduced-motion:reduce){g{animation:none;opacity:1}}"""


class Line(NamedTuple):
    kind: str
    """`day`, `command` or `output`."""
    text: str


def story() -> list[str]:
    """Return the lines of the story in the README: commands, and comments that name the day."""
    block = (TOP / "README.md").read_text(encoding="utf-8").split("On Monday")[1].split("```sh\n")[1]
    return block.split("```")[0].splitlines()


def told(lines: list[str]) -> list[Line]:
    """Run the commands in a new memory and return what a terminal shows."""
    found: list[Line] = []
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(HOLDFAST_ROOT=f"{home}/memory", COLUMNS=str(COLUMNS), TERM="xterm-256color")
        os.environ.pop("NO_COLOR", None)
        for line in lines:
            if line.startswith("#"):
                found += [Line("day", ""), Line("day", line.removeprefix("# "))]
                continue
            words = shlex.split(line.partition(" && ")[0], comments=True)
            found += [Line("command", each) for each in _wrapped(words)]
            output = _output([word.replace("~", home) for word in words])
            found += [Line("output", each) for each in output.replace(home, "~").splitlines()]
    return found


def _wrapped(words: list[str]) -> list[str]:
    """Return a command as lines with a backslash at their ends; an option stays with its value."""
    shown = [word if re.fullmatch(r"[\w~/.-]+", word) else f'"{word}"' for word in words]
    lines = ["$"]
    for part in re.findall(r"--\S+ (?:\"[^\"]*\"|[^\s-]\S*)|\"[^\"]*\"|\S+", " ".join(shown)):
        if len(lines[-1]) + len(part) + 3 > COLUMNS:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {part}"
    return lines


def _output(words: list[str]) -> str:
    """Run a command in a terminal of its own and return what it prints."""
    ours, theirs = pty.openpty()
    program = os.path.join(os.path.dirname(sys.executable), words[0])
    with subprocess.Popen([program, *words[1:]], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs):
        os.close(theirs)
        parts = []
        with contextlib.suppress(OSError), open(ours, "rb", buffering=0) as terminal:  # EIO at its end
            while part := terminal.read(65536):
                parts.append(part)
    return b"".join(parts).decode().replace("\r\n", "\n")


def picture(lines: list[Line]) -> str:
    parts, seconds = [], 0.3
    for number, line in enumerate(lines):
        y = _TOP_BAR + _HEIGHT * (number + 1)
        seconds += {"day": _REST_SECONDS / 2, "command": _COMMAND_SECONDS, "output": _LINE_SECONDS}[line.kind]
        inner = _spans(line.text) if line.kind == "output" else escape(line.text)
        mark = "" if line.kind == "output" else f' class="{line.kind}"'
        parts.append(
            f'<g style="animation-delay:{seconds:.2f}s"><text xml:space="preserve" x="20" y="{y}"{mark}>{inner}</text></g>'
        )
    width, height = round(COLUMNS * _WIDTH + 40), _TOP_BAR + _HEIGHT * (len(lines) + 1) + 10
    dots = "".join(
        f'<circle cx="{22 + 20 * n}" cy="20" r="6" fill="{c}"/>'
        for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="'
        'A terminal: on Monday an agent saves where it stopped, on Tuesday another one resumes and recalls.">\n'
        f'<style>{_STYLE}</style>\n<rect width="100%" height="100%" rx="10" fill="#1b2130"/>{dots}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _spans(text: str) -> str:
    """Return a line of a terminal as SVG; bold and dim text stays so."""
    line = Text.from_ansi(text)
    cut = sorted({0, len(line.plain), *(edge for span in line.spans for edge in (span.start, span.end))})
    parts = []
    for start, end in itertools.pairwise(cut):
        styles = [span.style for span in line.spans if span.start <= start < span.end]
        mark = (
            "bold"
            if any("bold" in str(style) for style in styles)
            else "dim"
            if any("dim" in str(style) for style in styles)
            else ""
        )
        inner = escape(line.plain[start:end])
        parts.append(f'<tspan class="{mark}">{inner}</tspan>' if mark else inner)
    return "".join(parts)


def commands_in(svg: str) -> list[list[str]]:
    """Return the words of the commands that a picture shows, to compare them with the README."""
    shown = "\n".join(re.findall(r'class="command">(.*?)</text>', svg)).replace(" \\\n   ", "")
    return [shlex.split(unescape(line))[1:] for line in shown.splitlines()]


if __name__ == "__main__":
    TARGET.write_text(picture(told(story())), encoding="utf-8")
    print(TARGET.relative_to(TOP))
