SET ROLE fence_owner;

CREATE OR REPLACE FUNCTION objects.list(p_bucket text, p_prefix text, p_delimiter text, p_after text, p_limit integer)
RETURNS TABLE (entry text, is_prefix boolean, size bigint, etag text, modified_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Whatever the statistics say: in the primary key's order, so that a jump costs one descent and reads no more than it shows.
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  lo text COLLATE "C" := p_prefix;
  r record;
  left_over integer := p_limit;
  cut integer := strpos(substr(p_after, length(p_prefix) + 1), p_delimiter);
  jumped boolean;
BEGIN
  IF p_after COLLATE "C" >= p_prefix AND p_after <> '' THEN
    lo := p_after || chr(1);   -- the least string above p_after: texts hold no NUL
    IF p_delimiter <> '' AND starts_with(p_after, p_prefix) AND cut > 0
       AND length(p_after) = length(p_prefix) + cut + length(p_delimiter) - 1 THEN
      lo := objects.prefix_end(p_after);   -- p_after is itself a common prefix
    END IF;
  END IF;
  WHILE left_over > 0 AND lo IS NOT NULL LOOP
    jumped := false;
    FOR r IN SELECT p.key, p.size, p.etag, p.modified_at FROM objects.pointers p
              WHERE p.bucket = p_bucket AND p.key >= lo ORDER BY p.key LIMIT left_over LOOP
      IF NOT starts_with(r.key, p_prefix) THEN
        RETURN;
      END IF;
      cut := CASE WHEN p_delimiter = '' THEN 0 ELSE strpos(substr(r.key, length(p_prefix) + 1), p_delimiter) END;
      left_over := left_over - 1;
      IF cut > 0 THEN
        entry := left(r.key, length(p_prefix) + cut + length(p_delimiter) - 1);
        is_prefix := true; size := NULL; etag := NULL; modified_at := NULL;
        lo := objects.prefix_end(entry);
        jumped := true;
        RETURN NEXT;
        EXIT;
      END IF;
      entry := r.key; is_prefix := false; size := r.size; etag := r.etag; modified_at := r.modified_at;
      RETURN NEXT;
    END LOOP;
    EXIT WHEN NOT jumped;
  END LOOP;
END $$;

RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate schema version 44';
