-- Lists of objects, versions and uploads, in pages. Each reads in an index's order, whatever the statistics say, and skips what
-- a delimiter folds into one entry.

-- Returns the least string above every string that starts with p, in the order of bytes; NULL if there is none. Outside UTF-8,
-- which character follows one beyond ASCII depends on the encoding: there it returns p itself. So a list that goes on from here
-- still leaves out what starts with p.
CREATE OR REPLACE FUNCTION objects.prefix_end(p text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  c integer;
BEGIN
  WHILE p <> '' LOOP
    IF pg_catalog.right(p, 1) >= pg_catalog.chr(127) COLLATE "C" AND pg_catalog.getdatabaseencoding() <> 'UTF8' THEN
      RETURN p;
    END IF;
    c := pg_catalog.ascii(pg_catalog.right(p, 1));
    p := pg_catalog.left(p, -1);
    IF c < 1114111 THEN
      RETURN p || pg_catalog.chr(CASE WHEN c = 55295 THEN 57344 ELSE c + 1 END);   -- over the surrogates
    END IF;
  END LOOP;
  RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION objects.prefix_end(text) FROM PUBLIC, fence_writer, fence_gateway;

-- Lists keys above p_after in the order of their bytes, at most p_limit entries. With a delimiter, all keys that share the part
-- up to the delimiter's first occurrence after the prefix are one entry, is_prefix.
--
-- The keys of a small folder (a common prefix) are read and skipped one by one, which costs less than a look-up of what follows
-- the folder; only the rest of a large folder is jumped over, unless its last character has no successor (prefix_end). No statement is compiled (jit): from some 25 million keys on each
-- exceeds jit's cost limit, though it reads a few rows, and would be compiled again each time.
CREATE OR REPLACE FUNCTION objects.list(p_bucket text, p_prefix text, p_delimiter text, p_after text, p_limit integer)
RETURNS TABLE (entry text, is_prefix boolean, size bigint, etag text, modified_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- In the primary key's order, whatever the statistics say, so that a jump costs one descent.
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
  patience constant integer := 8;   -- keys of a folder that are skipped one by one; a FOR loop first fetches ten rows anyway
  rest constant integer := length(p_prefix) + 1;   -- where the part after the prefix begins
  lo text COLLATE "C" := p_prefix;
  folder text;   -- the last one that lo jumps over
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
      folder := p_after;   -- p_after is itself a common prefix
      lo := objects.prefix_end(folder);
    END IF;
  END IF;
  WHILE left_over > 0 AND lo IS NOT NULL LOOP
    before := left_over;
    passed := 0;
    FOR r IN SELECT p.key, p.size, p.etag, p.modified_at FROM objects.pointers p
              WHERE p.bucket = p_bucket AND p.key >= lo AND starts_with(p.key, folder) IS NOT TRUE ORDER BY p.key LOOP
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
    folder := entry;
    lo := objects.prefix_end(folder);
    CONTINUE WHEN before - left_over > 1;
    -- The folder was a large one and nothing else. Its successors are treated as large ones, too; but only some of them, since
    -- they may be small.
    FOR i IN 1..least(left_over, 32) LOOP
      SELECT p.key INTO k FROM objects.pointers p
       WHERE p.bucket = p_bucket AND p.key >= lo AND starts_with(p.key, folder) IS NOT TRUE ORDER BY p.key LIMIT 1;
      cut := strpos(substr(k, rest), p_delimiter);
      EXIT WHEN k IS NULL OR cut = 0 OR NOT starts_with(k, p_prefix);
      left_over := left_over - 1;
      entry := left(k, length(p_prefix) + cut + length(p_delimiter) - 1);
      folder := entry;
      lo := objects.prefix_end(folder);
      RETURN NEXT;
    END LOOP;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION objects.list(text, text, text, text, integer) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.list(text, text, text, text, integer) TO fence_gateway;

-- Lists the uploads under way above (p_after_key, p_after_id) in the order of their keys' bytes and of their start, at most
-- p_limit entries; with a delimiter as in objects.list.
CREATE OR REPLACE FUNCTION objects.list_uploads(p_bucket text, p_prefix text, p_delimiter text, p_after_key text, p_after_id uuid, p_limit integer)
RETURNS TABLE (entry text, is_prefix boolean, id uuid, created_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  none constant uuid := '00000000-0000-0000-0000-000000000000';   -- below every id
  lo text COLLATE "C" := p_prefix;
  lo_id uuid := none;
  folder text;   -- the last one that lo jumps over
  r record;
  left_over integer := p_limit;
  cut integer := strpos(substr(p_after_key, length(p_prefix) + 1), p_delimiter);
  jumped boolean;
BEGIN
  IF p_after_key COLLATE "C" >= p_prefix AND p_after_key <> '' THEN
    lo := p_after_key;
    lo_id := p_after_id;
    IF p_delimiter <> '' AND starts_with(p_after_key, p_prefix) AND cut > 0 THEN
      -- Inside a common prefix, which was returned as one entry.
      folder := left(p_after_key, length(p_prefix) + cut + length(p_delimiter) - 1);
      lo := objects.prefix_end(folder);
      lo_id := none;
    END IF;
  END IF;
  WHILE left_over > 0 AND lo IS NOT NULL LOOP
    jumped := false;
    FOR r IN SELECT u.key, u.id, u.created_at FROM objects.uploads u
              WHERE u.bucket = p_bucket AND (u.key, u.id) > (lo, lo_id) AND starts_with(u.key, folder) IS NOT TRUE
              ORDER BY u.key, u.id LIMIT left_over LOOP
      IF NOT starts_with(r.key, p_prefix) THEN
        RETURN;
      END IF;
      cut := CASE WHEN p_delimiter = '' THEN 0 ELSE strpos(substr(r.key, length(p_prefix) + 1), p_delimiter) END;
      left_over := left_over - 1;
      IF cut > 0 THEN
        entry := left(r.key, length(p_prefix) + cut + length(p_delimiter) - 1);
        is_prefix := true; id := NULL; created_at := NULL;
        folder := entry;
        lo := objects.prefix_end(folder);
        lo_id := none;
        jumped := true;
        RETURN NEXT;
        EXIT;
      END IF;
      entry := r.key; is_prefix := false; id := r.id; created_at := r.created_at;
      RETURN NEXT;
    END LOOP;
    EXIT WHEN NOT jumped;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION objects.list_uploads(text, text, text, text, uuid, integer) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.list_uploads(text, text, text, text, uuid, integer) TO fence_gateway;

-- Lists versions in the order of their keys' bytes, of one key the newest first, from the entry after (p_after_key,
-- p_after_version), or if p_after_version is NULL from the key after p_after_key; with a delimiter as in objects.list.
CREATE OR REPLACE FUNCTION objects.list_versions(p_bucket text, p_prefix text, p_delimiter text, p_after_key text, p_after_version uuid, p_limit integer)
RETURNS TABLE (entry text, is_prefix boolean, id uuid, latest boolean, deletion boolean, size bigint, etag text, modified_at timestamptz,
               resource text, token bigint, holder text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  lo text COLLATE "C" := p_prefix;
  folder text;   -- the last one that lo jumps over
  k text COLLATE "C";
  cur uuid;
  below bigint;
  r record;
  left_over integer := p_limit;
  cut integer := strpos(substr(p_after_key, length(p_prefix) + 1), p_delimiter);
BEGIN
  IF p_after_key COLLATE "C" >= p_prefix AND p_after_key <> '' THEN
    folder := CASE WHEN p_delimiter <> '' AND starts_with(p_after_key, p_prefix) AND cut > 0
                   THEN left(p_after_key, length(p_prefix) + cut + length(p_delimiter) - 1) END;
    lo := CASE WHEN folder IS NOT NULL THEN objects.prefix_end(folder)
               WHEN p_after_version IS NULL THEN p_after_key || chr(1)   -- the least string above it
               ELSE p_after_key END;
  END IF;
  WHILE left_over > 0 AND lo IS NOT NULL LOOP
    SELECT min(n.key) INTO k FROM (
      (SELECT p.key FROM objects.pointers p
        WHERE p.bucket = p_bucket AND p.key >= lo AND starts_with(p.key, folder) IS NOT TRUE ORDER BY p.key LIMIT 1) UNION ALL
      (SELECT v.key FROM objects.versions v
        WHERE v.bucket = p_bucket AND v.key >= lo AND v.kept_order IS NOT NULL AND starts_with(v.key, folder) IS NOT TRUE
        ORDER BY v.key LIMIT 1)) n;
    EXIT WHEN k IS NULL OR NOT starts_with(k, p_prefix);
    cut := CASE WHEN p_delimiter = '' THEN 0 ELSE strpos(substr(k, length(p_prefix) + 1), p_delimiter) END;
    IF cut > 0 THEN
      entry := left(k, length(p_prefix) + cut + length(p_delimiter) - 1);
      is_prefix := true; id := NULL; latest := NULL; deletion := NULL; size := NULL; etag := NULL; modified_at := NULL;
      resource := NULL; token := NULL; holder := NULL;
      left_over := left_over - 1;
      RETURN NEXT;
      folder := entry;
      lo := objects.prefix_end(folder);
      CONTINUE;
    END IF;
    lo := k || chr(1);
    SELECT p.version INTO cur FROM objects.pointers p WHERE p.bucket = p_bucket AND p.key = k;
    below := NULL;
    IF k = p_after_key AND p_after_version IS NOT NULL THEN
      -- The position of a version that is gone is unknown: some entries may appear twice.
      below := CASE WHEN p_after_version = cur THEN 9223372036854775807
                    ELSE (SELECT v.kept_order FROM objects.versions v WHERE v.id = p_after_version) END;
    END IF;
    FOR r IN (SELECT v.*, true AS newest FROM objects.versions v WHERE v.id = cur AND below IS NULL) UNION ALL
             (SELECT v.*, cur IS NULL AND v.deletion AND below IS NULL AND row_number() OVER (ORDER BY v.kept_order DESC) = 1
                FROM objects.versions v
               WHERE v.bucket = p_bucket AND v.key = k AND v.kept_order IS NOT NULL AND (below IS NULL OR v.kept_order < below)
               ORDER BY v.kept_order DESC LIMIT left_over) LOOP
      EXIT WHEN left_over = 0;
      left_over := left_over - 1;
      entry := k; is_prefix := false; id := r.id; latest := r.newest; deletion := r.deletion; size := r.size; etag := r.etag;
      modified_at := r.created_at; resource := r.resource; token := r.token; holder := r.holder;
      RETURN NEXT;
    END LOOP;
  END LOOP;
END $$;
REVOKE ALL ON FUNCTION objects.list_versions(text, text, text, text, uuid, integer) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.list_versions(text, text, text, text, uuid, integer) TO fence_gateway;
