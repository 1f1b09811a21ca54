"""The tables and functions of a database, and setting it up: one program at a time, and never over a newer one.

`record` has one row per version of a document, per section of a page and per log entry. A row never changes what it
says, except when its owner forgets it; `live` and `hidden` are flags. Every table is keyed by tenant first and guarded
by a policy that shows only rows of the tenant, and of the scope, that the transaction names.
"""

from __future__ import annotations

import time

import msgspec
import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.rows import TupleRow

from holdfast.errors import Busy, HoldfastError, Unavailable
from holdfast.recall.embedders import NoVectors
from holdfast.storage.tree import RootGone

OWNER, WRITER, READER = ROLES = ("holdfast_owner", "holdfast_writer", "holdfast_reader")
VERSION = 12
COPYING = 11
"""The schema of a database whose rows are being copied from the tables of schema 10 and older."""
OLDEST_SERVER = 16
COLUMNS = (
    "tenant", "id", "at", "kind", "path", "key", "scope", "session", "version", "op", "about", "writer", "author",
    "agent", "priority", "live", "hidden", "length", "title", "text", "more", "raw", "words",
)  # fmt: skip
_ALL = ", ".join(COLUMNS)
_KEY = 7_406_297_183_640_291_011
_LONGEST_WAIT = "60s"
_TRIES = 8
_CONCURRENT = (pg.UniqueViolation, pg.DuplicateObject, pg.InternalError_, pg.DeadlockDetected, pg.DuplicateSchema)
_TEXT = 'text COLLATE "C"'
_TENANT = f"tenant {_TEXT} NOT NULL CHECK (tenant <> '')"
CODE_BITS = 384

_TABLES = f"""
CREATE TABLE holdfast.record (
    xact xid8 NOT NULL DEFAULT pg_current_xact_id(),  -- for readers that follow
    at timestamptz,                   -- when it happened
    length integer NOT NULL,          -- in words; 0 when it is not searched
    priority smallint NOT NULL,
    agent boolean NOT NULL,           -- said by an assistant
    live boolean NOT NULL,            -- the current version, and a record by itself
    hidden boolean NOT NULL,          -- archived
    id uuid NOT NULL,                 -- UUIDv7, made by the client: a row that is sent twice is added once
    {_TENANT},
    kind {_TEXT} NOT NULL,            -- a kind of the kinds table; 'file', 'page' or 'log' for other files
    path {_TEXT} NOT NULL,            -- the document, or the log of an entry
    key {_TEXT},                      -- of a fact; the anchor of a section; '' for a document: one live row each
    scope {_TEXT} NOT NULL,           -- workspace/domain/repository
    session {_TEXT} NOT NULL,         -- session or channel: neighbours share it
    version {_TEXT},                  -- hash of the text of a document or section
    op {_TEXT},                       -- the caller's op_id, which has effect once
    about {_TEXT},                    -- the record that a mark hides, the document that was written; a line break if it
                                      -- cannot be used
    writer text,                      -- as the interface knew it; NULL when it is not recorded
    author text NOT NULL,
    title text NOT NULL,
    text text,                        -- a document verbatim, the text of an entry
    more json,                        -- the other fields of an entry, in their order
    raw bytea,                        -- the bytes of a document or line that are not valid text
    words tsvector,                   -- stems, names, links and tags, each after the mark of its tenant
    PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX record_key ON holdfast.record (tenant, path, key) WHERE live AND key IS NOT NULL;
CREATE UNIQUE INDEX record_op ON holdfast.record (tenant, op) WHERE op IS NOT NULL;
CREATE INDEX record_about ON holdfast.record (tenant, about) WHERE about IS NOT NULL;
CREATE INDEX record_path ON holdfast.record (tenant, path, id);
CREATE INDEX record_session ON holdfast.record (tenant, session, id) WHERE live AND session <> '';
CREATE INDEX record_kind ON holdfast.record (tenant, kind, at);
CREATE INDEX record_xact ON holdfast.record (tenant, xact);
CREATE INDEX record_words ON holdfast.record USING gin (words) WITH (gin_pending_list_limit = 512);

CREATE TABLE holdfast.stat (          -- one row per tenant
    {_TENANT},
    records bigint[] NOT NULL DEFAULT '{{0,0}}',       -- counted records: our own, those of other programs
    length bigint[] NOT NULL DEFAULT '{{0,0}}',        -- their words
    upto xid8 NOT NULL DEFAULT '0',   -- rows of earlier transactions are counted in `term`
    epoch bigint NOT NULL DEFAULT 0,  -- grows when entries are removed or rewritten
    tokenizer integer NOT NULL,       -- the version of the rules for words
    PRIMARY KEY (tenant)
);
CREATE TABLE holdfast.term (          -- in how many counted records a word occurs
    {_TENANT}, term {_TEXT} NOT NULL, records integer NOT NULL, PRIMARY KEY (tenant, term)
) WITH (fillfactor = 80);
CREATE TABLE holdfast.lease (         -- live runs, and programs that listen for changes
    {_TENANT}, name {_TEXT} NOT NULL, holder {_TEXT} NOT NULL, until timestamptz NOT NULL, PRIMARY KEY (tenant, name)
);
CREATE TABLE holdfast.token (         -- access tokens of the HTTP server
    {_TENANT}, id {_TEXT} NOT NULL, name text NOT NULL, digest text NOT NULL, scope text NOT NULL,
    reads_only boolean NOT NULL, login name NOT NULL DEFAULT session_user,
    created timestamptz NOT NULL DEFAULT clock_timestamp(), expires timestamptz, revoked timestamptz, used date,
    PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX token_name ON holdfast.token (tenant, name) WHERE revoked IS NULL;
"""

