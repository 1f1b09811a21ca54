-- The tables and functions of a memory in PostgreSQL; docs/decisions/018-postgresql.md explains them.
--
-- `record` has one row per version of a document, per section of a page and per log entry. A row never changes what it
-- says, except when its owner forgets it; `live` and `hidden` are flags. Every table is keyed by tenant first and
-- guarded by a policy that shows only rows of the tenant, and of the scope, that the transaction names.

CREATE TABLE holdfast.record (
    xact xid8 NOT NULL DEFAULT pg_current_xact_id(),  -- for readers that follow
    at timestamptz,                          -- when it happened
    length integer NOT NULL,                 -- in words; 0 when it is not searched
    priority smallint NOT NULL,
    agent boolean NOT NULL,                  -- said by an assistant
    live boolean NOT NULL,                   -- the current version, and a record by itself
    hidden boolean NOT NULL,                 -- archived
    id uuid NOT NULL,                        -- UUIDv7, made by the client: a row that is sent twice is added once
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    kind text COLLATE "C" NOT NULL,          -- a kind of the kinds table; 'file', 'page' or 'log' for other files
    path text COLLATE "C" NOT NULL,          -- the document, or the log of an entry
    key text COLLATE "C",                    -- of a fact; the anchor of a section; '' for a document;
                                             -- one row with a key is live
    scope text COLLATE "C" NOT NULL,         -- workspace/domain/repository
    session text COLLATE "C" NOT NULL,       -- session or channel: neighbours share it
    version text COLLATE "C",                -- hash of the text of a document or section
    op text COLLATE "C",                     -- the caller's op_id, which has effect once
    about text COLLATE "C",                  -- the record that a mark hides, the document that was written;
                                             -- a line break if this row cannot be used
    writer text,                             -- as the interface knew it; NULL when it is not recorded
    author text NOT NULL,
    title text NOT NULL,
    text text,                               -- a document verbatim, the text of an entry
    more json,                               -- the other fields of an entry, in their order
    raw bytea,                               -- a document or line that is not valid text
    words tsvector,                          -- stems, names, links and tags, each after the mark of its tenant
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
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    records bigint[] NOT NULL DEFAULT '{0,0}',       -- counted records: our own, those of other programs
    length bigint[] NOT NULL DEFAULT '{0,0}',        -- their words
    upto xid8 NOT NULL DEFAULT '0',   -- rows of earlier transactions are counted in `term`
    epoch bigint NOT NULL DEFAULT 0,  -- grows when entries are removed or rewritten
    tokenizer integer NOT NULL,       -- the version of the rules for words
    PRIMARY KEY (tenant)
);
CREATE TABLE holdfast.term (          -- in how many counted records a word occurs
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    term text COLLATE "C" NOT NULL,
    records integer NOT NULL,
    PRIMARY KEY (tenant, term)
) WITH (fillfactor = 80);
CREATE TABLE holdfast.lease (         -- live runs, and programs that listen for changes
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    name text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE TABLE holdfast.token (         -- access tokens of the HTTP server
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    id text COLLATE "C" NOT NULL,
    name text NOT NULL, digest text NOT NULL, scope text NOT NULL,
    reads_only boolean NOT NULL, login name NOT NULL DEFAULT session_user,
    created timestamptz NOT NULL DEFAULT clock_timestamp(), expires timestamptz, revoked timestamptz, used date,
    PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX token_name ON holdfast.token (tenant, name) WHERE revoked IS NULL;

CREATE FUNCTION holdfast.is_visible(kind text, path text, scope text, about text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE  -- the setting has three lines: a scope, its folder of documents, its folder of learnings
        WHEN coalesce(current_setting('holdfast.scope', true), '') = '' THEN true
        WHEN kind = 'trace' THEN
            starts_with(scope || '/', split_part(current_setting('holdfast.scope'), E'\n', 1) || '/')
            AND starts_with(about || '/', split_part(current_setting('holdfast.scope'), E'\n', 1) || '/')
        ELSE
            starts_with(CASE kind WHEN 'write' THEN about ELSE path END || '/',
                split_part(current_setting('holdfast.scope'), E'\n', 2) || '/')
            OR starts_with(CASE kind WHEN 'write' THEN about ELSE path END || '/',
                split_part(current_setting('holdfast.scope'), E'\n', 3) || '/')
    END
$$;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['record', 'stat', 'term', 'lease', 'token'] LOOP
        EXECUTE format('ALTER TABLE holdfast.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY of_the_tenant ON holdfast.%I'
            ' USING (tenant = current_setting(''holdfast.tenant'', true)%s)', name,
            CASE name WHEN 'record' THEN ' AND holdfast.is_visible(kind, path, scope, about)' ELSE '' END);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.%I TO holdfast_writer', name);
        EXECUTE format('GRANT SELECT ON holdfast.%I TO holdfast_reader', name);
    END LOOP;
END $$;

CREATE POLICY of_the_owner ON holdfast.record FOR SELECT TO holdfast_owner USING (true);
-- For searches by words. Behind a policy the planner does not use the index on words, because @@ is not leak-proof;
-- so this view names the tenant itself. `|| ''` keeps the planner from other indexes: each word names the tenant too.
CREATE VIEW holdfast.searched AS SELECT * FROM holdfast.record
    WHERE tenant || '' = (SELECT current_setting('holdfast.tenant', true))
        AND ((SELECT coalesce(current_setting('holdfast.scope', true), '') = '')
            OR holdfast.is_visible(kind, path, scope, about));
GRANT SELECT ON holdfast.searched TO holdfast_writer, holdfast_reader;

-- A row with the default values; clients send the others as JSON.
CREATE FUNCTION holdfast.new_row() RETURNS holdfast.record LANGUAGE sql AS $$
    SELECT r FROM json_populate_record(
        NULL::holdfast.record, json_build_object('xact', pg_current_xact_id()::text)) AS r
$$;

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
    FOR one IN SELECT * FROM json_populate_recordset(holdfast.new_row(), entries) LOOP
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
        INSERT INTO holdfast.record VALUES (one.*);
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
    INSERT INTO holdfast.record SELECT * FROM json_populate_record(holdfast.new_row(), doc)
        WHERE doc IS NOT NULL;
    DELETE FROM holdfast.record r WHERE r.tenant = t AND r.path = where_ AND r.key <> '' AND r.live AND NOT EXISTS (
        SELECT FROM json_populate_recordset(NULL::holdfast.record, parts) s
        WHERE s.key = r.key AND s.version = r.version);
    UPDATE holdfast.record r SET more = s.more  -- its line, when it moved
        FROM json_populate_recordset(NULL::holdfast.record, parts) s WHERE r.tenant = t AND r.path = where_
            AND r.key = s.key AND r.live AND r.more::text <> s.more::text;
    INSERT INTO holdfast.record SELECT * FROM json_populate_recordset(holdfast.new_row(), parts) s
        WHERE NOT EXISTS (
            SELECT FROM holdfast.record r WHERE r.tenant = t AND r.path = where_ AND r.key = s.key AND r.live);
    INSERT INTO holdfast.record SELECT * FROM json_populate_record(holdfast.new_row(), note)
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
            AND substr(w.lexeme, 3, 1) IN ('w', 'f')
        GROUP BY w.lexeme ORDER BY w.lexeme
        ON CONFLICT (tenant, term) DO UPDATE SET records = k.records + excluded.records;
    UPDATE holdfast.stat s SET upto = edge, records = ARRAY[s.records[1] + own, s.records[2] + foreign_],
        length = ARRAY[s.length[1] + own_length, s.length[2] + foreign_length] WHERE s.tenant = t;
    RETURN own + foreign_;
END $$;
