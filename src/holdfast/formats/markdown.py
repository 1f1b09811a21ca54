"""A Markdown file with YAML front matter.

A page keeps the bytes it was read from. An edit patches the lines of the fields it changes and no others, then
parses the result to prove that those fields changed and nothing else did; the body is never touched by it.
Structured values are written as JSON on one line, which is valid YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import Damaged, Invalid, OverBudget
from holdfast.formats import fences

_BOM = "\ufeff"
_FENCE = re.compile(r"---[ \t]*(?:\r\n|\n|\Z)")
_KEY = re.compile(
    r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s#:'"\[\]{},&*!|>%@`-][^:#]*?|-[^\s:][^:#]*?))[ \t]*:(?:\s|$)"""
)
_PLAIN = re.compile(r"[A-Za-z\u00c0-\uffef][\w\u00c0-\uffef ./()+'-]*\Z")
_BREAKS = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""What JSON leaves bare in a string and YAML takes for a line break or refuses."""
_POSITION = re.compile(r",? (?:at|in) (?:position \d+ )?line \d+,? column \d+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_WORDS_OF_YAML = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})
MAX_FRONT = 256 * 1024
_BRACKET = re.compile(r"[\[\]{}]")
_MOST_BRACKETS = 200
"""Open brackets that front matter may have at once: time to read it grows with their number."""


class Page(msgspec.Struct, frozen=True):
    """A parsed file. `front` is None where there is no front matter, {} where it is empty or cannot be read."""

    front: dict[str, Any] | None
    body: str
    body_line: int = 1
    fault: str = ""
    fault_line: int = 0
    conflict: int = 0
    """The line of an unresolved merge conflict, which is the fault then; 0 when there is none."""

    @property
    def fields(self) -> dict[str, Any]:
        return self.front or {}


def parse(data: bytes) -> Page:
    """Read a file; a fault in the front matter is reported on the page, and the body is still there."""
    fault, bad = "", 0
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        fault, bad = f"not UTF-8 at byte {error.start}", data.count(b"\n", 0, error.start) + 1
    conflict = conflict_line(text)
    if conflict:
        fault, bad = "an unresolved merge conflict", conflict
    _, opening, block, rest = _split(text)
    if opening is None:
        return Page(None, text.removeprefix(_BOM), 1, fault, bad, conflict)
    if block is None:
        fault, bad = fault or 'front matter without a closing "---"', bad or 1
        return Page({}, text.removeprefix(_BOM), 1, fault, bad, conflict)
    lines = block.count("\n") + 2
    front, front_fault, line = _load(block)
    return Page(front, rest, lines + 1, fault or front_fault, bad or (line + 1 if front_fault else 0), conflict)


def conflict_line(text: str) -> int:
    """Return the line at which git left a conflict for a person to resolve, 0 when it left none."""
    if "<<<<<<< " not in text or ">>>>>>> " not in text:
        return 0
    lines = lines_of(text)
    code: set[int] | None = None
    begun, parted, fenced = 0, False, False
    for number, line in enumerate(lines, 1):
        if line.startswith("<<<<<<< "):
            begun, parted, fenced = number, False, False
        elif begun and line.rstrip() == "=======":
            parted = True
        elif begun and parted and line.startswith(">>>>>>> "):
            code = _code(lines) if code is None else code
            if fenced or begun not in code or number not in code:
                return begun  # else it stands in one code block, which shows what a conflict looks like
            begun = 0
        elif fences.FENCE.match(line):
            fenced = True  # where fences part too, it is a real one
    return 0


def _code(lines: list[str]) -> set[int]:
    """Return the lines that are code; no block reaches over an entry's heading."""
    return fences.closed(lines, {number for number, line in enumerate(lines, 1) if line.startswith("### [")})


def line_of(head: str, field: str) -> int:
    """Return the line of a field in the text up to the body, 1 when it is not found there."""
    found = re.search(rf"""^["']?{re.escape(field)}["']?[ \t]*:""", head, re.MULTILINE)
    return head.count("\n", 0, found.start()) + 1 if found else 1


def render(fields: Mapping[str, Any], body: str) -> bytes:
    """Write a new file."""
    head = "".join(_field(name, value, "\n") for name, value in fields.items() if value is not None)
    _check_plain(body)
    if len(head) > MAX_FRONT:
        raise OverBudget(f"The fields have {len(head):,} characters; {MAX_FRONT:,} fit.", "Move text into the body.")
    text = f"---\n{head}---\n\n{body}" if head or _FENCE.match(body.removeprefix(_BOM)) else body
    return _encode(text if text.endswith("\n") or not text else text + "\n")


