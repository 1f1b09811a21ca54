"""Rows of the table `record`: made from documents, sections and log entries, and read back as records and lines.

An entry is stored as its text and, in `more`, its other fields in their order, so that a log is exported as it was
written. A document is stored verbatim. Bytes that a database cannot store as text (NUL, invalid UTF-8) are kept in
`raw`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import Invalid
from holdfast.formats import jsonl, markdown, transcripts
from holdfast.model import names
from holdfast.model.kinds import KINDS, Layout, Place
from holdfast.model.names import same
from holdfast.model.records import HALF, Problem, Record, priority_of, version_of
from holdfast.model.times import derived_id, id_ms, is_id, iso, normal
from holdfast.storage import parsing, words
from holdfast.storage.tree import Document, Stamp
from holdfast.storage.words import LINK, NAME, TAG, stems

FILE, PAGE, LOG = "file", "page", "log"
"""The kinds of rows that are not records: other files, pages of sections, entries of other logs."""
DOCUMENTS = (*(name for name, kind in KINDS.items() if kind.shape == "document"), FILE, PAGE)
LETTER = 3
"""The position of the letter in a lexeme that gives its type: w a word, f a word of another program, n l t a tie."""
PROBLEM, FAULTY = "\n", "r.about = E'\\n'"
"""Kinds of unusable rows: a damaged line, an entry with a fault, half of a pair; and the same in SQL."""
_LONGEST_KEY, _LONGEST_PATH = 400, 1_500
LONGEST_STEM = 500
_VECTOR_BYTES = 1_000_000
_MOST_POSITIONS = 255
_TIES = {NAME: "n", LINK: "l", TAG: "t"}
_ESCAPE = "\ue000"
"""An escape: with `n` it is a NUL in a field of an entry, which a database cannot store; with `e` it is itself."""
_ESCAPE_BYTES = _ESCAPE.encode()
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode


class Row(msgspec.Struct):
    """One row to insert; the fields are the columns."""

    tenant: str
    id: str
    at: str | None = None
    kind: str = LOG
    path: str = ""
    key: str | None = None
    scope: str = ""
    session: str = ""
    version: str | None = None
    op: str | None = None
    about: str | None = None
    writer: str | None = None
    author: str = ""
    agent: bool = False
    priority: int = 5
    live: bool = False
    hidden: bool = False
    length: int = 0
    title: str = ""
    text: str | None = None
    more: msgspec.Raw | None = None
    raw: str | None = None
    words: str | None = None


def sent(rows: Sequence[Row]) -> str:
    """Return rows as JSON for the functions of the database."""
    return _encode(rows).decode()


# texts that a database accepts


def short(text: str, most: int = _LONGEST_KEY) -> str:
    """Return a text as it is compared in a database, which allows no NUL and no long keys."""
    if len(text) * 4 > most and len(text.encode("utf-8", "replace")) > most:
        text = text[: most // 8] + "…" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    return plain(text)


def plain(text: str) -> str:
    """Return a text without characters that a database refuses."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def check_path(path: str) -> str:
    """Return a path, or refuse one that no file can have, or that is too long for an index."""
    names.check_path(path)
    if len(path.encode()) > _LONGEST_PATH:
        raise Invalid(f"{path[:80]!r}… is too long for a path.", "Use shorter names.")
    return path


# words


