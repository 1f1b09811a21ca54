"""The SQL texts of all tables and functions: files and logs, tokens, changes, the index, vectors.

Every table is keyed and partitioned by tenant, and guarded by a policy that shows only rows of the tenant that the
transaction names. Partitions have no policy for the application's roles, so nothing can be read through them.
Released texts are never edited, since `migrations.MIGRATIONS` refers to them.
"""

from __future__ import annotations

OWNER, WRITER, READER = "holdfast_owner", "holdfast_writer", "holdfast_reader"
PARTITIONS = 16

_FILES = """
CREATE TABLE holdfast.files (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    path text COLLATE "C" NOT NULL CHECK (path <> ''),
    folder text COLLATE "C" NOT NULL GENERATED ALWAYS AS (regexp_replace(path, '/?[^/]*$', '')) STORED,
    inode bigint NOT NULL,
    size bigint NOT NULL,
    log boolean NOT NULL,
    torn boolean NOT NULL,
    version text,
    data bytea,
    op uuid NOT NULL,
    writer text NOT NULL,
    login name NOT NULL DEFAULT session_user,
    created timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, path),
    CHECK (log = (data IS NULL) AND log = (version IS NULL))
) PARTITION BY HASH (tenant);
CREATE INDEX files_by_folder ON holdfast.files (tenant, folder) INCLUDE (inode);
"""

_PIECES = """
CREATE TABLE holdfast.pieces (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    inode bigint NOT NULL,
    start bigint NOT NULL,
    data bytea NOT NULL,
    op uuid NOT NULL,
    writer text NOT NULL,
    login name NOT NULL DEFAULT session_user,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, inode, start)
) PARTITION BY HASH (tenant);
"""

_TOKENS = """
CREATE TABLE holdfast.tokens (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    scope text NOT NULL,
    reads_only boolean NOT NULL,
    login name NOT NULL DEFAULT session_user,
    created timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires timestamptz,
    revoked timestamptz,
    used date,
    PRIMARY KEY (tenant, id)
) PARTITION BY HASH (tenant);
CREATE UNIQUE INDEX tokens_by_name ON holdfast.tokens (tenant, name) WHERE revoked IS NULL;
"""

_MIGRATIONS = f"""
CREATE TABLE holdfast.migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    login name NOT NULL DEFAULT session_user,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT USAGE ON SCHEMA holdfast TO {WRITER}, {READER};
GRANT SELECT ON holdfast.migrations TO {WRITER}, {READER};
"""


def tenanted(table: str, *, room: int = 100) -> str:
    """Return the partitions, policies and grants of a table."""
    name = f"holdfast.{table}"
    partitions = "".join(
        f"CREATE TABLE {name}_{number:02d} PARTITION OF {name}"
        f" FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number}) WITH (fillfactor = {room});\n"
        f"ALTER TABLE {name}_{number:02d} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;\n"
        for number in range(PARTITIONS)
    )
    return f"""
{partitions}
ALTER TABLE {name} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY of_the_tenant ON {name} USING (tenant = current_setting('holdfast.tenant', true));
GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {WRITER};
GRANT SELECT ON {name} TO {READER};
"""


VAULT = _MIGRATIONS + _FILES + tenanted("files", room=80) + _PIECES + tenanted("pieces")
TOKENS = _TOKENS + tenanted("tokens")

# Changed files, and the listeners to notify (docs/decisions/022).
_CHANGES = """
CREATE TABLE holdfast.changes (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    path text COLLATE "C" NOT NULL,
    xact bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    PRIMARY KEY (tenant, path)
) PARTITION BY HASH (tenant);
CREATE INDEX changes_by_xact ON holdfast.changes (tenant, xact);
CREATE TABLE holdfast.listeners (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    channel text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (tenant, channel)
) PARTITION BY HASH (tenant);
"""

