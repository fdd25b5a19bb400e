-- When no application writes tokens alone any more.
UPDATE fence SET fence = greatest(fence, lpad(token::text, 19, '0') || '.' || repeat('0', 20) COLLATE "C");
ALTER TABLE fence DROP COLUMN token;
