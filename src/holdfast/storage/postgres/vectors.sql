-- Vectors, for a database that has the extension pgvector; @vector@ is the schema of the extension.

DROP TABLE IF EXISTS holdfast.embedding, holdfast.embedded;  -- what is left when the extension was removed
CREATE TABLE holdfast.embedding (
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    model text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    code bit(384) NOT NULL,           -- the signs of its numbers
    vector @vector@.halfvec NOT NULL,
    PRIMARY KEY (tenant, id, model),
    FOREIGN KEY (tenant, id) REFERENCES holdfast.record ON DELETE CASCADE
);
ALTER TABLE holdfast.embedding ALTER code SET STORAGE PLAIN, ALTER vector SET STORAGE PLAIN;
CREATE TABLE holdfast.embedded (      -- rows of earlier transactions have their vectors
    tenant text COLLATE "C" NOT NULL CHECK (tenant <> ''),
    model text COLLATE "C" NOT NULL,
    upto xid8 NOT NULL,
    PRIMARY KEY (tenant, model)
);
CREATE OR REPLACE FUNCTION holdfast.distance(one bit, other bit) RETURNS double precision
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN one OPERATOR(@vector@.<~>) other;
CREATE OR REPLACE FUNCTION holdfast.similarity(one @vector@.halfvec, other text) RETURNS double precision
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN -(one OPERATOR(@vector@.<#>) other::@vector@.halfvec);
CREATE OR REPLACE FUNCTION holdfast.vector(given text) RETURNS @vector@.halfvec
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN given::@vector@.halfvec;

ALTER TABLE holdfast.embedding ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY of_the_tenant ON holdfast.embedding
    USING (tenant = current_setting('holdfast.tenant', true));
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.embedding TO holdfast_writer;
GRANT SELECT ON holdfast.embedding TO holdfast_reader;

ALTER TABLE holdfast.embedded ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY of_the_tenant ON holdfast.embedded
    USING (tenant = current_setting('holdfast.tenant', true));
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.embedded TO holdfast_writer;
GRANT SELECT ON holdfast.embedded TO holdfast_reader;

CREATE POLICY of_the_owner ON holdfast.embedding FOR SELECT TO holdfast_owner USING (true);
-- To compare many vectors: the tenant is looked up once, and not for each row.
CREATE VIEW holdfast.compared AS SELECT * FROM holdfast.embedding
    WHERE tenant = (SELECT current_setting('holdfast.tenant', true));
GRANT SELECT ON holdfast.compared TO holdfast_writer, holdfast_reader;