class Lexemes:
    """The words of one tenant: each lexeme is the tenant's mark, a letter, and a stem or a name."""

    def __init__(self, tenant: str) -> None:
        digest = hashlib.sha256(tenant.encode()).digest()
        self.mark = base64.b32encode(digest)[: LETTER - 1].decode().lower()

    def prefix(self, foreign: bool) -> str:
        return self.mark + ("f" if foreign else "w")

    def tie(self, way: int, name: str) -> str:
        return self.mark + _TIES[way] + short(name)

    def of(self, record: Record) -> tuple[str | None, int]:
        """Return the words, names, links and tags of a record as a `tsvector`, and how many words it has.

        A title has weight A, the rest C. A position is left free between them, so that no phrase spans two.
        """
        ties = [quoted(self.tie(way, name)) for way, name in words.ties_of(record)]
        ties = ties or [quoted(self.tie(TAG, same(tag))) for tag in record.tags]
        prefix, made, start, chars = self.prefix(KINDS[record.kind].foreign), list[str](), 1, 0
        for weight, text in zip("ACC", words.words_of(record) or (), strict=False):
            if text:
                found = stems(text)  # of letters and digits, so that they need no escapes
                made += [f"'{prefix}{stem}':{at}{weight}" for at, stem in enumerate(found, start)]
                start, chars = start + len(found) + 1, chars + len(text)
        length = len(made)
        if chars > LONGEST_STEM or length > _MOST_POSITIONS:  # a `tsvector` takes 1 MB, and 255 places of each word
            places, room = dict[str, list[str]](), _VECTOR_BYTES
            for one in made:
                lexeme, _, place = one.rpartition(":")
                if len(known := places.setdefault(lexeme, [])) < _MOST_POSITIONS:
                    known.append(place)
            made = []
            for lexeme, each in places.items():
                room -= len(lexeme.encode()) + 8 + 2 * len(each)
                if len(lexeme) <= LONGEST_STEM + LETTER + 2 and room > 0:  # it is in quotes
                    made.append(f"{lexeme}:{','.join(each)}")
        return " ".join(made + ties) or None, length


def quoted(lexeme: str) -> str:
    """Return a lexeme as a literal of `tsvector` and `tsquery`."""
    if "'" in lexeme or "\\" in lexeme:
        lexeme = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{lexeme}'"


# making rows


class Maker:
    """Makes the rows of one tenant. `blob` reads the text that an entry keeps in a separate document."""

    def __init__(self, tenant: str, layout: Layout, blob: parsing.Blob) -> None:
        self._tenant = tenant
        self._layout = layout
        self._blob = blob
        self._lexemes = Lexemes(tenant)

    def entry(self, path: str, value: dict[str, Any], identifier: str = "") -> Row:
        """Return the row of a log entry; `identifier` is the id of a new one, which is not part of the value yet."""
        place = self._layout.classify(path)
        if place and place.kind.name == "trace":
            value = _decode(jsonl.render(value))  # its parameters are JSON already
        if identifier:
            row = Row(self._tenant, identifier, path=path)
            value = {"id": identifier, **value}
        else:
            known = _spoken(place, value) or value if place else value
            _, order, _ = jsonl.identity(known, place.kind.time if place else "time")
            row = Row(self._tenant, order, path=path)
            if place and place.kind.foreign:  # two conversations may contain the same turn
                row.id, row.key = derived_id(id_ms(order), f"{path} {order}".encode()), order
        writer = value.get("writer")
        row.writer = plain(writer) if isinstance(writer, str) else None
        if place is None:
            row.more = _more(dict(value), row.id)
            return row
        kind = place.kind
        row.kind, text, time = kind.name, value.get(kind.text), value.get(kind.time)
        apart: dict[str, None] = {}
        """Fields whose values are columns."""
        if isinstance(text, str) and "\0" not in text:
            row.text, apart[kind.text] = text, None
        if isinstance(time, str) and time and time == normal(time):
            row.at, apart[kind.time] = time, None
        row.more = _more({**value, **apart}, row.id)
        if isinstance(target := value.get("hide"), str) and not kind.foreign:
            row.hidden = target != "" and value.get("hidden") is not False
            whole = f"{path.rpartition('/')[0]}/{target}" if kind.name == "ledger" else target
            row.about = short(whole, _LONGEST_PATH) if target else PROBLEM
            return row
        if kind.name == "write":
            row.about = short(str(value.get("path") or ""), _LONGEST_PATH)
        if not _is_record(place, value):
            row.key = None
            if not kind.foreign and parsing.fault(kind, value):
                row.about = PROBLEM
            return row
        record, _ = parsing.line_record(place, _spoken(place, value), 0, self._blob, hashed=False)
        self._describe(row, record)
        if kind.name == "trace":
            row.about = short(str(value.get("bound") or ""), _LONGEST_PATH)
        own = value.get("id")
        if key := record.key or (own if isinstance(own, str) and not is_id(own) else ""):
            row.key = row.key or short(key)
        return row

    def document(self, path: str, data: bytes, identifier: str, writer: str | None) -> tuple[Row, list[Row]]:
        """Return the rows of a document and of its sections, whose ids the caller sets."""
        place = self._layout.classify(path)
        version = version_of(data)
        row = Row(self._tenant, identifier, path=path, key="", version=version, writer=writer, live=True, kind=FILE)
        try:
            row.text = data.decode()
            if "\0" in row.text:
                raise ValueError
        except ValueError:
            row.text, row.raw = None, "\\x" + data.hex()
        if place is None or place.kind.shape == "section":
            row.at = iso(id_ms(identifier))
        if place is None:
            return row, []
        document = Document(data, version, stamp(identifier, len(data)))
        if place.kind.shape == "section":
            found = parsing.entries(place, document)
            row.kind, row.scope, row.about = PAGE, short(place.scope.path), PROBLEM if found.problems else None
            return row, [self.section(path, record, writer) for record in found.records]
        found = parsing.documents(place, document)
        row.kind, row.about = place.kind.name, PROBLEM if found.problems else None
        self._describe(row, found.records[0])
        return row, []

    def section(self, path: str, record: Record, writer: str | None) -> Row:
        """Return the row of a section, whose id the caller sets."""
        row = Row(self._tenant, "", kind=record.kind, path=path, version=record.version, writer=writer)
        row.key = short(record.id.rpartition("#")[2])
        self._describe(row, record)
        row.text = plain(record.text)
        row.more = msgspec.Raw(_encode({"id": record.id, "tags": record.tags, "line": record.line, **record.fields}))
        return row

    def damaged(self, path: str, identifier: str, data: bytes) -> Row:
        """Return the row of a line that cannot be read; it is exported as it was."""
        place = self._layout.classify(path)
        kind = place.kind.name if place else LOG
        return Row(self._tenant, identifier, kind=kind, path=path, about=PROBLEM, raw="\\x" + data.hex())

    def _describe(self, row: Row, record: Record) -> None:
        """Set the columns that are derived from a record."""
        row.at = row.at or record.time or None
        row.scope, row.session = short(record.scope.path), short(record.scope.session)
        row.title, row.author = plain(record.title), plain(words.author_of(record))
        row.agent = record.fields.get("role") == "assistant"
        row.priority = priority_of(record.fields.get("priority"))
        row.live, row.hidden = True, record.hidden
        row.words, row.length = self._lexemes.of(record)