def replace_body(data: bytes, body: str) -> bytes:
    """Return the file with another text below the front matter."""
    text = _decode(data)
    _check_plain(body)
    start = body_start(text)
    gap = text[start : start + len(text[start:]) - len(text[start:].lstrip("\r\n"))]
    return _encode(text[:start] + gap + body + ("" if body.endswith("\n") or not body else "\n"))


def edit(data: bytes, changes: Mapping[str, Any]) -> bytes:
    """Return the file with these fields set (None removes one), every other byte as it was."""
    text = _decode(data)
    before = parse(data)
    if before.fault:
        mend = "Resolve it first." if before.conflict else "Mend the front matter by hand first."
        raise Damaged(f"Line {before.fault_line}: {before.fault}.", mend)
    changes = {
        name: value
        for name, value in changes.items()
        if (name in before.fields if value is None else not _equal(before.fields.get(name), value))
    }
    if not changes:
        return data
    bom, opening, block, rest = _split(text)
    newline = "\r\n" if "\r\n" in (text if opening is None else opening) else "\n"
    if opening is None or block is None:
        head = "".join(_field(name, value, newline) for name, value in changes.items() if value is not None)
        result = f"{bom}---{newline}{head}---{newline}{rest}" if head else text
    else:
        closing = text[len(bom) + len(opening) + len(block) : len(text) - len(rest)]
        result = bom + opening + _patch(block, changes, newline) + closing + rest
    return _proved(result, before, changes)


def body_start(text: str) -> int:
    """Return where the text below the front matter starts."""
    _, _, _, body = _split(text)
    return len(text) - len(body)


