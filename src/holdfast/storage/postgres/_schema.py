"""The tables of the vault, and what every table of tenants needs.

Every table is keyed by tenant first, partitioned by it, and guarded by a policy that shows the rows of the tenant that
the transaction names, and none to whoever names nobody. Partitions have no policy at all: nothing is seen through them.
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
    """Return what every table of tenants needs: partitions, the policy, the rights of the roles."""
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


def _appending(number: int) -> str:
    """Return what adds lines to a log of one partition in one message, if the log is as the caller knows it.

    A plan for a whole table locks every partition of it, each time; so this one works on its partition. It does that
    with the owner's rights, to whom a partition shows the rows of the tenant that is named, as the table does to all.
    """
    files, pieces = (f"holdfast.{table}_{number:02d}" for table in ("files", "pieces"))
    policies = "".join(
        f"CREATE POLICY of_the_tenant ON {table} TO {OWNER}"
        " USING (tenant = current_setting('holdfast.tenant', true));\n"
        for table in (files, pieces)
    )
    name = f"holdfast.append_{number:02d}"
    return f"""
{policies}
CREATE FUNCTION {name}(
    of_tenant text, at_path text, known_inode bigint, known_size bigint, more bytea, new_op uuid, by_writer text,
    lock_milliseconds text, durability text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('holdfast.tenant', of_tenant, true), set_config('lock_timeout', lock_milliseconds, true),
        set_config('client_min_messages', 'warning', true);
    IF durability <> '' THEN PERFORM set_config('synchronous_commit', durability, true); END IF;
    UPDATE {files} SET size = size + length(more), op = new_op, writer = by_writer, login = session_user,
        changed = clock_timestamp()
    WHERE tenant = of_tenant AND path = at_path AND inode = known_inode AND size = known_size AND log AND NOT torn;
    IF NOT FOUND THEN RETURN false; END IF;
    INSERT INTO {pieces} (tenant, inode, start, data, op, writer)
    VALUES (of_tenant, known_inode, known_size, more, new_op, by_writer);
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION {name} FROM PUBLIC;
GRANT EXECUTE ON FUNCTION {name} TO {WRITER};
"""


def _appending_all(number: int) -> str:
    """Return what adds lines of several writers to a log in one message, if the log is as the caller knows it."""
    files, pieces, name = (f"holdfast.{start}_{number:02d}" for start in ("files", "pieces", "append_all"))
    return f"""
CREATE FUNCTION {name}(
    of_tenant text, at_path text, known_inode bigint, known_size bigint, starts bigint[], lines bytea[], ops uuid[],
    writers text[], lock_milliseconds text, durability text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last integer := cardinality(lines);
BEGIN
    PERFORM set_config('holdfast.tenant', of_tenant, true), set_config('lock_timeout', lock_milliseconds, true),
        set_config('client_min_messages', 'warning', true);
    IF durability <> '' THEN PERFORM set_config('synchronous_commit', durability, true); END IF;
    UPDATE {files} SET size = starts[last] + length(lines[last]), op = ops[last], writer = writers[last],
        login = session_user, changed = clock_timestamp()
    WHERE tenant = of_tenant AND path = at_path AND inode = known_inode AND size = known_size AND log AND NOT torn;
    IF NOT FOUND THEN RETURN false; END IF;
    INSERT INTO {pieces} (tenant, inode, start, data, op, writer)
    SELECT of_tenant, known_inode, line.start, line.data, line.op, line.writer
    FROM unnest(starts, lines, ops, writers) AS line (start, data, op, writer);
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION {name} FROM PUBLIC;
GRANT EXECUTE ON FUNCTION {name} TO {WRITER};
"""


def _making(number: int) -> str:
    """Return what puts a document where nothing is in one message, unless something stands in its way.

    What it looks at is in one partition, as above; it adds to the whole table, whose triggers note what came.
    """
    files, name = f"holdfast.files_{number:02d}", f"holdfast.make_{number:02d}"
    return f"""
CREATE FUNCTION {name}(
    of_tenant text, at_path text, above text[], announced bigint[], new_inode bigint, is_torn boolean, new_version text,
    content bytea, new_op uuid, by_writer text, lock_milliseconds text, durability text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    first text := at_path || '/';
    beyond text := at_path || '0';
BEGIN
    PERFORM set_config('holdfast.tenant', of_tenant, true), set_config('lock_timeout', lock_milliseconds, true),
        set_config('client_min_messages', 'warning', true);
    IF durability <> '' THEN PERFORM set_config('synchronous_commit', durability, true); END IF;
    PERFORM CASE WHEN place < cardinality(announced) THEN pg_advisory_xact_lock_shared(announced[place])
        ELSE pg_advisory_xact_lock(announced[place]) END FROM generate_subscripts(announced, 1) AS place;
    IF EXISTS (SELECT FROM {files} WHERE tenant = of_tenant AND path = ANY(above))
        OR EXISTS (SELECT FROM {files} WHERE tenant = of_tenant AND path > first AND path < beyond)
    THEN RETURN false; END IF;
    INSERT INTO holdfast.files (tenant, path, inode, size, log, torn, version, data, op, writer)
    VALUES (of_tenant, at_path, new_inode, length(content), false, is_torn, new_version, content, new_op, by_writer)
    ON CONFLICT (tenant, path) DO NOTHING;
    RETURN FOUND;
END $$;
REVOKE ALL ON FUNCTION {name} FROM PUBLIC;
GRANT EXECUTE ON FUNCTION {name} TO {WRITER};
"""


VAULT = _MIGRATIONS + _FILES + tenanted("files", room=80) + _PIECES + tenanted("pieces")
APPENDING = "".join(_appending(number) for number in range(PARTITIONS))
APPENDING_ALL = "".join(_appending_all(number) for number in range(PARTITIONS))
MAKING = "".join(_making(number) for number in range(PARTITIONS))
TOKENS = _TOKENS + tenanted("tokens")
