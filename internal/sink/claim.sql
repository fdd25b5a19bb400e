-- $1 key, $2 fencing token. One row: go on. No row: a newer owner was here, stop.
INSERT INTO fence AS f (key, token) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET token = EXCLUDED.token WHERE f.token <= EXCLUDED.token
