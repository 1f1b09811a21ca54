-- The statements of a search, each after a line with its name. `search.py` fills in what is in braces; values are
-- `%(name)s`. OFFSET 0 and MATERIALIZED keep the planner from changing the order of the steps.

-- name: rarity
-- how many records there are and their words, our own and those of other programs, and how many contain each
-- word and phrase of a question. Rows that are not counted in `term` yet are counted here.
WITH known AS MATERIALIZED (SELECT s.records, s.length, s.upto FROM holdfast.stat s WHERE s.tenant = %(tenant)s),
recent AS MATERIALIZED (SELECT r.kind = 'transcript' AS other, r.length, r.words FROM holdfast.record r
    WHERE r.tenant = %(tenant)s AND r.xact >= (SELECT upto FROM known UNION ALL SELECT '0'::xid8 LIMIT 1)
        AND r.length > 0 AND r.live)
SELECT
    ARRAY(SELECT coalesce((SELECT known.records[n] FROM known), 0) + (SELECT count(*) FROM recent WHERE other = (n = 2))
          FROM generate_series(1, 2) AS n),
    ARRAY(SELECT coalesce((SELECT known.length[n] FROM known), 0)
               + coalesce((SELECT sum(recent.length) FROM recent WHERE other = (n = 2)), 0)::bigint
          FROM generate_series(1, 2) AS n),
    ARRAY(SELECT coalesce(t.records, 0) + (SELECT count(*) FROM recent WHERE recent.words @@ w.query)
          FROM unnest(%(terms)s::text[], %(queries)s::tsquery[]) WITH ORDINALITY AS w (term, query, n)
          LEFT JOIN holdfast.term t ON t.tenant = %(tenant)s AND t.term = w.term ORDER BY w.n),
    ARRAY(SELECT (SELECT count(*) FROM (SELECT FROM holdfast.searched r WHERE r.words @@ p.query AND r.live
                                        LIMIT %(most)s::int) AS few)
          FROM unnest(%(phrases)s::tsquery[]) WITH ORDINALITY AS p (query, n) ORDER BY p.n),
    (SELECT count(*) FROM recent)

-- name: rarity_in_scope
-- the same for one scope, of which `term` knows nothing
SELECT
    ARRAY(SELECT count(r.id) FROM generate_series(0, 1) AS n LEFT JOIN holdfast.searched r
          ON r.live AND r.length > 0 AND (r.kind = 'transcript') = (n = 1) GROUP BY n ORDER BY n),
    ARRAY(SELECT coalesce(sum(r.length), 0)::bigint FROM generate_series(0, 1) AS n LEFT JOIN holdfast.searched r
          ON r.live AND r.length > 0 AND (r.kind = 'transcript') = (n = 1) GROUP BY n ORDER BY n),
    ARRAY(SELECT count(r.id) FROM unnest(%(queries)s::tsquery[]) WITH ORDINALITY AS w (query, n)
          LEFT JOIN holdfast.searched r ON r.words @@ w.query AND r.live GROUP BY w.n ORDER BY w.n),
    ARRAY(SELECT count(r.id) FROM unnest(%(phrases)s::tsquery[]) WITH ORDINALITY AS p (query, n)
          LEFT JOIN holdfast.searched r ON r.words @@ p.query AND r.live GROUP BY p.n ORDER BY p.n),
    0

-- name: candidates
-- the best by words, the nearest by meaning, their neighbours, and all that ranking needs
WITH hit AS MATERIALIZED (  -- the best by words
    SELECT s.id, s.path, s.session, s.kind FROM (
        SELECT r.*, 1.2 * (0.25 + 0.75 * r.length / %(average)s::float8) AS k, {columns}
        FROM (SELECT r.id, r.path, r.session, r.kind, r.length, {words} AS words
              FROM (SELECT * FROM holdfast.searched r WHERE r.words @@ %(asked)s::tsquery OFFSET 0) AS r
              WHERE {condition} OFFSET 0) AS r OFFSET 0) AS s
    ORDER BY {score} DESC, s.id DESC LIMIT %(many)s::int
), near AS MATERIALIZED (  -- the nearest by meaning
    {near}
), best AS MATERIALIZED (  -- with the two records before and after each in the same session
    SELECT b.id,
        CASE WHEN b.kind = ANY (%(ordered)s::text[]) THEN ARRAY(
            SELECT o.id FROM holdfast.record o WHERE o.tenant = %(tenant)s AND o.session = b.session AND o.session <> ''
                AND o.path = b.path AND o.live AND NOT o.hidden AND o.id < b.id ORDER BY o.id DESC LIMIT 2) END AS before,
        CASE WHEN b.kind = ANY (%(ordered)s::text[]) THEN ARRAY(
            SELECT o.id FROM holdfast.record o WHERE o.tenant = %(tenant)s AND o.session = b.session AND o.session <> ''
                AND o.path = b.path AND o.live AND NOT o.hidden AND o.id > b.id ORDER BY o.id LIMIT 2) END AS after
    FROM (SELECT * FROM hit UNION SELECT * FROM near) AS b
), pool AS MATERIALIZED (
    SELECT DISTINCT ON (id) * FROM (SELECT * FROM best
        UNION ALL SELECT unnest(before), NULL, NULL FROM best
        UNION ALL SELECT unnest(after), NULL, NULL FROM best) AS p
    ORDER BY id, before NULLS LAST
)
SELECT r.session, r.author, r.agent, r.priority, r.length, ARRAY[{ranks}]::float4[], ({similarity})::float8, ({condition}),
    p.before::text[], p.after::text[], coalesce(r.key, ''), r.small, {content}
