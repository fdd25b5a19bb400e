-- The newest fence that this database has seen of each key, as the text of Event.Fence.
CREATE TABLE IF NOT EXISTS fence (
	key   text PRIMARY KEY,
	fence text COLLATE "C" NOT NULL
);
-- The table that your handlers write to; here, a list of handled events.
CREATE TABLE IF NOT EXISTS effects (
	seq   bigserial PRIMARY KEY,
	key   text      NOT NULL,
	fence text      NOT NULL,
	event text      NOT NULL
);
