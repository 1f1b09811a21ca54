"""The tables of vectors, which need no extension, and what compares them, which does (docs/decisions/023)."""

from __future__ import annotations

from holdfast.storage.postgres._schema import READER, WRITER, tenanted

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
"""What compares two codes. It is bound to the extension when it is made, wherever that stands, and goes with it."""

VECTORS = _VECTORS + tenanted("vector_sets") + tenanted("vector_codes") + tenanted("vectors")
