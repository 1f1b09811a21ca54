"""The tables of the index in a database: derived from the files, disposable, a generation at a time.

Every row belongs to a tenant and to a generation, which is one index from its making to its end. Words are kept as
`tsvector` by the same stems as everywhere; each lexeme begins with the mark of its generation, so that a search in the
inverted index never meets what is somebody else's. Words are found through a view: behind a policy no planner may use
that index, since `@@` is not leak-proof.
"""

from __future__ import annotations

from holdfast.storage.postgres._schema import OWNER, READER, WRITER, tenanted

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