def _is_record(place: Place, value: dict[str, Any]) -> bool:
    """Is this entry a record by itself? An access count of a compartment is not."""
    if place.kind.name == "entry" and isinstance(value.get("access"), list) and place.kind.text not in value:
        return False
    return bool(_spoken(place, value)) if place.kind.foreign else not parsing.fault(place.kind, value)


def _spoken(place: Place, value: dict[str, Any]) -> dict[str, Any]:
    """Return an entry as it is read; a line of another program's conversation is one record of all its turns."""
    if not place.kind.foreign:
        return value
    turns = transcripts.turns(value)
    together = {"text": "\n\n".join(turn["text"] for turn in turns)}
    return {"session": place.name.rpartition("/")[2], **turns[0], **together} if turns else {}


def _more(value: dict[str, Any], identifier: str) -> msgspec.Raw:
    """Return the fields of an entry as JSON: without its id if that is the row's, with null if it has none."""
    if "id" not in value:
        value = {"id": None, **value}
    elif value["id"] == identifier:
        del value["id"]
    made = jsonl.render(value)
    if b"\\u0000" in made or _ESCAPE_BYTES in made:
        made = jsonl.render(_replaced(value, (_ESCAPE, _ESCAPE + "e"), ("\0", _ESCAPE + "n")))
    return msgspec.Raw(made[:-1])


def _replaced(value: Any, *pairs: tuple[str, str]) -> Any:
    """Replace texts in all texts of a value, one pair after the other."""
    if isinstance(value, str):
        return functools.reduce(lambda text, pair: text.replace(*pair), pairs, value)
    if isinstance(value, Mapping):
        return {_replaced(name, *pairs): _replaced(inner, *pairs) for name, inner in value.items()}
    return [_replaced(inner, *pairs) for inner in value] if isinstance(value, list | tuple) else value