_VISIBLE = """
CREATE FUNCTION holdfast.is_visible(kind text, path text, scope text, about text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE  -- the setting has three lines: a scope, its folder of documents, its folder of learnings
        WHEN coalesce(current_setting('holdfast.scope', true), '') = '' THEN true
        WHEN kind = 'trace' THEN
            starts_with(scope || '/', split_part(current_setting('holdfast.scope'), E'\\n', 1) || '/')
            AND starts_with(about || '/', split_part(current_setting('holdfast.scope'), E'\\n', 1) || '/')
        ELSE
            starts_with(CASE kind WHEN 'write' THEN about ELSE path END || '/',
                split_part(current_setting('holdfast.scope'), E'\\n', 2) || '/')
            OR starts_with(CASE kind WHEN 'write' THEN about ELSE path END || '/',
                split_part(current_setting('holdfast.scope'), E'\\n', 3) || '/')
    END
$$;
"""

_SEARCHED = f"""
CREATE POLICY of_the_owner ON holdfast.record FOR SELECT TO {OWNER} USING (true);
-- For searches by words. Behind a policy the planner does not use the index on words, because @@ is not leak-proof;
-- so this view names the tenant itself. `|| ''` keeps the planner from other indexes: each word names the tenant too.
CREATE VIEW holdfast.searched AS SELECT * FROM holdfast.record
    WHERE tenant || '' = (SELECT current_setting('holdfast.tenant', true))
        AND ((SELECT coalesce(current_setting('holdfast.scope', true), '') = '')
            OR holdfast.is_visible(kind, path, scope, about));
GRANT SELECT ON holdfast.searched TO {WRITER}, {READER};
"""

