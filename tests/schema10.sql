-- The tables of schema 10, as an earlier version made them, with fewer partitions and fewer derived tables.
DO $$ DECLARE role text; BEGIN
    FOREACH role IN ARRAY ARRAY['holdfast_owner', 'holdfast_writer', 'holdfast_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOBYPASSRLS', role);
        END IF;
    END LOOP;
EXCEPTION WHEN unique_violation OR duplicate_object THEN NULL;  -- another test makes them
END $$;
CREATE SCHEMA holdfast AUTHORIZATION holdfast_owner;
SET ROLE holdfast_owner;

CREATE TABLE holdfast.migrations (
    version integer PRIMARY KEY, name text NOT NULL, login name NOT NULL DEFAULT session_user,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO holdfast.migrations (version, name) SELECT n, 'step ' || n FROM generate_series(1, 10) AS n;
GRANT USAGE ON SCHEMA holdfast TO holdfast_writer, holdfast_reader;
GRANT SELECT ON holdfast.migrations TO holdfast_writer, holdfast_reader;

CREATE TABLE holdfast.files (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    path text COLLATE "C" NOT NULL CHECK (path <> ''),
    folder text COLLATE "C" NOT NULL GENERATED ALWAYS AS (regexp_replace(path, '/?[^/]*$', '')) STORED,
    inode bigint NOT NULL, size bigint NOT NULL, log boolean NOT NULL, torn boolean NOT NULL,
    version text, data bytea, op uuid NOT NULL, writer text NOT NULL, login name NOT NULL DEFAULT session_user,
    created timestamptz NOT NULL DEFAULT clock_timestamp(), changed timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, path), CHECK (log = (data IS NULL) AND log = (version IS NULL))
) PARTITION BY HASH (tenant);
CREATE TABLE holdfast.pieces (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    inode bigint NOT NULL, start bigint NOT NULL, data bytea NOT NULL, op uuid NOT NULL, writer text NOT NULL,
    login name NOT NULL DEFAULT session_user, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    xact bigint DEFAULT pg_current_xact_id()::text::bigint, PRIMARY KEY (tenant, inode, start)
) PARTITION BY HASH (tenant);
CREATE TABLE holdfast.tokens (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    id text COLLATE "C" NOT NULL, name text NOT NULL, digest text NOT NULL, scope text NOT NULL,
    reads_only boolean NOT NULL, login name NOT NULL DEFAULT session_user,
    created timestamptz NOT NULL DEFAULT clock_timestamp(), expires timestamptz, revoked timestamptz, used date,
    PRIMARY KEY (tenant, id)
) PARTITION BY HASH (tenant);
CREATE TABLE holdfast.changes (
    tenant text COLLATE "C" NOT NULL, path text COLLATE "C" NOT NULL,
    xact bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint, PRIMARY KEY (tenant, path)
) PARTITION BY HASH (tenant);
CREATE TABLE holdfast.index_words (
    tenant text COLLATE "C" NOT NULL, generation bigint NOT NULL, row bigint NOT NULL, length integer NOT NULL,
    words tsvector NOT NULL, PRIMARY KEY (tenant, generation, row)
) PARTITION BY HASH (tenant);

DO $$ DECLARE name text; BEGIN
    FOREACH name IN ARRAY ARRAY['files', 'pieces', 'tokens', 'changes', 'index_words'] LOOP
        FOR number IN 0..1 LOOP
            EXECUTE format('CREATE TABLE holdfast.%1$s_0%2$s PARTITION OF holdfast.%1$s
                FOR VALUES WITH (MODULUS 2, REMAINDER %2$s)', name, number);
            EXECUTE format('ALTER TABLE holdfast.%s_0%s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name, number);
        END LOOP;
        EXECUTE format('ALTER TABLE holdfast.%s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY of_the_tenant ON holdfast.%s
            USING (tenant = current_setting(''holdfast.tenant'', true))', name);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.%s TO holdfast_writer', name);
        EXECUTE format('GRANT SELECT ON holdfast.%s TO holdfast_reader', name);
    END LOOP;
END $$;

CREATE FUNCTION holdfast.note_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO holdfast.changes AS known (tenant, path) SELECT tenant, path FROM came ORDER BY path
    ON CONFLICT (tenant, path) DO UPDATE SET xact = excluded.xact;
    RETURN NULL;
END $$;
CREATE TRIGGER came AFTER INSERT ON holdfast.files REFERENCING NEW TABLE AS came
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.note_new();
CREATE POLICY behind_the_view ON holdfast.index_words FOR SELECT TO holdfast_owner USING (true);
CREATE VIEW holdfast.index_found AS SELECT * FROM holdfast.index_words
    WHERE tenant = current_setting('holdfast.tenant', true);
GRANT SELECT ON holdfast.index_found TO holdfast_writer, holdfast_reader;
-- Programs of schema 9 and older append by functions that have the owner's rights.
CREATE POLICY of_the_tenant ON holdfast.pieces_00 TO holdfast_owner
    USING (tenant = current_setting('holdfast.tenant', true));
CREATE FUNCTION holdfast.append_00(of_tenant text, known_inode bigint, known_size bigint, more bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('holdfast.tenant', of_tenant, true);
    INSERT INTO holdfast.pieces_00 (tenant, inode, start, data, op, writer)
    VALUES (of_tenant, known_inode, known_size, more, gen_random_uuid(), '');
END $$;
GRANT EXECUTE ON FUNCTION holdfast.append_00 TO holdfast_writer;
RESET ROLE;
