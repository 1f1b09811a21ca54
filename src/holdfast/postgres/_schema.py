"""The tables, as an ordered list of migrations. What was released here is never edited: a change is one more row.

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


MIGRATIONS = (
    ("documents and logs", _MIGRATIONS + _FILES + tenanted("files", room=80) + _PIECES + tenanted("pieces")),
    ("tokens", _TOKENS + tenanted("tokens")),
)