_FUNCTIONS = f"""
-- Append entries to a log. HF001: it changed since the snapshot `seen`. HF002: a later entry about the same key or
-- record exists. HF003: the op_id was used before.
CREATE FUNCTION holdfast.append(entries json, seen text, alone boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one holdfast.record;
    later uuid;
BEGIN
    SELECT * INTO one FROM json_populate_record(NULL::holdfast.record, entries -> 0);
    IF alone THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(one.tenant || ' ' || one.path, 0));
    END IF;
    IF EXISTS (SELECT FROM holdfast.record r WHERE r.tenant = one.tenant AND r.id = one.id) THEN
        RETURN;  -- the client sends it again, because it did not get an answer
    END IF;
    IF EXISTS (SELECT FROM holdfast.record r WHERE r.tenant = one.tenant AND r.op = one.op) THEN
        RAISE EXCEPTION 'repeated' USING ERRCODE = 'HF003';
    END IF;
    IF seen <> '' AND EXISTS (
        SELECT FROM holdfast.record r WHERE r.tenant = one.tenant AND r.path = one.path
            AND r.xact >= pg_snapshot_xmin(seen::pg_snapshot) AND NOT pg_visible_in_snapshot(r.xact, seen::pg_snapshot)
    ) THEN
        RAISE EXCEPTION 'changed' USING ERRCODE = 'HF001';
    END IF;
    FOR one IN SELECT * FROM json_populate_recordset(NULL::holdfast.record, entries) LOOP
        IF one.key IS NOT NULL AND one.live THEN
            PERFORM pg_advisory_xact_lock(hashtextextended(one.tenant || ' ' || one.path || ' ' || one.key, 1));
            SELECT r.id INTO later FROM holdfast.record r
                WHERE r.tenant = one.tenant AND r.path = one.path AND r.key = one.key AND r.live AND r.id > one.id;
            IF FOUND THEN
                RAISE EXCEPTION '%', later USING ERRCODE = 'HF002';
            END IF;
            UPDATE holdfast.record r SET live = false, words = NULL
                WHERE r.tenant = one.tenant AND r.path = one.path AND r.key = one.key AND r.live;
        ELSIF one.about IS NOT NULL AND (one.more ->> 'hide') IS NOT NULL THEN
            SELECT r.id INTO later FROM holdfast.record r WHERE r.tenant = one.tenant AND r.about = one.about
                AND r.path = one.path AND r.id > one.id ORDER BY r.id DESC LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION '%', later USING ERRCODE = 'HF002';
            END IF;
            UPDATE holdfast.record r SET hidden = one.hidden
                WHERE r.tenant = one.tenant AND r.live AND CASE WHEN one.kind = 'ledger'
                    THEN r.path = one.about AND r.key = ''
                    ELSE r.path = one.path AND (r.key = one.about OR r.id::text = one.about) END;
        END IF;
        INSERT INTO holdfast.record ({_ALL}) VALUES ({", ".join(f"one.{name}" for name in COLUMNS)});
    END LOOP;
END $$;

-- Write, replace or remove (`doc` is NULL) a document of version `expect`: '' for none, NULL for any. HF004: it is
-- there already. HF005: it has another version.
CREATE FUNCTION holdfast.put_document(where_ text, doc json, parts json, note json, expect text, keep boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    new holdfast.record;
    old holdfast.record;
    t text := current_setting('holdfast.tenant');
    place text := where_;
BEGIN
    SELECT * INTO new FROM json_populate_record(NULL::holdfast.record, coalesce(note, doc));
    IF EXISTS (SELECT FROM holdfast.record r WHERE r.tenant = t AND r.id = new.id) THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM holdfast.record r WHERE r.tenant = t AND r.op = new.op) THEN
        RAISE EXCEPTION 'repeated' USING ERRCODE = 'HF003';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(t || ' ' || where_, 2));
    SELECT * INTO old FROM holdfast.record r WHERE r.tenant = t AND r.path = where_ AND r.key = '' AND r.live;
    IF expect = '' AND FOUND THEN
        RAISE EXCEPTION 'exists' USING ERRCODE = 'HF004';
    ELSIF expect <> '' AND old.version IS DISTINCT FROM expect THEN
        RAISE EXCEPTION 'conflict' USING ERRCODE = 'HF005';
    END IF;
    IF NOT FOUND AND doc IS NOT NULL THEN  -- a file is not a folder too
        WHILE place LIKE '%/%' LOOP
            place := regexp_replace(place, '/[^/]*$', '');
            IF EXISTS (SELECT FROM holdfast.record r
                    WHERE r.tenant = t AND r.path = place AND r.key = '' AND r.live) THEN
                RAISE EXCEPTION '%', place USING ERRCODE = 'HF006';
            END IF;
        END LOOP;
        IF EXISTS (SELECT FROM holdfast.record r
                WHERE r.tenant = t AND r.path > where_ || '/' AND r.path < where_ || '0' AND r.live) THEN
            RAISE EXCEPTION '%', where_ USING ERRCODE = 'HF006';
        END IF;
    ELSIF keep THEN
        UPDATE holdfast.record r SET live = false, words = NULL, about = r.version
            WHERE r.tenant = t AND r.id = old.id;
    ELSE
        DELETE FROM holdfast.record r WHERE r.tenant = t AND r.id = old.id;
    END IF;
    INSERT INTO holdfast.record ({_ALL}) SELECT {_ALL} FROM json_populate_record(NULL::holdfast.record, doc)
        WHERE doc IS NOT NULL;
    DELETE FROM holdfast.record r WHERE r.tenant = t AND r.path = where_ AND r.key <> '' AND r.live AND NOT EXISTS (
        SELECT FROM json_populate_recordset(NULL::holdfast.record, parts) s
        WHERE s.key = r.key AND s.version = r.version);
    UPDATE holdfast.record r SET more = s.more  -- its line, when it moved
        FROM json_populate_recordset(NULL::holdfast.record, parts) s WHERE r.tenant = t AND r.path = where_
            AND r.key = s.key AND r.live AND r.more::text <> s.more::text;
    INSERT INTO holdfast.record ({_ALL}) SELECT {_ALL} FROM json_populate_recordset(NULL::holdfast.record, parts) s
        WHERE NOT EXISTS (
            SELECT FROM holdfast.record r WHERE r.tenant = t AND r.path = where_ AND r.key = s.key AND r.live);
    INSERT INTO holdfast.record ({_ALL}) SELECT {_ALL} FROM json_populate_record(NULL::holdfast.record, note)
        WHERE note IS NOT NULL;
END $$;

-- Count the words of rows that were added since the last count, unless there are few of them or another program does.
CREATE FUNCTION holdfast.count_words(fewest integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    t text := current_setting('holdfast.tenant');
    known holdfast.stat;
    edge xid8 := pg_snapshot_xmin(pg_current_snapshot());
    own integer;
    foreign_ integer;
    own_length bigint;
    foreign_length bigint;
BEGIN
    SELECT * INTO known FROM holdfast.stat s WHERE s.tenant = t FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT count(*) FILTER (WHERE r.kind <> 'transcript'), count(*) FILTER (WHERE r.kind = 'transcript'),
           coalesce(sum(r.length) FILTER (WHERE r.kind <> 'transcript'), 0),
           coalesce(sum(r.length) FILTER (WHERE r.kind = 'transcript'), 0)
        INTO own, foreign_, own_length, foreign_length
        FROM holdfast.record r
        WHERE r.tenant = t AND r.xact >= known.upto AND r.xact < edge AND r.length > 0 AND r.live;
    IF own + foreign_ < fewest THEN
        RETURN 0;
    END IF;
    INSERT INTO holdfast.term AS k (tenant, term, records)
        SELECT t, w.lexeme, count(*) FROM holdfast.record r CROSS JOIN LATERAL unnest(r.words) AS w
        WHERE r.tenant = t AND r.xact >= known.upto AND r.xact < edge AND r.length > 0 AND r.live
            AND substr(w.lexeme, {{letter}}, 1) IN ('w', 'f')
        GROUP BY w.lexeme ORDER BY w.lexeme
        ON CONFLICT (tenant, term) DO UPDATE SET records = k.records + excluded.records;
    UPDATE holdfast.stat s SET upto = edge, records = ARRAY[s.records[1] + own, s.records[2] + foreign_],
        length = ARRAY[s.length[1] + own_length, s.length[2] + foreign_length] WHERE s.tenant = t;
    RETURN own + foreign_;
END $$;
"""

