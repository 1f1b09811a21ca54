-- The candidates for a question, in one statement. `search.py` fills in the names in braces.
-- OFFSET 0 and MATERIALIZED keep the planner from changing the order of the steps.
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
