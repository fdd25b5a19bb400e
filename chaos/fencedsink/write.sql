-- $1 key, $2 fence, $3 event. One row: written. No row: refused, nothing is written.
WITH current AS (
	INSERT INTO fence AS f (key, fence) VALUES ($1, $2)
	ON CONFLICT (key) DO UPDATE SET fence = EXCLUDED.fence WHERE f.fence <= EXCLUDED.fence
	RETURNING key, fence
)
INSERT INTO effects (key, fence, event) SELECT key, fence, $3 FROM current