_EMBEDDINGS = f"""
DROP TABLE IF EXISTS holdfast.embedding, holdfast.embedded;  -- what is left when the extension was removed
CREATE TABLE holdfast.embedding (
    {_TENANT}, model {_TEXT} NOT NULL, id uuid NOT NULL,
    code bit({CODE_BITS}) NOT NULL,   -- the signs of its numbers
    vector {{place}}.halfvec NOT NULL,
    PRIMARY KEY (tenant, id, model),
    FOREIGN KEY (tenant, id) REFERENCES holdfast.record ON DELETE CASCADE
);
ALTER TABLE holdfast.embedding ALTER code SET STORAGE PLAIN, ALTER vector SET STORAGE PLAIN;
CREATE TABLE holdfast.embedded (      -- rows of earlier transactions have their vectors
    {_TENANT}, model {_TEXT} NOT NULL, upto xid8 NOT NULL, PRIMARY KEY (tenant, model)
);
CREATE OR REPLACE FUNCTION holdfast.distance(one bit, other bit) RETURNS double precision
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN one OPERATOR({{place}}.<~>) other;
CREATE OR REPLACE FUNCTION holdfast.similarity(one {{place}}.halfvec, other text) RETURNS double precision
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN -(one OPERATOR({{place}}.<#>) other::{{place}}.halfvec);
CREATE OR REPLACE FUNCTION holdfast.vector(given text) RETURNS {{place}}.halfvec
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN given::{{place}}.halfvec;
"""


