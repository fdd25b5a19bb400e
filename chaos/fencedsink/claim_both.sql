-- $1 key, $2 fence, $3 token. One row: go on. No row: a later delivery was here, stop.
INSERT INTO fence AS f (key, fence, token) VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET fence = EXCLUDED.fence, token = EXCLUDED.token
WHERE f.fence <= EXCLUDED.fence AND f.token <= EXCLUDED.token
