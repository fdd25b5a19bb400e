-- $1 key, $2 fencing token, $3 event. One row: written. No row: refused, nothing is written.
WITH current AS (
	INSERT INTO fence AS f (key, token) VALUES ($1, $2)
	ON CONFLICT (key) DO UPDATE SET token = EXCLUDED.token WHERE f.token <= EXCLUDED.token
	RETURNING key, token
)
INSERT INTO effects (key, token, event) SELECT key, token, $3 FROM current
