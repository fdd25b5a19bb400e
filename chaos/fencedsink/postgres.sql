-- The newest fence that this database has seen of each key, as the text of Event.Fence.
CREATE TABLE IF NOT EXISTS fence (
	key   text PRIMARY KEY,
	fence text COLLATE "C" NOT NULL
);
-- Whatever your handlers write. Here: what they did.
CREATE TABLE IF NOT EXISTS effects (
	seq   bigserial PRIMARY KEY,
	key   text      NOT NULL,
	fence text      NOT NULL,
	event text      NOT NULL
);
