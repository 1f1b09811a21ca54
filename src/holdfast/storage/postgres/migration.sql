-- Prepare the copy of the tables of schema 10 and older.

-- The files that are copied.
CREATE TABLE IF NOT EXISTS holdfast.copied (tenant text COLLATE "C", path text COLLATE "C", PRIMARY KEY (tenant, path));
ALTER TABLE holdfast.copied ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS of_the_tenant ON holdfast.copied;
CREATE POLICY of_the_tenant ON holdfast.copied USING (tenant = current_setting('holdfast.tenant', true));
GRANT SELECT, INSERT ON holdfast.copied TO holdfast_writer;

-- Wait for writes to the old tables, and let programs that are still connected make no others, neither directly nor by
-- the functions of schema 9 and older.
LOCK TABLE holdfast.files, holdfast.pieces, holdfast.tokens IN SHARE MODE;
REVOKE INSERT, UPDATE, DELETE ON holdfast.files, holdfast.pieces, holdfast.tokens FROM holdfast_writer;
DO $$ DECLARE
    writing regprocedure;
BEGIN
    FOR writing IN SELECT oid FROM pg_proc
        WHERE pronamespace = 'holdfast'::regnamespace AND proname ~ '^(append|append_all|make)_[0-9]+$'
    LOOP
        EXECUTE format('DROP FUNCTION %s', writing);
    END LOOP;
END $$;