_COMPARED = f"""
CREATE POLICY of_the_owner ON holdfast.embedding FOR SELECT TO {OWNER} USING (true);
-- To compare many vectors: the tenant is looked up once, and not for each row.
CREATE VIEW holdfast.compared AS SELECT * FROM holdfast.embedding
    WHERE tenant = (SELECT current_setting('holdfast.tenant', true));
GRANT SELECT ON holdfast.compared TO {WRITER}, {READER};
"""


def _guarded(table: str, condition: str = "") -> str:
    """Return the policy and the grants of a table."""
    return f"""
ALTER TABLE holdfast.{table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY of_the_tenant ON holdfast.{table}
    USING (tenant = current_setting('holdfast.tenant', true){condition});
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.{table} TO {WRITER};
GRANT SELECT ON holdfast.{table} TO {READER};
"""


LETTER = 3
"""The place of the letter in a lexeme that says what it is: w a word, f a word of another program, n l t a tie."""
TENANT_TABLES = ("record", "stat", "term", "lease", "token")
SCHEMA = (
    _TABLES
    + _VISIBLE
    + _guarded("record", " AND holdfast.is_visible(kind, path, scope, about)")
    + "".join(map(_guarded, TENANT_TABLES[1:]))
    + _SEARCHED
    + _FUNCTIONS.replace("{letter}", str(LETTER))
)
_MIGRATIONS = f"""
CREATE TABLE IF NOT EXISTS holdfast.migrations (
    version integer PRIMARY KEY, name text NOT NULL, login name NOT NULL DEFAULT session_user,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT USAGE ON SCHEMA holdfast TO {WRITER}, {READER};
GRANT SELECT ON holdfast.migrations TO {WRITER}, {READER};
"""
Connection = psycopg.Connection[TupleRow]


class Access(msgspec.Struct, frozen=True):
    """The rights of this login."""

    role: str
    commit: str
    """The server's setting of `synchronous_commit`."""

    @property
    def forgetful(self) -> bool:
        """By default the server acknowledges writes that it may still lose."""
        return self.commit == "off"