# reading rows

READ = (
    "r.id::text, (extract(epoch FROM r.at) * 1000)::bigint, r.kind, r.path, r.version, r.writer, r.live, r.hidden,"
    " r.title, r.text, r.more::text, r.raw"
)
"""The columns from which records, documents and lines are made."""


class Stored(NamedTuple):
    """A row as it was read."""

    id: str
    at: int | None
    """When it happened, in milliseconds."""
    kind: str
    path: str
    version: str | None
    writer: str | None
    live: bool
    hidden: bool
    title: str
    text: str | None
    more: str | None
    raw: bytes | None

    @property
    def data(self) -> bytes:
        """The bytes of a document."""
        return bytes(self.raw) if self.raw is not None else (self.text or "").encode()

    @property
    def value(self) -> dict[str, Any]:
        """The entry of a log."""
        found: dict[str, Any] = _decode(self.more or "{}")
        if self.more and _ESCAPE in self.more:
            found = _replaced(found, (_ESCAPE + "n", "\0"), (_ESCAPE + "e", _ESCAPE))
        if found.get("id", "") is None:
            del found["id"]
        elif "id" not in found:
            found = {"id": self.id, **found}
        if kind := KINDS.get(self.kind):
            if self.text is not None:
                found[kind.text] = self.text
            if self.at is not None and found.get(kind.time, "") is None:
                found[kind.time] = iso(self.at)
        return found

    @property
    def line(self) -> bytes:
        """The line of a log, without its newline."""
        return bytes(self.raw) if self.raw is not None else jsonl.render(self.value)[:-1]

    @property
    def document(self) -> Document:
        return Document(self.data, str(self.version), stamp(self.id, len(self.data)))


def stamp(identifier: str, size: int) -> Stamp:
    """Return the stamp of a document or log: its time and its identity are those of a row."""
    ns = id_ms(identifier) * 1_000_000
    return Stamp(size, ns, ns, int(identifier.replace("-", "")[-15:], 16))


def record_of(row: Stored, place: Place | None, blob: parsing.Blob) -> Record | None:
    """Return the record of a row; None for a row that is no record."""
    if place is None or row.kind not in KINDS:
        return None
    shape = KINDS[row.kind].shape
    if shape == "document":
        found = parsing.documents(place, row.document).records[0]
    elif shape == "section":
        fields: dict[str, Any] = _decode(row.more or "{}")
        identifier, tags, line = fields.pop("id"), tuple(fields.pop("tags")), fields.pop("line")
        text = row.text or ""
        found = Record(
            id=identifier, kind=row.kind, path=row.path, scope=place.scope, title=row.title, text=text, tags=tags,
            time=normal(fields.get("date")), fields=fields, line=line, version=str(row.version),
            links=markdown.link_targets(text, row.path),
        )  # fmt: skip
    else:
        value = row.value if row.raw is None else {}
        hides = isinstance(value.get("hide"), str) and not place.kind.foreign
        if row.raw is not None or hides or not _is_record(place, value):
            return None
        found, _ = parsing.line_record(place, _spoken(place, value), 0, blob)
    return msgspec.structs.replace(found, hidden=row.hidden, superseded=not row.live)


def problems_of(row: Stored, place: Place | None) -> list[Problem]:
    """Return the problem of a row that is about PROBLEM."""
    if row.kind == LOG or place is None or place.kind.shape == "line":
        return [problem_of(row)]
    return list(parsing.page(place, row.document).problems)


def problem_of(row: Stored) -> Problem:
    """Return why a log entry that is about PROBLEM cannot be used."""
    if row.raw is not None:
        fault = jsonl.parse(bytes(row.raw))
        return Problem(row.path, f"skipped: {fault if isinstance(fault, str) else 'not valid'}")
    reason = parsing.fault(KINDS[row.kind], row.value) if row.kind in KINDS else ""
    if row.value.get("hide") == "":
        reason = "it hides nothing"
    return Problem(row.path, f"skipped: {reason}" if reason else HALF)
