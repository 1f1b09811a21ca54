"""The tables from which a program learns what others committed, and who wants to be woken (docs/decisions/022)."""

from __future__ import annotations

from holdfast.storage.postgres._schema import tenanted

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