def prepare(connection: Connection, *, migrating: bool = False) -> Access:
    """Set up the database if it is empty, and return the role to work with."""
    major = connection.info.server_version // 10_000
    if major < OLDEST_SERVER:
        raise Unavailable(f"The server is PostgreSQL {major}.", f"Use PostgreSQL {OLDEST_SERVER} or newer.")
    row = connection.execute("SELECT getdatabaseencoding(), current_setting('synchronous_commit')").fetchone()
    encoding, commit = row or ("", "")
    if encoding != "UTF8":
        raise Unavailable(
            f"The encoding of the database is {encoding}.",
            "Create one with ENCODING 'UTF8' TEMPLATE template0, and use that.",
        )
    version = installed(connection)
    if not version:
        set_up(connection)
    elif version != VERSION and not (migrating and version < VERSION):
        raise _other(version)
    mine = _roles(connection)
    role = next((role for role in (WRITER, READER) if role in mine), "")
    if not role:
        raise _not_granted(connection)
    return Access(role, commit)


def check(connection: Connection) -> None:
    """Check that an open database still has the schema that this program knows."""
    version = installed(connection)
    if not version:
        raise RootGone("The database is no longer set up.", "Open it again and check it.")
    if version > VERSION:
        raise _other(version)


def _other(version: int) -> HoldfastError:
    if version < VERSION:
        return Unavailable(
            f"The database has the tables of an earlier Holdfast (schema {version}; this program knows {VERSION}).",
            "Make a backup of the database, stop all programs that use it, and run: holdfast migrate store ADDRESS",
        )
    return Unavailable(
        f"The database has schema {version}, this program knows {VERSION}; nothing was changed.", "Upgrade Holdfast."
    )


def installed(connection: Connection) -> int:
    """Return the version of the schema, 0 when there is none."""
    found = connection.execute("SELECT to_regclass('holdfast.migrations') IS NOT NULL").fetchone()
    if not found or not found[0]:
        return 0
    roles = _roles(connection)
    if not roles:
        raise _not_granted(connection)
    with connection.transaction():
        connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(roles[0])))
        row = connection.execute("SELECT coalesce(max(version), 0) FROM holdfast.migrations").fetchone()
    return int(row[0]) if row else 0