_TELLING = """
ALTER TABLE holdfast.pieces ADD COLUMN xact bigint;
ALTER TABLE holdfast.pieces ALTER COLUMN xact SET DEFAULT pg_current_xact_id()::text::bigint;
CREATE INDEX pieces_by_xact ON holdfast.pieces (tenant, xact);
CREATE INDEX files_by_inode ON holdfast.files (tenant, inode);
CREATE FUNCTION holdfast.note_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO holdfast.changes AS known (tenant, path) SELECT tenant, path FROM came ORDER BY path
    ON CONFLICT (tenant, path) DO UPDATE SET xact = excluded.xact;
    RETURN NULL;
END $$;
CREATE FUNCTION holdfast.note_old() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO holdfast.changes AS known (tenant, path) VALUES (OLD.tenant, OLD.path)
    ON CONFLICT (tenant, path) DO UPDATE SET xact = excluded.xact;
    IF TG_OP = 'UPDATE' AND NEW.path <> OLD.path THEN
        INSERT INTO holdfast.changes AS known (tenant, path) VALUES (NEW.tenant, NEW.path)
        ON CONFLICT (tenant, path) DO UPDATE SET xact = excluded.xact;
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION holdfast.wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(channel, '') FROM holdfast.listeners
    WHERE tenant = current_setting('holdfast.tenant', true) AND until > clock_timestamp();
    RETURN NULL;
END $$;
CREATE TRIGGER came AFTER INSERT ON holdfast.files REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.note_new();
CREATE TRIGGER went AFTER DELETE ON holdfast.files FOR EACH ROW EXECUTE FUNCTION holdfast.note_old();
CREATE TRIGGER changed AFTER UPDATE ON holdfast.files FOR EACH ROW
    WHEN (OLD.inode <> NEW.inode OR OLD.path <> NEW.path) EXECUTE FUNCTION holdfast.note_old();
CREATE TRIGGER wake AFTER INSERT OR UPDATE OR DELETE ON holdfast.files FOR EACH ROW
    WHEN (current_setting('holdfast.listened', true) = 'on') EXECUTE FUNCTION holdfast.wake();
"""

CHANGES = _CHANGES + tenanted("changes", room=80) + tenanted("listeners") + _TELLING

# The index: derived from the files, one generation at a time. Each lexeme of `words` begins with the mark of its
# generation. Words are searched through a view: behind a policy the planner may not use the GIN index, since `@@` is
# not leak-proof.
_KEY = "tenant text COLLATE \"C\" NOT NULL CHECK (tenant <> ''), generation bigint NOT NULL"
_TEXT = 'text COLLATE "C" NOT NULL'
TABLES = {
    "index_generations": f"""
        {_KEY}, identity {_TEXT}, state {_TEXT}, mark {_TEXT}, next_row bigint NOT NULL DEFAULT 1,
        next_file bigint NOT NULL DEFAULT 1, analyzed bigint NOT NULL DEFAULT 0,
        records bigint NOT NULL DEFAULT 0, length bigint NOT NULL DEFAULT 0,
        foreign_records bigint NOT NULL DEFAULT 0, foreign_length bigint NOT NULL DEFAULT 0,
        made timestamptz NOT NULL DEFAULT clock_timestamp(), used timestamptz NOT NULL DEFAULT clock_timestamp(),
        PRIMARY KEY (tenant, generation)""",
    "index_notes": f"{_KEY}, name {_TEXT}, value {_TEXT}, PRIMARY KEY (tenant, generation, name)",
    "index_files": f"""
        {_KEY}, file bigint NOT NULL, path {_TEXT}, seen bytea NOT NULL, PRIMARY KEY (tenant, generation, path)""",
    "index_records": f"""
        {_KEY}, row bigint NOT NULL, file bigint NOT NULL, id {_TEXT}, kind {_TEXT}, scope {_TEXT}, session {_TEXT},
        time {_TEXT}, key text COLLATE "C", op text COLLATE "C", tagged {_TEXT}, sort {_TEXT}, pair text COLLATE "C",
        alone boolean NOT NULL, hidden boolean NOT NULL, superseded boolean NOT NULL, author {_TEXT},
        agent boolean NOT NULL, priority smallint NOT NULL, mark bigint NOT NULL, record bytea NOT NULL,
        PRIMARY KEY (tenant, generation, row)""",
    "index_words": f"""
        {_KEY}, row bigint NOT NULL, length integer NOT NULL, words tsvector NOT NULL,
        PRIMARY KEY (tenant, generation, row)""",
    "index_terms": f"{_KEY}, term {_TEXT}, held bigint NOT NULL, PRIMARY KEY (tenant, generation, term)",
    "index_marks": f"""
        {_KEY}, file bigint NOT NULL, target {_TEXT}, sort {_TEXT}, hidden boolean NOT NULL, op text COLLATE "C",
        PRIMARY KEY (tenant, generation, target, file, sort)""",
    "index_problems": f"""
        {_KEY}, file bigint NOT NULL, number integer NOT NULL, line bigint NOT NULL, what text NOT NULL,
        minor boolean NOT NULL, PRIMARY KEY (tenant, generation, file, number)""",
    "index_ties": f"""
        {_KEY}, way smallint NOT NULL, name {_TEXT}, row bigint NOT NULL,
        PRIMARY KEY (tenant, generation, way, name, row)""",
}
_INDEXES = (
    "UNIQUE INDEX index_files_number ON holdfast.index_files (tenant, generation, file)",
    "UNIQUE INDEX index_records_identity ON holdfast.index_records (tenant, generation, id, file)",
    "INDEX index_records_place ON holdfast.index_records (tenant, generation, kind, scope, time)",
    "INDEX index_records_order ON holdfast.index_records (tenant, generation, file, sort)",
    "INDEX index_records_talk ON holdfast.index_records (tenant, generation, file, session, sort)"
    " WHERE NOT hidden AND NOT superseded",
    "INDEX index_records_key ON holdfast.index_records (tenant, generation, key, file) WHERE key IS NOT NULL",
    "INDEX index_records_pair ON holdfast.index_records (tenant, generation, pair, file) WHERE pair IS NOT NULL",
    "INDEX index_records_alone ON holdfast.index_records (tenant, generation, file) WHERE alone",
    "INDEX index_records_op ON holdfast.index_records (tenant, generation, op) WHERE op IS NOT NULL",
    "INDEX index_marks_file ON holdfast.index_marks (tenant, generation, file)",
    "INDEX index_marks_op ON holdfast.index_marks (tenant, generation, op) WHERE op IS NOT NULL",
    "INDEX index_ties_row ON holdfast.index_ties (tenant, generation, row)",
    "INDEX index_words_found ON holdfast.index_words USING gin (words) WITH (gin_pending_list_limit = 256)",
)
_FOUND = f"""
CREATE POLICY behind_the_view ON holdfast.index_words FOR SELECT TO {OWNER} USING (true);
CREATE VIEW holdfast.index_found AS
    SELECT tenant, generation, row, length, words FROM holdfast.index_words
    WHERE tenant = current_setting('holdfast.tenant', true);
GRANT SELECT ON holdfast.index_found TO {WRITER}, {READER};
"""
_ANALYZE = f"""
CREATE FUNCTION holdfast.analyze_index() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name pg_catalog.text;
    part pg_catalog.regclass;
BEGIN
    FOREACH name IN ARRAY ARRAY['files', 'pieces', '{"', '".join(TABLES)}'] LOOP
        EXECUTE format(
            'SELECT tableoid::pg_catalog.regclass FROM holdfast.%I'
            ' WHERE tenant = current_setting(''holdfast.tenant'', true) LIMIT 1', name) INTO part;
        IF part IS NOT NULL THEN
            EXECUTE format('ANALYZE %s', part);
        END IF;
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION holdfast.analyze_index() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION holdfast.analyze_index() TO {WRITER};
"""

