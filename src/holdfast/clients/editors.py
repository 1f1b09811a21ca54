"""Editing one value of a JSON or TOML text in place: every other character stays.

JSON may have comments and trailing commas, as VS Code, Cursor and Zed allow: they are read, and kept. An edited TOML
text is parsed again, and refused if anything but the value has changed.
"""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from typing import Any, NamedTuple

from holdfast.errors import Invalid
from holdfast.model.patterns import regex

Path = tuple[str | int, ...]
"""The way to a value: names of members, numbers of items. A number that no item has adds one."""
_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
_STRING, _COMMENT = r'"(?:[^"\\]|\\.)*"', r"//[^\r\n]*|/\*.*?\*/"
_COMMENTS = regex(f"{_STRING}|{_COMMENT}", re.DOTALL)
_LAST_COMMAS = regex(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_TOML_HEADER = regex(r"\s*\[")


# JSON


class JsonEditor:
    """Edits a JSON text. Positions in `_plain` are those in the text."""

    def read(self, text: str) -> dict[str, Any]:
        """Return the object that a text is, or refuse it; an empty text is an empty object."""
        try:
            value = json.loads(_plain(text)) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            raise Invalid(f"It is not JSON: {error}.", "It was not changed.") from None
        if not isinstance(value, dict):
            raise Invalid("It is not a JSON object.", "It was not changed.")
        return value

    def put(self, text: str, path: Path, value: Any) -> str:
        """Set a value, in the layout of the text; a new one comes first, in objects and lists that are added."""
        self.read(text)
        text = text if text.strip() else "{}\n"
        plain = _plain(text)
        at = _skip(plain, 0)
        for depth, step in enumerate(path):
            if plain[at] != ("[" if isinstance(step, int) else "{"):
                raise Invalid(f'"{path[depth - 1]}" does not have the form that it should have.', "Correct it first.")
            members = _members(plain, at)
            found = next((member for member in reversed(members) if member.key == step), None)
            if found is None:
                break
            start, at, end = found.start, found.value, found.end
        else:
            return text[:at] + _render(text, value, _space_before(text, start)) + text[end:]
        for missing in reversed(path[depth + 1 :]):
            value = [value] if isinstance(missing, int) else {missing: value}
        newline, indent = _layout(text)
        line = text[:at].rpartition("\n")[2]
        outer = newline and newline + line[: len(line) - len(line.lstrip(" \t"))]
        space = _space_before(text, members[0].start) if members else outer and outer + indent
        name = "" if isinstance(step, int) else f"{json.dumps(step)}: "
        closing = "," if members else "" if text[at + 1 :].lstrip(" \t")[:1] in ("\r", "\n") else outer
        return f"{text[: at + 1]}{space}{name}{_render(text, value, space)}{closing}{text[at + 1 :]}"

    def drop(self, text: str, path: Path) -> str:
        """Remove a value, and the objects and lists that are empty then."""
        left = _cut(text, path)
        while (path := path[:-1]) and left[_locate(left, path)[-1].value :][:2] in ("{}", "[]"):
            left = _cut(left, path)
        return left


class _Member(NamedTuple):
    """A member of an object, or an item of a list, whose key is its number."""

    key: str | int
    start: int
    value: int
    end: int


def _members(plain: str, start: int) -> list[_Member]:
    """Return the members of the object or list at `start`; the text is known to be JSON."""
    members: list[_Member] = []
    at = _skip(plain, start + 1)
    while plain[at] not in "}]":
        key: str | int = len(members)
        value = at
        if plain[start] == "{":
            key, after = _DECODER.raw_decode(plain, at)
            value = _skip(plain, _skip(plain, after) + 1)
        _, end = _DECODER.raw_decode(plain, value)
        members.append(_Member(key, at, value, end))
        at = _skip(plain, end)
        if plain[at] == ",":
            at = _skip(plain, at + 1)
    return members


def _locate(text: str, path: Path) -> list[_Member]:
    """Return the members on the way to a value, which is known to exist."""
    plain, found = _plain(text), list[_Member]()
    for step in path:
        at = found[-1].value if found else _skip(plain, 0)
        found.append(next(member for member in reversed(_members(plain, at)) if member.key == step))
    return found


def _cut(text: str, path: Path) -> str:
    """Remove a member or item with its comma and the space before it; comments stay."""
    *outer, member = _locate(text, path)
    code = _code(text)
    begin = outer[-1].value if outer else _skip(code, 0)
    start, end = member.start - len(_space_before(text, member.start)), member.end
    after = _skip(code, end)
    left, rest = text[:start], text[end:]
    if code[after] == ",":
        rest = text[end:after] + text[after + 1 :]
    elif (comma := code.rfind(",", begin, start)) >= 0 and len(_members(_plain(text), begin)) > 1:
        left = text[:comma] + text[comma + 1 : start]
    if rest.lstrip(" \t")[:1] not in ("\r", "\n"):  # it may not become part of a comment
        left += text[start : member.start]
    made = left + rest
    closing = _skip(made, begin + 1)
    return made[: begin + 1] + made[closing:] if made[closing] in "}]" else made


def _render(text: str, value: Any, space: str) -> str:
    """Return a value in the layout of the text: its lines begin with `space`, or it is one line."""
    if "\n" not in space:
        return json.dumps(value, ensure_ascii=False)
    newline, indent = _layout(text)
    line = (newline or "\n") + space.rpartition("\n")[2]
    return json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", line)


def _layout(text: str) -> tuple[str, str]:
    """Return the line ending of a text, "" if its members are on one line, and its indentation."""
    plain = _plain(text)
    members = _members(plain, _skip(plain, 0))
    space = _space_before(text, members[0].start) if members else "\n"
    newline = "\r\n" if "\r\n" in text else "\n"
    return newline if "\n" in space else "", space.rpartition("\n")[2] or "  "


def _plain(text: str) -> str:
    return _blanked(_LAST_COMMAS, _code(text))


def _code(text: str) -> str:
    return _blanked(_COMMENTS, text)


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """Return a text with spaces in place of what the pattern finds, except for strings."""
    return pattern.sub(lambda found: found[0] if found[0][0] == '"' else re.sub(r"[^\r\n]", " ", found[0]), text)


def _space_before(text: str, at: int) -> str:
    return text[len(text[:at].rstrip(_SPACE)) : at]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


# TOML


class TomlEditor:
    """Edits the tables `key.name` of a TOML text; the methods are those of JsonEditor."""

    def read(self, text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise Invalid(f"It is not TOML: {error}.", "It was not changed.") from None

    def put(self, text: str, path: Path, value: Any) -> str:
        """Add a table at the end, or set a field of one."""
        key, name, *field = path
        expected = self.read(text)
        servers = expected.setdefault(str(key), {})
        if not isinstance(servers, dict):
            raise Invalid(f'"{key}" is not a table of tables.', "Correct the file first.")
        if field:
            servers[name][field[0]] = value
            return self._edited(text, path, expected, value)
        servers[name] = value
        lines = [f"{field} = {_toml(part)}" for field, part in value.items()]
        gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
        return self._checked(text + gap + "\n".join([f"[{key}.{name}]", *lines]) + "\n", expected)

    def drop(self, text: str, path: Path) -> str:
        """Remove a table, with those below it and the empty line above it.

        tomlkit would count the comments before the next header as part of this table, and remove them with it.
        """
        key, name = map(str, path)
        expected = self.read(text)
        del expected[key][name]
        lines = text.splitlines(keepends=True)
        quoted = rf"[\"']?{re.escape(name)}[\"']?"
        header = re.compile(rf"\s*\[\s*{re.escape(key)}\s*\.\s*{quoted}(?:\s*\..+)?\s*\]\s*(?:#.*)?$")
        while (start := next((number for number, line in enumerate(lines) if header.match(line)), None)) is not None:
            end = next((n for n in range(start + 1, len(lines)) if _TOML_HEADER.match(lines[n])), len(lines))
            while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
                end -= 1
            if start and not lines[start - 1].strip():
                start -= 1
            lines[start:end] = []
        left = "".join(lines)
        if name in self.read(left).get(key, {}):
            return self._edited(left, path, expected)
        return self._checked(left, expected)

    def _edited(self, text: str, path: Path, expected: dict[str, Any], value: Any = None) -> str:
        """Set or, without a value, remove what is at a path; comments and layout stay."""
        import tomlkit  # here: loading it takes longer than reading the file

        document = at = tomlkit.parse(text)
        for step in path[:-1]:
            at = at[step]  # type: ignore[index]
        if value is None:
            del at[path[-1]]  # type: ignore[arg-type]
        else:
            at[path[-1]] = value  # type: ignore[index]
        return self._checked(document.as_string(), expected)

    def _checked(self, text: str, expected: dict[str, Any]) -> str:
        with contextlib.suppress(Invalid):  # a table that is empty now may be gone as well
            if [part for part in self.read(text).items() if part[1]] == [part for part in expected.items() if part[1]]:
                return text
        raise Invalid("Its entry for holdfast is written in a way of its own.", "It was not changed.")


def _toml(value: Any) -> str:
    """Render a string, a list of strings, or a table of them on one line."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return f"{{ {', '.join(f'{name} = {_toml(part)}' for name, part in value.items())} }}"


JSON, TOML = JsonEditor(), TomlEditor()