def set_up(connection: Connection, *, over: bool = False) -> None:
    """Create the tables; with `over`, beside those of an earlier version, whose rows are copied afterwards.

    It is tried again when another database of the server creates the same roles meanwhile.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            with connection.transaction():
                _set_up(connection, over)
            return
        except pg.LockNotAvailable:
            raise Busy("Another program is setting up this database.", "Try again in a minute.") from None
        except pg.InsufficientPrivilege:
            user = connection.info.user
            raise Unavailable(
                f'The database is not set up for this version, and the login "{user}" may not do that.',
                "Open it once with a login that may create roles and schemas in this database, or was granted "
                f'{OWNER}; then GRANT {WRITER} TO "{user}";',
            ) from None
        except pg.ReadOnlySqlTransaction:
            raise Unavailable(
                "The database is not set up, and this server takes no writes.", "Open it on the primary."
            ) from None
        except psycopg.Error as error:
            if attempt == _TRIES or not isinstance(error, _CONCURRENT):
                raise Unavailable(
                    f"The database could not be set up ({error.sqlstate}): {error.diag.message_primary};"
                    " nothing was changed.",
                    "See the server's log, then open it again.",
                ) from None
            time.sleep(0.05 * attempt)


def _set_up(connection: Connection, over: bool) -> None:
    connection.execute(f"SET LOCAL lock_timeout = '{_LONGEST_WAIT}'")
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_KEY])
    version = installed(connection)
    if version >= COPYING or (version and not over):
        return  # another program did it meanwhile
    known = connection.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", [list(ROLES)]).fetchall()
    for role in ROLES:
        if (role,) not in known:
            connection.execute(f"CREATE ROLE {role} NOLOGIN NOSUPERUSER NOBYPASSRLS")
    for role in set(ROLES) - set(_roles(connection)):
        connection.execute(f"GRANT {role} TO CURRENT_USER WITH SET TRUE")
    if not version:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS holdfast AUTHORIZATION {OWNER}")
    connection.execute(f"SET LOCAL ROLE {OWNER}")
    connection.execute(_MIGRATIONS + SCHEMA)
    note(connection, COPYING)
    if not over:
        note(connection, VERSION)


def note(connection: Connection, version: int) -> None:
    """Record that the database has a version of the schema."""
    name = {COPYING: "rows are being copied", VERSION: "records are rows"}[version]
    connection.execute("INSERT INTO holdfast.migrations (version, name) VALUES (%s, %s)", [version, name])


def prepare_vectors(connection: Connection) -> NoVectors | None:
    """Create the table of vectors, if it is missing; return the reason where that is impossible."""
    there = "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('holdfast.embedding')"
    there += " AND attname = 'vector' AND NOT attisdropped)"
    row = connection.execute(there).fetchone()
    if row and row[0]:
        return None
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LONGEST_WAIT}'")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_KEY])
            if (row := connection.execute(there).fetchone()) and not row[0]:
                _add_vectors(connection)
        return None
    except Unavailable as error:
        return NoVectors(error.message, error.next_step)
    except pg.InsufficientPrivilege:
        return NoVectors(
            f'Vectors cannot be compared here yet, and the login "{connection.info.user}" may not set that up.',
            f"Open the database once with a login that was granted {OWNER}.",
        )
    except psycopg.Error as error:
        return NoVectors(
            f"The extension vector cannot be used ({error.sqlstate}): {error.diag.message_primary}.",
            "See the server's log, then open it again.",
        )


def _add_vectors(connection: Connection) -> None:
    known = "SELECT n.nspname, extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    known += " WHERE extname = 'vector'"
    if (row := connection.execute(known).fetchone()) is None:
        major = connection.info.server_version // 10_000
        if not connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone():
            raise Unavailable(
                "The server does not have the extension vector.",
                f"Install pgvector (on Debian: apt install postgresql-{major}-pgvector) on the server and open the"
                " memory again; a login that may not add it needs an administrator to run: CREATE EXTENSION vector;",
            )
        try:
            with connection.transaction():
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except pg.InsufficientPrivilege:
            raise Unavailable(
                "The extension vector is not part of this database, and this login may not add it.",
                "Have the database's administrator run: CREATE EXTENSION vector;",
            ) from None
        row = connection.execute(known).fetchone()
    place, version = row or ("", "")
    connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(OWNER)))
    try:
        connection.execute(sql.SQL(_EMBEDDINGS).format(place=sql.Identifier(place)))
    except pg.UndefinedObject:
        raise Unavailable(
            f"The extension vector is {version} here, which is too old.",
            "Install pgvector 0.7 or newer on the server, and run: ALTER EXTENSION vector UPDATE;",
        ) from None
    connection.execute(_guarded("embedding") + _guarded("embedded") + _COMPARED)


def add_graph(connection: Connection) -> None:
    """Index the codes of all vectors by a graph (HNSW), if the login may do that."""
    if OWNER not in _roles(connection):
        return
    place = (
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'vector'"
    )
    row = connection.execute(place).fetchone()
    connection.execute(f"SET ROLE {OWNER}")
    connection.execute("SET maintenance_work_mem = '1GB'")
    made = "CREATE INDEX CONCURRENTLY IF NOT EXISTS embedding_code ON holdfast.embedding USING hnsw (code {}.bit_hamming_ops)"
    connection.execute(sql.SQL(made).format(sql.Identifier(row[0] if row else "public")))


def _roles(connection: Connection) -> list[str]:
    """Return which of our roles this login may set, the most powerful first."""
    rows = connection.execute(
        "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND pg_has_role(oid, 'SET')", [list(ROLES)]
    ).fetchall()
    return sorted((row[0] for row in rows), key=ROLES.index)


def _not_granted(connection: Connection) -> HoldfastError:
    user = connection.info.user
    return Unavailable(
        f'The login "{user}" may not use this memory.',
        f'Have the database\'s administrator run: GRANT {WRITER} TO "{user}"; (or {READER}, to read only)',
    )
