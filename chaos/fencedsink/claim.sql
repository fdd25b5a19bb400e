-- $1 key, $2 fence. One row: go on. No row: a later delivery was here, stop.
INSERT INTO fence AS f (key, fence) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET fence = EXCLUDED.fence WHERE f.fence <= EXCLUDED.fence
