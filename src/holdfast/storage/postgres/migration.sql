-- Before the tables of schema 10 and older are copied: wait for writes to them, and let programs that are still
-- connected make no others, neither directly nor by the functions of schema 9 and older.
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