FROM pool p CROSS JOIN LATERAL (
    SELECT r.*, octet_length(coalesce(r.text, '')) + octet_length(coalesce(r.more::text, ''))
        + coalesce(octet_length(r.raw), 0) < 4000 AS small
    FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.id = p.id OFFSET 0) AS r

-- name: near
-- the 30 most similar records, of the 200 with the nearest codes that pass the filter: the nearest 2,000 codes are gone
-- through in their order until so many pass
SELECT c.id, c.path, c.session, c.kind FROM (
    SELECT r.id, r.path, r.session, r.kind FROM (
        SELECT e.id FROM holdfast.compared e WHERE e.model = %(model)s
        ORDER BY holdfast.distance(e.code, %(code)s::bit(384)){scan} LIMIT 2000) AS e
    JOIN LATERAL (SELECT * FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.id = e.id AND r.length > 0
        OFFSET 0) AS r ON true
    WHERE {condition} LIMIT 200) AS c
JOIN LATERAL (SELECT holdfast.similarity(e.vector, %(vector)s) AS similarity FROM holdfast.embedding e
    WHERE e.tenant = %(tenant)s AND e.id = c.id AND e.model = %(model)s OFFSET 0) AS e ON true
WHERE e.similarity >= %(near)s::float8 ORDER BY e.similarity DESC LIMIT 30

-- name: similarity
-- of one candidate to the question
SELECT holdfast.similarity(e.vector, %(vector)s) FROM holdfast.embedding e
WHERE e.tenant = %(tenant)s AND e.model = %(model)s AND e.id = p.id

-- name: by_graph
-- settings by which `near` uses the graph (HNSW)
SELECT set_config('hnsw.ef_search', '200', true), set_config('hnsw.iterative_scan', 'relaxed_order', true),
    set_config('enable_sort', 'off', true)

-- name: missing
-- records without a vector, and up to which transaction rows are seen. OFFSET 0 keeps a look-up by key from
-- becoming a join, which the planner gets wrong right after many rows were added.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text, ARRAY(SELECT r.id::text FROM holdfast.record r
    WHERE r.tenant = %(tenant)s AND r.live AND r.kind || '' = ANY(%(kinds)s::text[]) AND r.xact >= (
        SELECT d.upto FROM holdfast.embedded d
        WHERE d.tenant = %(tenant)s AND d.model = %(model)s AND NOT %(every)s::boolean
        UNION ALL SELECT '0'::xid8 LIMIT 1)
    AND NOT EXISTS (SELECT FROM holdfast.embedding e
        WHERE e.tenant = %(tenant)s AND e.id = r.id AND e.model = %(model)s OFFSET 0) LIMIT %(most)s::int)

-- name: add_vectors
INSERT INTO holdfast.embedding (tenant, model, id, code, vector)
SELECT %(tenant)s, %(model)s, v.id, v.code::bit(384), holdfast.vector(v.vector)
FROM unnest(%(ids)s::uuid[], %(codes)s::text[], %(vectors)s::text[]) AS v (id, code, vector)
WHERE EXISTS (SELECT FROM holdfast.record r WHERE r.tenant = %(tenant)s AND r.id = v.id OFFSET 0) ON CONFLICT DO NOTHING

-- name: note_vectors
-- all rows of earlier transactions have a vector
INSERT INTO holdfast.embedded AS d (tenant, model, upto) VALUES (%(tenant)s, %(model)s, %(edge)s::xid8)
ON CONFLICT (tenant, model) DO UPDATE SET upto = greatest(d.upto, excluded.upto)

-- name: tidy_vectors
-- remove those of rows that are no longer current
DELETE FROM holdfast.embedding e WHERE e.tenant = %(tenant)s AND NOT EXISTS (SELECT FROM holdfast.record r
    WHERE r.tenant = %(tenant)s AND r.id = e.id AND r.live OFFSET 0)

-- name: vectors
-- their number and bytes, and whether there is a graph
SELECT count(*), coalesce(sum(pg_column_size(e.vector) + pg_column_size(e.code) + 60), 0)::bigint,
    to_regclass('holdfast.embedding_code') IS NOT NULL
FROM holdfast.embedding e WHERE e.tenant = %(tenant)s AND e.model = %(model)s
