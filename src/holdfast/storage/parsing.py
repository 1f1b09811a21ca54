"""Parsing: from the bytes of a file to records, one function per shape.

No input raises an error: an unreadable part becomes a `Problem` with file and line, and the rest is still read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError
from holdfast.formats import jsonl, markdown, pages, sections, transcripts
from holdfast.model.kinds import Kind, Place
from holdfast.model.patterns import regex
from holdfast.model.records import Mark, Problem, Record, Scope, from_path, text_of, version_of
from holdfast.model.times import from_ns, from_prefix, normal
from holdfast.storage.tree import Document, Line

_HEADING = regex(r"^#[ \t](.+)$", re.MULTILINE)
_SECTION = ("date", "category", "until", "supersedes", "superseded_by")
"""The parts of a section that are fields of its record."""
Blob = Callable[[str], str]


class Facts(msgspec.Struct, frozen=True):
    """The records read from a file, or from the new part of a log."""

    records: Sequence[Record] = ()
    marks: Sequence[Mark] = ()
    problems: Sequence[Problem] = ()


def documents(place: Place, document: Document) -> Facts:
    """Read a Markdown file that is one record."""
    kind = place.kind
    page = markdown.parse(document.data, verbatim=kind.write_once)
    fields, problems = page.fields, _faults(place, page)
    for name, values in kind.choices.items():
        if name in fields and fields[name] not in values:
            head = document.data[: len(document.data) - len(page.body.encode())].decode("utf-8", "replace")
            what = f"{name} is {fields[name]!r}; it can be {', '.join(values)}"
            problems.append(Problem(place.path, what, markdown.line_of(head, name), minor=True))
    changed = from_ns(document.stamp.mtime)
    named = text_of(fields) if fields else ""
    record = Record(
        id=place.path,
        kind=kind.name,
        path=place.path,
        scope=place.scope,
        title=_title(place, fields, page.body),
        text=page.body.strip("\r\n"),
        tags=_tags(fields.get("tags")),
        time=normal(fields.get(kind.time)) or (normal(from_prefix(place.name)) if kind.dated else "") or changed,
        updated=normal(fields.get("updated")) or changed,
        fields={name: value for name, value in fields.items() if name not in (kind.title, "tags")}
        | _notice(place, page),
        line=1,
        version=document.version,
        hidden=is_archived(fields),
        links=markdown.link_targets(f"{named}\n{page.body}" if "[[" in named else page.body, place.path),
    )
    return Facts([record], (), problems)


def page(place: Place, document: Document) -> Facts:
    """Read a Markdown file: one record, or dated entries."""
    return (entries if place.kind.shape == "section" else documents)(place, document)


def is_archived(fields: Mapping[str, Any]) -> bool:
    """Return whether the document is archived: `isArchived` if it is given, else `archived`."""
    return fields.get("isArchived", fields.get("archived")) is True


def entries(place: Place, document: Document) -> Facts:
    """Read a Markdown file of dated entries."""
    page = markdown.parse(document.data)
    problems = _faults(place, page)
    records = []
    found = sections.parse(page.body)
    for near in pages.near_entries(page.body):
        problems.append(Problem(place.path, pages.NEAR_ENTRY, near + page.body_line - 1, minor=True))
    for section in found:
        line = section.line + page.body_line - 1
        if section.fault:
            problems.append(Problem(place.path, section.fault, line, minor=True))
        records.append(
            Record(
                id=f"{place.path}#{section.anchor}",
                kind=place.kind.name,
                path=place.path,
                scope=place.scope,
                title=section.title,
                text=section.text,
                tags=section.tags,
                time=normal(section.date),
                fields={name: value for name in _SECTION if (value := getattr(section, name))} | _notice(place, page),
                line=line,
                version=section.version,
                hidden=bool(section.archived),
                links=markdown.link_targets(section.text, place.path),
            )
        )
    return Facts(records, (), problems)


def _faults(place: Place, page: markdown.Page) -> list[Problem]:
    step = f"; only our side of it is read. {markdown.how_to_resolve(place.path)}" if page.conflict else ""
    return [Problem(place.path, page.fault + step, page.fault_line)] if page.fault else []


def _notice(place: Place, page: markdown.Page) -> dict[str, Any]:
    """Return the field that reports a conflict in the file of a record."""
    return {"mergeConflict": markdown.how_to_resolve(place.path)} if page.conflict else {}


def lines(place: Place, found: Iterable[Line], first: int, blob: Blob) -> Facts:
    """Read lines of a log; `first` is the number of the first one, `blob` reads large text from a separate file.

    Withheld lines are not numbered, so that their count stays unknown.
    """
    records: list[Record] = []
    marks: list[Mark] = []
    problems: list[Problem] = []
    for number, line in enumerate((line for line in found if not line.veiled), first):
        found_here = objects(place, line)
        if isinstance(found_here, str):
            problems.append(Problem(place.path, f"skipped: {found_here}", number))
            continue
        for value in found_here:
            if place.kind.name == "entry" and isinstance(value.get("access"), list) and place.kind.text not in value:
                continue  # an access count of a compartment
            if value.get("hide") == "":
                problems.append(Problem(place.path, "skipped: it hides nothing", number))
            elif isinstance(value.get("hide"), str):
                marks.append(mark(place, value))
            elif what := fault(place.kind, value):
                problems.append(Problem(place.path, f"skipped: {what}", number))
            else:
                record, problem = line_record(place, value, number, blob)
                records.append(record)
                if problem:
                    problems.append(Problem(place.path, problem, number))
    return Facts(records, marks, problems)


def objects(place: Place, line: Line) -> list[dict[str, Any]] | str:
    """Return the objects of a line, or its fault; for a transcript, its turns."""
    if line.cut:
        return "longer than a line may be"
    if not place.kind.foreign:
        return jsonl.parse(line.data)
    found = transcripts.parse(line.data)
    if isinstance(found, str):
        return found
    session = place.name.rpartition("/")[2]
    return [{"session": session, **turn} for value in found for turn in transcripts.turns(value)]


def fault(kind: Kind, value: Mapping[str, Any]) -> str:
    """Return why an object cannot be a record of a kind, "" when it can."""
    for name, values in kind.choices.items():
        if name in kind.required and value.get(name) not in values:
            return f"its {name} is {str(value.get(name))[:40]!r}, not {', '.join(values)}"
    if kind.inline and not isinstance(value.get(kind.text, ""), str | None):
        return f"its {kind.text} is not text"
    return ""


def mark(place: Place, value: Mapping[str, Any]) -> Mark:
    """Read an entry that hides or shows a record; a ledger names files in its folder."""
    target = value["hide"]
    if place.kind.name == "ledger":
        target = f"{place.path.rpartition('/')[0]}/{target}"
    order = jsonl.identity(value, "time")[1]
    op = value.get("op")
    return Mark(
        target=target, order=order, hidden=value.get("hidden") is not False, op=op if isinstance(op, str) else ""
    )


def line_record(
    place: Place, value: dict[str, Any], number: int, blob: Blob, *, hashed: bool = True
) -> tuple[Record, str]:
    """Read one object of a log; also return its fault. Unless it is `hashed`, it has no version."""
    kind = place.kind
    identifier, order, time = jsonl.identity(value, kind.time)
    text, problem, ref = text_of(value.get(kind.text)), "", value.get("ref")
    if isinstance(ref, str) and kind.text not in value:
        try:
            text = blob(ref)
        except HoldfastError as error:
            problem = f"its text is missing: {error.message}"
            text = f"{text_of(value.get('head'))}… [the rest could not be read: {ref}]"
    key = value.get(kind.key) if kind.key else None
    title = value.get(kind.title)
    known = {"id", "workspace", "session", "run", "tags", kind.time, kind.title}
    if isinstance(value.get(kind.text), str):
        known.add(kind.text)  # a value that is not text stays among the fields
    record = Record(
        id=identifier,
        kind=kind.name,
        path=place.path,
        scope=_line_scope(place.scope, value, kind.session),
        title=title if isinstance(title, str) else "",
        text=text,
        tags=_tags(value.get("tags")),
        time=time,
        fields={name: inner for name, inner in value.items() if name not in known},
        line=number,
        version=version_of(jsonl.render(value)) if hashed else "",
        key=key if isinstance(key, str) else "",
        hidden=isinstance(value.get("forgotten"), str),
        order=order,
        links=markdown.link_targets(text, "") if "[[" in text else (),
    )
    return record, problem


def _line_scope(scope: Scope, value: Mapping[str, Any], field: str) -> Scope:
    workspace, session, run = value.get("workspace"), value.get(field) or value.get("session"), value.get("run")
    if not (workspace or session or run):
        return scope
    tree = from_path(workspace) if isinstance(workspace, str) and workspace else scope
    return Scope(
        tree.workspace,
        tree.domain,
        tree.repository,
        session if isinstance(session, str) else scope.session,
        run if isinstance(run, str) else scope.run,
    )


def _tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    return (
        tuple(str(tag) for tag in value if isinstance(tag, str | int) and str(tag)) if isinstance(value, list) else ()
    )


def _title(place: Place, fields: Mapping[str, Any], body: str) -> str:
    named = fields.get(place.kind.title) or fields.get("title")
    if isinstance(named, str | int | float) and str(named).strip():
        return str(named)
    if place.kind.name == "overview":
        return place.path.rsplit("/", 2)[1]
    heading = _HEADING.search(body, 0, 2000)
    if place.kind.name in ("document", "rule") and heading:
        return sections.heading_title(heading[1])
    return place.name.rpartition("/")[2] or place.path.rpartition("/")[2].removesuffix(".md")
