-- The newest fencing token that this database has seen of each key.
CREATE TABLE IF NOT EXISTS fence (
	key   text   PRIMARY KEY,
	token bigint NOT NULL
);
-- Whatever your handlers write. Here: what they did.
CREATE TABLE IF NOT EXISTS effects (
	seq   bigserial PRIMARY KEY,
	key   text      NOT NULL,
	token bigint    NOT NULL,
	event text      NOT NULL
);