def lines_of(text: str) -> list[str]:
    """Split at line feeds and nowhere else, keeping them."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _equal(one: Any, other: Any) -> bool:
    """Are these the same in the file? 1 and true are not."""
    return type(one) is type(other) and bool(one == other)


def _split(text: str) -> tuple[str, str | None, str | None, str]:
    """Cut into BOM, opening fence, front matter block (None: never closed) and body."""
    bom = _BOM if text.startswith(_BOM) else ""
    start = _FENCE.match(text, len(bom))
    if not start:
        return bom, None, None, text[len(bom) :]
    position = start.end()
    while position < len(text) and position - start.end() <= MAX_FRONT:
        if closing := _FENCE.match(text, position):
            return bom, start.group(), text[start.end() : position], text[closing.end() :]
        following = text.find("\n", position)
        if following < 0:
            break
        position = following + 1
    return bom, start.group(), None, text


def _load(block: str) -> tuple[dict[str, Any], str, int]:
    import ryaml  # costs a few milliseconds, and logs never need it

    if line := _too_deep(block):
        return {}, "front matter is not valid YAML: it is nested too deeply", line
    try:
        value = ryaml.loads(block) if block.strip() else {}  # type: ignore[attr-defined]  # its stub forgets to export it
    except (ValueError, RecursionError) as error:
        found = re.search(r"line (\d+)", str(error))
        what = _POSITION.sub("", str(error).splitlines()[0])
        return {}, f"front matter is not valid YAML: {what}", int(found.group(1)) if found else 1
    if value is None:
        return {}, "", 0
    if not isinstance(value, dict):
        return {}, "front matter is not a mapping of names to values", 1
    try:
        plain = msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return {}, f"front matter holds what JSON cannot: {error}", 1
    return plain, "", 0


def _too_deep(block: str) -> int:
    """Return the line at which more brackets are open than any value needs, 0 when there is none."""
    depth = 0
    for found in _BRACKET.finditer(block):
        depth = depth + 1 if found.group() in "[{" else max(0, depth - 1)
        if depth > _MOST_BRACKETS:
            return block.count("\n", 0, found.start()) + 1
    return 0


def _patch(block: str, changes: Mapping[str, Any], newline: str) -> str:
    """Replace, remove or add the lines of top-level fields."""
    lines = lines_of(block)
    left = dict(changes)
    result: list[str] = []
    position = 0
    while position < len(lines):
        name = _key(lines[position])
        end = position + 1
        while end < len(lines) and not _starts_field(lines[end]):
            end += 1
        if name in left:
            before, after = _around_value(lines[position])
            kept = _trailing_comments(lines[position + 1 : end], block=after is None)
            value = left.pop(name)
            if value is not None:
                result.append(f"{before}{scalar(value)}{after or ''}{newline}")
            result.extend(kept)
        else:
            result.extend(lines[position:end])
        position = end
    result.extend(_field(name, value, newline) for name, value in left.items() if value is not None)
    return "".join(result)


def _key(line: str) -> str | None:
    found = _KEY.match(line)
    if not found:
        return None
    quoted, single, plain = found.groups()
    if quoted is not None:
        try:
            return str(msgspec.json.decode(f'"{quoted}"'))
        except msgspec.DecodeError:
            return quoted
    return single if single is not None else plain.strip()


def _starts_field(line: str) -> bool:
    return line[:1] not in (" ", "\t", "#", "\r", "\n", "-", "]", "}", "") and _key(line) is not None


def _trailing_comments(lines: list[str], *, block: bool) -> list[str]:
    """Return the blank and comment lines at the end of a field; in a block of text an indented `#` is text."""
    start = len(lines)
    while start and (not (line := lines[start - 1]).strip() or (line if block else line.lstrip()).startswith("#")):
        start -= 1
    return lines[start:]


def _around_value(line: str) -> tuple[str, str | None]:
    """Return what stands before the value of a field on its line, and the space and comment behind it, if any.

    The second is None where the value is a block of text that starts on the next line.
    """
    found = _KEY.match(line)
    assert found is not None  # who asks has found the field
    text = line.rstrip("\r\n")
    start = min(len(found.group().rstrip()), len(text))
    value = text[start:].lstrip(" \t")
    before = text[: len(text) - len(value)]
    if not value or value[0] == "#":
        return text[:start] + " ", f" {value}" if value else ""
    if value[0] in "|>":
        return before, None
    end = _end_of_value(value)
    comment = value[end:]
    return before, comment.rstrip() if comment.lstrip(" \t").startswith("#") else ""


def _end_of_value(value: str) -> int:
    """Return where a value ends that starts on this line: behind its closing quote or bracket, or before a comment."""
    if value[0] not in "\"'[{":
        found = re.search(r"(?<![ \t])[ \t]+#", value)
        return found.start() if found else len(value)
    depth, quote = 0, ""
    for position, char in enumerate(value):
        if quote:
            if char == quote and not (quote == '"' and value[position - 1] == "\\"):
                quote = ""
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        if not quote and not depth and not (value[0] == "'" and value[position + 1 : position + 2] == "'"):
            return position + 1
    return len(value)


def _field(name: str, value: Any, newline: str) -> str:
    return f"{scalar(name)}: {scalar(value)}{newline}"


def scalar(value: Any, *, quoted: bool = False) -> str:
    """Write a value on one line of YAML; text and dates stand bare where that is safe and not forbidden."""
    if isinstance(value, str) and not quoted and (_DATE.match(value) or _is_plain(value)):
        return value
    try:
        return _BREAKS.sub(lambda found: f"\\u{ord(found.group()):04x}", msgspec.json.encode(value).decode("utf-8"))
    except (TypeError, ValueError) as error:
        raise Invalid(f"A field cannot hold {value!r}: {error}.", "Use text, numbers, lists or mappings.") from None


def _is_plain(value: str) -> bool:
    """May this text stand without quotes, and be read as this text again?"""
    plain = _PLAIN.match(value) and value.isprintable() and not value.endswith(" ")
    return bool(plain) and value.lower() not in _WORDS_OF_YAML


def _check_plain(text: str) -> None:
    """Refuse what would make a text file binary."""
    if "\0" in text:
        raise Invalid(f"The text holds a NUL character at position {text.index(chr(0))}.", "Leave it out.")


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Damaged("The file is not UTF-8.", "Save it as UTF-8 and try again.") from None


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid(f"The text holds half a character at position {error.start}.", "Send valid Unicode.") from None


def _proved(text: str, before: Page, changes: Mapping[str, Any]) -> bytes:
    data = _encode(text)
    after = parse(data)
    wanted = {**before.fields, **changes}
    for name in [name for name, value in changes.items() if value is None]:
        del wanted[name]
    if after.fault or after.body != before.body or after.fields != msgspec.json.decode(msgspec.json.encode(wanted)):
        names = ", ".join(changes)
        raise Damaged(
            f"The front matter is laid out in a way that {names} cannot be changed alone.", "Edit it by hand."
        )
    return data
