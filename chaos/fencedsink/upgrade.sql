-- Once, before the first application that writes fences starts. An existing row has no fence
-- yet: until it has one, only its token counts, as if it were of turn 0.
ALTER TABLE fence ADD COLUMN IF NOT EXISTS fence text COLLATE "C" NOT NULL DEFAULT '';
