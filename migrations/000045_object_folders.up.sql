SET ROLE fence_owner;

-- As before, faster. The keys of a small folder (a common prefix) are read and passed over, which costs less than a look-up of what
-- comes after the folder; only the rest of a large one is jumped over. And no statement is compiled (jit): from some 25 million keys
-- on each looks dear enough for that, though it reads a few rows, and would be compiled anew each time.
CREATE OR REPLACE FUNCTION objects.list(p_bucket text, p_prefix text, p_delimiter text, p_after text, p_limit integer)
RETURNS TABLE (entry text, is_prefix boolean, size bigint, etag text, modified_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Whatever the statistics say: in the primary key's order, so that a jump costs one descent.
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
  patience constant integer := 8;   -- keys of a folder that are passed over; a FOR loop fetches ten rows at first, anyway
  rest constant integer := length(p_prefix) + 1;   -- where the part after the prefix begins
  lo text COLLATE "C" := p_prefix;
  k text COLLATE "C";
  r record;
  left_over integer := p_limit;
  before integer;
  passed integer;
  cut integer := strpos(substr(p_after, rest), p_delimiter);
BEGIN
  IF p_after COLLATE "C" >= p_prefix AND p_after <> '' THEN
    lo := p_after || chr(1);   -- the least string above p_after: texts hold no NUL
    IF p_delimiter <> '' AND starts_with(p_after, p_prefix) AND cut > 0
       AND length(p_after) = length(p_prefix) + cut + length(p_delimiter) - 1 THEN
      lo := objects.prefix_end(p_after);   -- p_after is itself a common prefix
    END IF;
  END IF;
  WHILE left_over > 0 AND lo IS NOT NULL LOOP
    before := left_over;
    passed := 0;
    FOR r IN SELECT p.key, p.size, p.etag, p.modified_at FROM objects.pointers p
              WHERE p.bucket = p_bucket AND p.key >= lo ORDER BY p.key LOOP
      IF is_prefix AND starts_with(r.key, entry) THEN
        passed := passed + 1;
        EXIT WHEN passed = patience;
        CONTINUE;
      END IF;
      IF left_over = 0 OR NOT starts_with(r.key, p_prefix) THEN
        RETURN;
      END IF;
      left_over := left_over - 1;
      cut := CASE WHEN p_delimiter = '' THEN 0 ELSE strpos(substr(r.key, rest), p_delimiter) END;
      IF cut > 0 THEN
        entry := left(r.key, length(p_prefix) + cut + length(p_delimiter) - 1);
        is_prefix := true; size := NULL; etag := NULL; modified_at := NULL;
        passed := 0;
      ELSE
        entry := r.key; is_prefix := false; size := r.size; etag := r.etag; modified_at := r.modified_at;
      END IF;
      RETURN NEXT;
    END LOOP;
    EXIT WHEN passed < patience;   -- there are no more keys
    lo := objects.prefix_end(entry);
    CONTINUE WHEN before - left_over > 1;
    -- That was a large folder and nothing else. Others that follow it are taken for large ones, too; for some of them only, since
    -- they may be small.
    FOR i IN 1..least(left_over, 32) LOOP
      SELECT p.key INTO k FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key >= lo ORDER BY p.key LIMIT 1;
      cut := strpos(substr(k, rest), p_delimiter);
      EXIT WHEN k IS NULL OR cut = 0 OR NOT starts_with(k, p_prefix);
      left_over := left_over - 1;
      entry := left(k, length(p_prefix) + cut + length(p_delimiter) - 1);
      lo := objects.prefix_end(entry);
      RETURN NEXT;
    END LOOP;
  END LOOP;
END $$;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 45';