INDEX = (
    "".join(
        f"CREATE TABLE holdfast.{name} ({columns}) PARTITION BY HASH (tenant);\n{tenanted(name, room=90)}"
        for name, columns in TABLES.items()
    )
    + "".join(f"CREATE {each};\n" for each in _INDEXES)
    + _FOUND
    + _ANALYZE
)

# Vectors need no extension; comparing them does (docs/decisions/023).
_VECTORS = """
CREATE TABLE holdfast.vector_sets (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    id bigint NOT NULL,
    model text NOT NULL,
    version text NOT NULL,
    size integer NOT NULL,
    generation text NOT NULL,
    used timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, id)
) PARTITION BY HASH (tenant);
CREATE TABLE holdfast.vector_codes (
    set bigint NOT NULL,
    row bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    code bit(384) STORAGE PLAIN NOT NULL,
    PRIMARY KEY (tenant, set, row)
) PARTITION BY HASH (tenant);
CREATE TABLE holdfast.vectors (
    set bigint NOT NULL,
    row bigint NOT NULL,
    mark bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    vector bytea STORAGE PLAIN NOT NULL,
    PRIMARY KEY (tenant, set, row)
) PARTITION BY HASH (tenant);
"""

COMPARING = f"""
CREATE FUNCTION holdfast.apart(one bit, other bit) RETURNS double precision
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN one OPERATOR({{place}}.<~>) other;
REVOKE ALL ON FUNCTION holdfast.apart FROM PUBLIC;
GRANT EXECUTE ON FUNCTION holdfast.apart TO {WRITER}, {READER};
"""
"""Compares two codes. It is bound to the extension when it is created, and dropped with it."""

VECTORS = _VECTORS + tenanted("vector_sets") + tenanted("vector_codes") + tenanted("vectors")
