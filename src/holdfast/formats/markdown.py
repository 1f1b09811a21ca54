"""A Markdown file with YAML front matter, its links, and replies as YAML.

A page is parsed from bytes. `edit` changes only the lines of the given fields and then parses the result to prove that
nothing else changed. Structured values are written as JSON on one line, which is valid YAML.

Links are `[[name]]`, `[[name|label]]`, `[[name#part]]` and `[label](path.md)`, except in code. A name refers to every
record with that title, path, file name (with or without its date prefix), key, anchor or alias.

A page in which git left a conflict is read without it: of each conflict our side stays, which is the text from before
the merge, as far as the two differ. The rest of the page is what git merged.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import Damaged, Invalid, OverBudget
from holdfast.formats.sections import FENCE, code_lines, lines_of
from holdfast.model.kinds import KINDS
from holdfast.model.names import same
from holdfast.model.patterns import regex
from holdfast.model.records import Record

CONFLICT = "an unresolved merge conflict"
_BOM = "\ufeff"
_FENCE = regex(r"---[ \t]*(?:\r\n|\n|\Z)")
_CLOSING = regex(r"^---[ \t]*(?:\r\n|\n|\Z)", re.MULTILINE)
_KEY = regex(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s#:'"\[\]{},&*!|>%@`-][^:#]*?|-[^\s:][^:#]*?))[ \t]*:(?:\s|$)""")
_RESERVED = "true|false|null|yes|no|on|off|y|n|nan|inf"
_BARE = regex(
    rf"(?!(?i:{_RESERVED})\Z)[A-Za-z\u00c0-\uffef][\w\u00c0-\uffef ./()+'-]*(?<! )\Z|\d{{4}}-\d{{2}}-\d{{2}}\Z"
)
"""Text and dates that YAML reads back unchanged without quotes."""
_BREAKS = regex("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that JSON does not escape and YAML refuses or reads as line breaks."""
_POSITION = regex(r",? (?:at|in) (?:position \d+ )?line \d+,? column \d+")
_BRACKET = regex(r"[\[\]{}]")
_SCHEME = regex(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_DATED = regex(r"\d{6}-(?=.)")
_INLINE_CODE = regex(r"(?<!`)(`+)(?!`)[^\n]{0,500}?(?<!`)\1(?!`)")
_WIKI = regex(r"\[\[([^\s\[\]|#][^\[\]|#\n]{0,199})(?:#([^\[\]|\n]{0,200}))?(?:\|[^\[\]\n]*)?\]\]")
_LINK = regex(r"(?<!!)\[[^\[\]\n]*\]\(<?([^()\s<>]{1,500})>?(?:[ \t]+\"[^\"\n]*\")?\)")
_MOST_NESTED = 10
"""How many conflicts may be inside each other, as when a file is merged again before a conflict in it is resolved."""
_MAX_FRONT = 256 * 1024
_MAX_BRACKETS = 200
"""Brackets that may be open at once in front matter; the time to parse it grows with their number."""


class Page(msgspec.Struct, frozen=True):
    """A parsed file. `front` is None without front matter, {} if it is empty or cannot be parsed."""

    front: dict[str, Any] | None
    body: str
    body_line: int = 1
    fault: str = ""
    fault_line: int = 0
    conflict: int = 0
    """The line of an unresolved merge conflict, 0 if there is none."""

    @property
    def fields(self) -> dict[str, Any]:
        return self.front or {}


def parse(data: bytes, *, verbatim: bool = False) -> Page:
    """Parse a file; a fault in the front matter is reported in the page, and the body is still available.

    If it is `verbatim`, the marks of a conflict are text.
    """
    fault, bad = "", 0
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        fault, bad = f"not UTF-8 at byte {error.start}", data.count(b"\n", 0, error.start) + 1
    conflict = 0 if verbatim else conflict_line(text)
    if conflict:
        fault, bad, text = CONFLICT, conflict, our_side(text)
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
    """Return the line of the first unresolved git conflict, 0 if there is none."""
    return next((begun for begun, _, _ in _conflicts(text)), 0)


def conflict_in(data: bytes) -> int:
    """Return the line of the first unresolved git conflict in a file, 0 if there is none."""
    return conflict_line(data.decode("utf-8", "replace")) if b"<<<<<<<" in data else 0


def our_side(text: str) -> str:
    """Return a text without its conflicts; of each, our side stays."""
    for _ in range(_MOST_NESTED):
        if not (found := list(_conflicts(text))):
            break
        lines = lines_of(text)
        for begun, parted, ended in reversed(found):
            lines[begun - 1 : ended] = lines[begun : parted - 1]
        text = "".join(lines)
    return text


def check_resolved(path: str, data: bytes) -> None:
    """Refuse a document in which git left a conflict."""
    if line := conflict_in(data):
        raise Damaged(f"{path}:{line}: {CONFLICT}.", how_to_resolve(path))


def how_to_resolve(path: str) -> str:
    return f"Resolve the conflict in {path}, then: git add {path}"


def _conflicts(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the numbers, from 1, of the lines where a conflict begins, our side of it ends, and the conflict ends."""
    if "<<<<<<<" not in text or ">>>>>>>" not in text:
        return
    lines = lines_of(text)
    code: set[int] | None = None
    begun, parted, based, fenced = 0, 0, 0, False
    for number, line in enumerate(lines, 1):
        mark = line[:8].rstrip()
        if mark == "<<<<<<<":
            begun, parted, based, fenced = number, 0, 0, False
        elif begun and not parted and mark == "|||||||":
            based = based or number  # the text before both changes, up to the mark between the sides
        elif begun and line.rstrip() == "=======":
            parted = parted or number
        elif begun and parted and mark == ">>>>>>>":
            code = code_lines(lines) if code is None else code
            if fenced or begun not in code or number not in code:
                yield begun, based or parted, number  # otherwise one code block contains it as an example
            begun = 0
        elif FENCE.match(line):
            fenced = True  # an example has no fence inside


def line_of(head: str, field: str) -> int:
    """Return the line of a field in the front matter, 1 if it is not found."""
    found = re.search(rf"""^["']?{re.escape(field)}["']?[ \t]*:""", head, re.MULTILINE)
    return head.count("\n", 0, found.start()) + 1 if found else 1


def render(fields: Mapping[str, Any], body: str) -> bytes:
    head = "".join(f"{scalar(name)}: {scalar(value)}\n" for name, value in fields.items() if value is not None)
    if len(head) > _MAX_FRONT:
        raise OverBudget(f"The fields have {len(head):,} characters; {_MAX_FRONT:,} fit.", "Move text into the body.")
    text = f"---\n{head}---\n\n{body}" if head or _FENCE.match(body.removeprefix(_BOM)) else body
    return _encode(text if text.endswith("\n") or not text else text + "\n", body)


def replace_body(data: bytes, body: str) -> bytes:
    """Replace the text below the front matter."""
    text = _decode(data)
    start = body_start(text)
    gap = text[start : len(text) - len(text[start:].lstrip("\r\n"))]
    return _encode(text[:start] + gap + body + ("" if body.endswith("\n") or not body else "\n"), body)


def edit(data: bytes, changes: Mapping[str, Any]) -> bytes:
    """Set these fields (None removes one) and leave every other byte unchanged."""
    text = _decode(data)
    before = parse(data)
    if before.fault:
        raise Damaged(f"Line {before.fault_line}: {before.fault}.", "Fix the front matter by hand first.")
    old = before.fields
    changes = {  # 1 and true differ in a file
        name: value
        for name, value in changes.items()
        if (name in old if value is None else type(old.get(name)) is not type(value) or old[name] != value)
    }
    if not changes:
        return data
    bom, opening, block, rest = _split(text)
    newline = "\r\n" if "\r\n" in (text if opening is None else opening) else "\n"
    if opening is None or block is None:
        head = _patch("", changes, newline)
        result = _encode(f"{bom}---{newline}{head}---{newline}{rest}" if head else text)
    else:
        closing = text[len(bom) + len(opening) + len(block) : len(text) - len(rest)]
        result = _encode(bom + opening + _patch(block, changes, newline) + closing + rest)
    after = parse(result)
    wanted = {name: value for name, value in {**old, **changes}.items() if value is not None or name not in changes}
    if after.fault or after.body != before.body or after.fields != msgspec.json.decode(msgspec.json.encode(wanted)):
        what = f"The front matter is laid out in a way that {', '.join(changes)} cannot be changed alone."
        raise Damaged(what, "Edit it by hand.")
    return result


def body_start(text: str) -> int:
    return len(text) - len(_split(text)[-1])


def _split(text: str) -> tuple[str, str | None, str | None, str]:
    """Split into BOM, opening fence, front matter (None if never closed) and body."""
    bom = _BOM if text.startswith(_BOM) else ""
    start = _FENCE.match(text, len(bom))
    if not start:
        return bom, None, None, text[len(bom) :]
    closing = _CLOSING.search(text, start.end())
    if closing and closing.start() - start.end() <= _MAX_FRONT:
        return bom, start.group(), text[start.end() : closing.start()], text[closing.end() :]
    return bom, start.group(), None, text


def _load(block: str) -> tuple[dict[str, Any], str, int]:
    """Parse front matter; return the fields, or a fault and its line."""
    import ryaml  # slow to import, and not needed for logs

    depth = 0
    for found in _BRACKET.finditer(block):
        depth = depth + 1 if found.group() in "[{" else max(0, depth - 1)
        if depth > _MAX_BRACKETS:
            line = block.count("\n", 0, found.start()) + 1
            return {}, "front matter is not valid YAML: it is nested too deeply", line
    try:
        value = ryaml.loads(block) if block.strip() else {}  # type: ignore[attr-defined]  # its stub forgets to export it
    except (ValueError, RecursionError) as error:
        at = re.search(r"line (\d+)", str(error))
        what = _POSITION.sub("", str(error).splitlines()[0])
        return {}, f"front matter is not valid YAML: {what}", int(at.group(1)) if at else 1
    if value is None:
        return {}, "", 0
    if not isinstance(value, dict):
        return {}, "front matter is not a mapping of names to values", 1
    try:
        plain = msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return {}, f"front matter contains a value that JSON cannot store: {error}", 1
    return plain, "", 0


def _patch(block: str, changes: Mapping[str, Any], newline: str) -> str:
    """Replace, remove or add the lines of top-level fields."""
    lines = lines_of(block)
    left = dict(changes)
    result: list[str] = []
    position = 0
    while position < len(lines):
        name = _key(lines[position])
        end = position + 1
        while end < len(lines) and (lines[end][:1] in " \t#\r\n-]}" or _key(lines[end]) is None):
            end += 1
        if name in left:
            before, after = _around_value(lines[position])
            start = end  # of the blank and comment lines after the field; in a text block an indented # is text
            while start > position + 1 and (
                not (line := lines[start - 1]).strip() or (line if after is None else line.lstrip()).startswith("#")
            ):
                start -= 1
            value = left.pop(name)
            if value is not None:
                result.append(f"{before}{scalar(value)}{after or ''}{newline}")
            result.extend(lines[start:end])
        else:
            result.extend(lines[position:end])
        position = end
    result.extend(f"{scalar(name)}: {scalar(value)}{newline}" for name, value in left.items() if value is not None)
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


def _around_value(line: str) -> tuple[str, str | None]:
    """Return the text before the value of a field, and the space and comment after it.

    The second is None if the value is a text block that starts on the next line.
    """
    found = _KEY.match(line)
    assert found is not None  # the caller has matched it
    text = line.rstrip("\r\n")
    start = min(len(found.group().rstrip()), len(text))
    value = text[start:].lstrip(" \t")
    before = text[: len(text) - len(value)]
    if not value or value[0] == "#":
        return text[:start] + " ", f" {value}" if value else ""
    if value[0] in "|>":
        return before, None
    for comment in re.finditer(r"(?<![ \t])[ \t]+#", value):
        if not _load(f"value: {value[: comment.start()]}")[1]:  # else it is inside a text or a list
            return before, value[comment.start() :].rstrip()
    return before, ""


def scalar(value: Any) -> str:
    """Write a value on one line of YAML; text and dates are bare where that is safe."""
    if isinstance(value, str) and _BARE.match(value) and value.isprintable():
        return value
    try:
        return _BREAKS.sub(lambda found: f"\\u{ord(found.group()):04x}", msgspec.json.encode(value).decode("utf-8"))
    except (TypeError, ValueError) as error:
        raise Invalid(f"A field cannot contain {value!r}: {error}.", "Use text, numbers, lists or mappings.") from None


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Damaged("The file is not UTF-8.", "Save it as UTF-8 and try again.") from None


def _encode(text: str, body: str = "") -> bytes:
    """Encode a file; refuse a new body that would make it binary."""
    if "\0" in body:
        raise Invalid(f"The text contains a NUL character at position {body.index(chr(0))}.", "Leave it out.")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid(f"The text contains half a character at position {error.start}.", "Send valid Unicode.") from None


# Links


class Link(msgspec.Struct, frozen=True):
    """One link: the name or address as written, and its line, from 1."""

    target: str
    line: int
    wiki: bool
    part: str = ""
    """The text after `#` in double brackets."""


def find_links(text: str) -> Iterator[Link]:
    if "[[" not in text and "](" not in text:
        return
    if "`" in text or "~~~" in text:
        lines = lines_of(text)
        code = code_lines(lines)
        prose = "".join("\n" if number in code else line for number, line in enumerate(lines, 1)) if code else text
        text = _INLINE_CODE.sub("", prose)
    found = [(match, True) for match in _WIKI.finditer(text)] + [(match, False) for match in _LINK.finditer(text)]
    line, position = 1, 0
    for match, wiki in sorted(found, key=lambda pair: pair[0].start()):
        line += text.count("\n", position, match.start())
        position = match.start()
        yield Link(match[1].strip(), line, wiki, (match[2] or "").strip() if wiki else "")


def link_targets(text: str, source: str) -> tuple[str, ...]:
    """Return the link targets in the text of the file `source`: names, and paths of Markdown files."""
    found: dict[str, None] = {}
    for link in find_links(text):
        if link.wiki:
            found[link.target] = None
            if link.part:
                found[f"{link.target}#{link.part}"] = None
        elif (path := path_from(source, link.target)).endswith(".md"):
            found[path] = None
    return tuple(found)


def link_form(name: str) -> str:
    """Return the form in which links and names are compared."""
    return same(name).replace(".md#", "#").removesuffix(".md")


def names_of(record: Record) -> tuple[str, ...]:
    """Return the names that link to a record, in the form in which they are compared."""
    kind = KINDS[record.kind]
    if kind.shape == "line":
        return (link_form(record.key),) if record.key else ()
    given = [record.id, record.title]
    folder, _, file = record.path.rpartition("/")
    if kind.shape == "section":
        given.append(record.id.rpartition("#")[2])
    elif record.kind == "overview":
        given += [folder.rpartition("/")[2], record.scope.path]
    elif record.kind == "skill":
        given.append(folder.rpartition("/")[2])
    else:
        given += [file, _DATED.sub("", file, count=1)]
    aliases = record.fields.get("aliases")
    given += [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []
    return tuple(dict.fromkeys(name for name in map(link_form, given) if name))


def path_from(source: str, target: str) -> str:
    """Return the file that an address in the file `source` refers to, "" if it is not inside the root."""
    if _SCHEME.match(target) or target.startswith(("#", "/")):
        return ""
    from urllib.parse import unquote

    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(target.partition("#")[0])))
    return "" if path == ".." or path.startswith("../") else path


# Replies as YAML


def yaml(value: Mapping[str, Any]) -> str:
    """Write a mapping of JSON values as YAML for a model."""
    import ryaml

    return ryaml.dumps(value)  # type: ignore[attr-defined]  # its stub forgets to export it
