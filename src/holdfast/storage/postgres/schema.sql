-- The tables and functions of a memory in PostgreSQL; docs/decisions/018-postgresql.md explains them.
--
-- `record` has one row per version of a document, per section of a page and per log entry. A row never changes what it
-- says, except when its owner forgets it; `live` and `hidden` are flags. Every table is keyed by tenant first and
-- guarded by a policy that shows only rows of the tenant, and of the scope, that the transaction names.

CREATE TABLE holdfast.migrations (
    version integer PRIMARY KEY, name text NOT NULL, login name NOT NULL DEFAULT session_user,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT USAGE ON SCHEMA holdfast TO holdfast_writer, holdfast_reader;
GRANT SELECT ON holdfast.migrations TO holdfast_writer, holdfast_reader;

CREATE TABLE holdfast.record (
    xact xid8 NOT NULL DEFAULT pg_current_xact_id(),  -- for readers that follow
    at timestamptz,                          -- when it happened
    length integer NOT NULL,                 -- in words; 0 when it is not searched
    priority smallint NOT NULL,
    agent boolean NOT NULL,                  -- said by an assistant
    live boolean NOT NULL,                   -- the current version, and a record by itself
    hidden boolean NOT NULL,                 -- archived
    id uuid NOT NULL,                        -- UUIDv7, made by the client: a row that is sent twice is added once
    tenant text COLLATE "C" NOT NULL,
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
-- Without statistics the planner may prefer record_path, and read a whole log; `path || '' = …` keeps it from that.
CREATE UNIQUE INDEX record_key ON holdfast.record (tenant, key, path) WHERE live AND key IS NOT NULL;
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
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN  -- in plpgsql, so that it is not made a part of every statement: most programs have no scope
    RETURN CASE  -- the setting has three lines: a scope, its folder of documents, its folder of learnings
        WHEN coalesce(current_setting('holdfast.scope', true), '') = '' THEN true
        WHEN kind = 'trace' THEN
            starts_with(scope || '/', split_part(current_setting('holdfast.scope'), E'\n', 1) || '/')
            AND starts_with(about || '/', split_part(current_setting('holdfast.scope'), E'\n', 1) || '/')
        ELSE
            starts_with(CASE kind WHEN 'write' THEN about ELSE path END || '/',
                split_part(current_setting('holdfast.scope'), E'\n', 2) || '/')
            OR starts_with(CASE kind WHEN 'write' THEN about ELSE path END || '/',
                split_part(current_setting('holdfast.scope'), E'\n', 3) || '/')
    END;
END $$;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['record', 'stat', 'term', 'lease', 'token'] LOOP
        EXECUTE format('ALTER TABLE holdfast.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY of_the_tenant ON holdfast.%I'
            ' USING (tenant = nullif(current_setting(''holdfast.tenant'', true), %L)%s)', name, '',
            CASE name WHEN 'record' THEN format(' AND (current_setting(''holdfast.scope'', true) = %L'
                ' OR holdfast.is_visible(kind, path, scope, about))', '') ELSE '' END);
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

-- The entries of a log that hide or show one of these keys and records.
CREATE FUNCTION holdfast.marks(log text, targets text[]) RETURNS SETOF holdfast.record LANGUAGE sql STABLE AS $$
    SELECT * FROM (SELECT * FROM holdfast.record r
        WHERE r.tenant = current_setting('holdfast.tenant') AND r.about = ANY (targets) OFFSET 0) AS r
    WHERE r.path = log AND r.more ->> 'hide' <> ''
$$;

-- Hide or show what an entry is about: the earlier entry of a key, an entry of the same log, or a save point.
CREATE FUNCTION holdfast.hide(mark holdfast.record) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.record r SET hidden = mark.hidden WHERE r.tenant = mark.tenant AND r.live
        AND r.path = CASE mark.kind WHEN 'ledger' THEN mark.about ELSE mark.path END
        AND r.key = CASE mark.kind WHEN 'ledger' THEN '' ELSE mark.about END AND (r.key = '' OR r.id < mark.id);
    IF pg_input_is_valid(mark.about, 'uuid') THEN
        UPDATE holdfast.record r SET hidden = mark.hidden
            WHERE r.tenant = mark.tenant AND r.id = mark.about::uuid AND r.path = mark.path AND r.live;
    END IF;
END $$;

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
        SELECT r.id INTO later FROM holdfast.record r WHERE r.tenant = one.tenant AND r.live
            AND r.key = coalesce(one.key, one.about) AND r.path || '' = one.path AND r.id > one.id;
        IF one.more ->> 'hide' <> '' AND NOT FOUND THEN
            SELECT m.id INTO later FROM holdfast.marks(one.path, ARRAY[one.about]) AS m WHERE m.id > one.id LIMIT 1;
        END IF;
        IF later IS NOT NULL THEN
            RAISE EXCEPTION '%', later USING ERRCODE = 'HF002';
        ELSIF one.key IS NOT NULL AND one.live THEN
            UPDATE holdfast.record r SET live = false, words = NULL
                WHERE r.tenant = one.tenant AND r.key = one.key AND r.path || '' = one.path AND r.live;
        ELSIF one.more ->> 'hide' <> '' THEN
            PERFORM holdfast.hide(one);
        END IF;
        INSERT INTO holdfast.record VALUES (one.*);
    END LOOP;
END $$;

-- Add entries from elsewhere to a log, in any order, and return how many are new: which of them are current and hidden
-- follows from all entries of the log. Two that have the same value in the field `pair` count only together.
CREATE FUNCTION holdfast.import_entries(entries json, pair text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    t text := current_setting('holdfast.tenant');
    log text := entries -> 0 ->> 'path';
    new holdfast.record[];
    mark holdfast.record;
    pairs text[];
    added bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(t || ' ' || log, 0));
    new := ARRAY(SELECT n FROM json_populate_recordset(holdfast.new_row(), entries) AS s
        LEFT JOIN LATERAL (SELECT r.path FROM holdfast.record r WHERE r.tenant = t AND r.id = s.id OFFSET 0) AS there
            ON true
        LEFT JOIN LATERAL (SELECT r.id FROM holdfast.record r WHERE r.tenant = t AND r.key = s.key AND r.live
            AND r.path || '' = log OFFSET 0) AS current ON s.live AND s.key IS NOT NULL
        CROSS JOIN LATERAL json_populate_record(s, CASE WHEN current.id > s.id AND s.kind <> 'transcript'
            THEN '{"live": false, "words": null}'::json ELSE '{}' END) AS m
        CROSS JOIN LATERAL json_populate_record(m, CASE
            WHEN there.path IS NOT NULL THEN json_build_object(  -- another log has an entry of this id
                'id', left(m.id::text, 15) || substr(md5(log || ' ' || m.id)::uuid::text, 16), 'op', NULL,
                'more', (SELECT json_object_agg(f.key, f.value) FROM (SELECT 'id' AS key, to_json(m.id) AS value
                    UNION ALL SELECT * FROM json_each(m.more)) AS f))
            WHEN EXISTS (SELECT FROM holdfast.record r WHERE r.tenant = t AND r.op = m.op OFFSET 0)
            THEN '{"op": null}' ELSE '{}' END) AS n
        WHERE there.path IS DISTINCT FROM log AND (s.kind <> 'transcript' OR current.id IS NULL));
    UPDATE holdfast.record r SET live = false, words = NULL FROM (
            SELECT o.id FROM unnest(new) AS n CROSS JOIN LATERAL (SELECT o.id FROM holdfast.record o
                WHERE o.tenant = t AND o.key = n.key AND o.live AND o.path || '' = log AND o.id < n.id OFFSET 0) AS o
            WHERE n.live AND n.key IS NOT NULL AND n.kind <> 'transcript') AS old
        WHERE r.tenant = t AND r.id = old.id;
    INSERT INTO holdfast.record SELECT n.* FROM unnest(new) AS n ON CONFLICT (tenant, id) DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    IF pair <> '' THEN
        pairs := ARRAY(SELECT n.more ->> pair FROM unnest(new) AS n WHERE n.live GROUP BY 1 HAVING count(*) = 1);
        WITH other AS (
            UPDATE holdfast.record r SET live = true, about = NULL, xact = pg_current_xact_id() FROM (
                    SELECT o.id FROM holdfast.record o
                    WHERE o.tenant = t AND o.about = E'\n' AND o.path || '' = log AND o.more ->> pair = ANY (pairs)
                ) AS half
                WHERE r.tenant = t AND r.id = half.id RETURNING r.more ->> pair AS value)
        UPDATE holdfast.record r SET live = false, about = E'\n'  -- it keeps its words for later
            FROM unnest(new) AS n WHERE n.live AND n.more ->> pair = ANY (pairs) AND r.tenant = t AND r.id = n.id
                AND NOT EXISTS (SELECT FROM other WHERE other.value = n.more ->> pair);
    END IF;
    FOR mark IN SELECT DISTINCT ON (m.about) m.* FROM holdfast.marks(log, ARRAY(
            SELECT unnest(CASE WHEN n.live THEN ARRAY[n.id::text, n.key] ELSE ARRAY[n.about] END)
            FROM unnest(new) AS n)) AS m ORDER BY m.about, m.id DESC
    LOOP
        PERFORM holdfast.hide(mark);
    END LOOP;
    RETURN added;
END $$;

-- Write, replace or remove (`doc` is NULL) a document of version `expect`: '' for none, NULL for any. `parts` are its
-- sections: those that did not change keep their rows. `note` is its entry in the write log. With `keep` the replaced
-- version stays, as a row that is not live and is about its version. HF003: the op_id was used before. HF004: it is there
-- already. HF005: it has another version. HF006: a document has the name of a folder.
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

-- Count the words of rows that were added since the last count, unless there are fewer than `fewest` or another program
-- does. Rows of transactions that are still open, and of later ones, are left for the next count.
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
            AND substr(w.lexeme, 3, 1) IN ('w', 'f')  -- words, our own and those of other programs; no names or tags
        GROUP BY w.lexeme ORDER BY w.lexeme
        ON CONFLICT (tenant, term) DO UPDATE SET records = k.records + excluded.records;
    UPDATE holdfast.stat s SET upto = edge, records = ARRAY[s.records[1] + own, s.records[2] + foreign_],
        length = ARRAY[s.length[1] + own_length, s.length[2] + foreign_length] WHERE s.tenant = t;
    RETURN own + foreign_;
END $$;
