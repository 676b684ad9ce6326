SET LOCAL search_path = pg_catalog, pg_temp;
-- Tables of the schema `objects`: pointers to objects, and all that belongs to them. What they mean is said at the top of
-- code/write.sql, versions.sql, publish.sql and sweep.sql. Nobody writes these tables but the functions there.
CREATE SCHEMA objects AUTHORIZATION fence_owner;
SET ROLE fence_owner;
GRANT USAGE ON SCHEMA objects TO fence_gateway;

CREATE TABLE objects.buckets (
  name       text COLLATE "C" PRIMARY KEY,
  depth      integer NOT NULL CHECK (depth >= -1),    -- which resource a key's write needs; see objects.resource_of
  created_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
  -- What becomes of a version that is no longer current: the keep_count newest of a key are kept, or all for keep_age; both
  -- NULL: all, for ever. 0, the default: none.
  keep_count integer DEFAULT 0 CHECK (keep_count >= 0),
  keep_age   interval CHECK (keep_age > '0'),
  -- For how long an object can be neither overwritten nor deleted, from its writing on; NULL: not at all. See code/writeonce.sql.
  retention  interval CHECK (retention > '0'),
  mode       text NOT NULL DEFAULT 'lease' CHECK (mode IN ('lease', 'monotone', 'none')),
  CHECK (keep_count IS NULL OR keep_age IS NULL)
);

CREATE TABLE objects.prefix_rules (
  bucket text COLLATE "C" NOT NULL REFERENCES objects.buckets ON DELETE CASCADE,
  prefix text COLLATE "C" NOT NULL CHECK (prefix <> ''),
  depth  integer NOT NULL CHECK (depth >= -1),
  mode   text NOT NULL CHECK (mode IN ('lease', 'monotone', 'none')),
  PRIMARY KEY (bucket, prefix)
);

-- Documents that root keeps with a bucket: what browsers of other origins may do, and tags. The gateway checks a document
-- before it stores it, and reads it whole.
CREATE TABLE objects.bucket_documents (
  bucket   text COLLATE "C" NOT NULL REFERENCES objects.buckets ON DELETE CASCADE,
  kind     text NOT NULL CHECK (kind IN ('cors', 'tagging')),
  document text NOT NULL CHECK (octet_length(document) BETWEEN 1 AND 65536),
  PRIMARY KEY (bucket, kind)
);

CREATE TABLE objects.blobs (
  id         uuid PRIMARY KEY,
  state      text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'live', 'superseded', 'condemned')),
  changed_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
  swept_at   timestamptz,   -- when its bytes were last deleted
  tried_at   timestamptz,   -- when that was last tried, also in vain
  version    uuid           -- the origin of the versions that list it
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
-- For the sweep: each statement of code/sweep.sql reads one of these in its order, and no more rows than it returns. Each
-- overwrite leaves several dead rows at their beginning: a fifth of the table would be too many, hence the scale factor.
--
-- An upload finds its pending blob by its id. Few blobs are pending when statistics are gathered, so to PostgreSQL an index of them
-- would look as good; it is full of dead rows. changed_at > '-infinity' is true, and keeps such statements from that index.
CREATE INDEX blobs_to_condemn ON objects.blobs (state, changed_at) WHERE state IN ('pending', 'superseded') AND changed_at > '-infinity';
CREATE INDEX blobs_to_delete ON objects.blobs (tried_at NULLS FIRST, changed_at)
  WHERE state = 'condemned' AND (swept_at = tried_at) IS NOT TRUE;   -- never tried, or the last time in vain
CREATE INDEX blobs_to_delete_again ON objects.blobs (swept_at) WHERE state = 'condemned' AND (swept_at = tried_at) IS TRUE;

-- One row for each accepted write, deletions included (a deletion lists no blob). Rows outlive their blobs: they answer which
-- token wrote what, and they hold the invocation ids by which a late first attempt is recognised.
CREATE TABLE objects.versions (
  id            uuid PRIMARY KEY,
  bucket        text COLLATE "C" NOT NULL,
  key           text COLLATE "C" NOT NULL,
  deletion      boolean NOT NULL DEFAULT false,
  blobs         uuid[] NOT NULL,                      -- in the order of their bytes
  blob_sizes    bigint[] NOT NULL,
  size          bigint NOT NULL,
  etag          text NOT NULL,                        -- without quotes
  attributes    jsonb NOT NULL DEFAULT '{}',          -- content type, metadata, checksums: what a read gives back
  resource      text NOT NULL,
  token         bigint NOT NULL,
  invocation_id text,                                 -- amz-sdk-invocation-id: the same for each attempt of one request
  created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  holder        text NOT NULL DEFAULT '',             -- who held the lease, as the fence recorded it
  origin        uuid,                                 -- of a restored version: where its blobs come from
  kept_order    bigint,                               -- rises with each version of the bucket that stops being current
  kept_at       timestamptz,
  removed_by    text,                                 -- who removed this version by its id
  removed_under text,                                 -- under a grant of which resource
  removed_with  bigint,                               -- and with which token
  removed_at    timestamptz
);
CREATE SEQUENCE objects.kept_order;
-- Also of writes without an invocation id: the audit looks there. NULLs are distinct.
CREATE UNIQUE INDEX versions_once ON objects.versions (bucket, key, invocation_id);
CREATE INDEX versions_kept ON objects.versions (bucket, key, kept_order DESC) WHERE kept_order IS NOT NULL;
CREATE INDEX versions_of_origin ON objects.versions (origin) WHERE origin IS NOT NULL;
CREATE INDEX deletions_to_forget ON objects.versions (created_at) WHERE deletion AND kept_order IS NULL;

-- Versions whose bytes are gone, and since when; those that share their blobs have the same origin, which is what is listed. The
-- sweep forgets them later; see code/sweep.sql.
CREATE TABLE objects.retired (
  version uuid PRIMARY KEY,
  since   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX retired_in_order ON objects.retired (since);

-- The current version of each key. Listing reads only this table.
CREATE TABLE objects.pointers (
  bucket      text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL,
  version     uuid NOT NULL,
  size        bigint NOT NULL,
  etag        text NOT NULL,
  modified_at timestamptz NOT NULL,
  PRIMARY KEY (bucket, key)
) WITH (fillfactor = 80);

CREATE TABLE objects.uploads (
  id         uuid PRIMARY KEY,
  bucket     text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  attributes jsonb NOT NULL,
  resource   text NOT NULL,          -- the grant that began it; each later step presents its own
  token      bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE INDEX uploads_in_order ON objects.uploads (bucket, key, id);
CREATE INDEX uploads_to_abort ON objects.uploads (created_at);

-- Without a foreign key: each part that is added would lock its upload's row, and two at a time make a multixact. Whoever removes
-- an upload removes its parts.
CREATE TABLE objects.parts (
  upload             uuid NOT NULL,
  number             integer NOT NULL CHECK (number BETWEEN 1 AND 10000),
  blob               uuid NOT NULL UNIQUE,     -- the sweep leaves it alone as long as it is listed here
  size               bigint NOT NULL,
  etag               text NOT NULL,
  checksum_algorithm text NOT NULL,
  checksum           text NOT NULL,
  changed_at         timestamptz NOT NULL DEFAULT pg_catalog.now(),
  PRIMARY KEY (upload, number)
);

-- Changes of tags, each with its token; see code/tags.sql.
CREATE TABLE objects.taggings (
  id            uuid PRIMARY KEY,
  version       uuid NOT NULL REFERENCES objects.versions ON DELETE CASCADE,
  bucket        text COLLATE "C" NOT NULL,
  key           text COLLATE "C" NOT NULL,
  tags          jsonb NOT NULL,
  resource      text NOT NULL,
  token         bigint NOT NULL,
  invocation_id text,
  created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX taggings_of_version ON objects.taggings (version);
CREATE INDEX taggings_to_forget ON objects.taggings (created_at);
CREATE UNIQUE INDEX taggings_once ON objects.taggings (bucket, key, invocation_id) WHERE invocation_id IS NOT NULL;

-- Requests that were carried out and leave no row of their own: removals of versions, multipart uploads that were begun or aborted,
-- their parts. A request that is repeated finds its answer here; see code/attempts.sql.
CREATE TABLE objects.attempts (
  bucket        text COLLATE "C" NOT NULL,
  key           text COLLATE "C" NOT NULL,
  invocation_id text NOT NULL,
  what          text NOT NULL,               -- a request may remove several versions of a key
  answer        jsonb NOT NULL,
  created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  PRIMARY KEY (bucket, key, invocation_id, what)
);
CREATE INDEX attempts_to_forget ON objects.attempts (created_at);

-- Uploads that wait for a publication; see code/publish.sql.
CREATE TABLE objects.stages (
  id            uuid PRIMARY KEY,                    -- becomes the version's
  bucket        text COLLATE "C" NOT NULL,
  key           text COLLATE "C" NOT NULL,
  blob          uuid NOT NULL UNIQUE REFERENCES objects.blobs ON DELETE CASCADE,   -- the first one: the row goes with its tombstone
  blobs         uuid[] NOT NULL,                     -- in the order of their bytes
  blob_sizes    bigint[] NOT NULL,
  etag          text NOT NULL,
  attributes    jsonb NOT NULL,
  resource      text NOT NULL,                       -- the grant that staged it, and that alone publishes it; '' and 0: the rule asked for none
  token         bigint NOT NULL,
  if_match      text,                                -- the upload's conditions, judged when it is published
  if_none_match boolean NOT NULL,
  created_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX stages_in_order ON objects.stages (bucket, key, id);

-- Which installation this is, for the mark that is kept beside its blobs: two databases must not sweep one store, for each would
-- take the other's blobs for leftovers. The row is copied with the database, so the mark names the server and the database, too.
CREATE TABLE objects.installation (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  id       uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
  history  text,                                         -- fence.identity's, in which ages count,
  since    timestamptz NOT NULL DEFAULT '-infinity',     -- and since when; see objects.ages_since
  grace    interval CHECK (grace >= '0')                 -- of the sweep, see objects.grace_for; NULL: no sweep has declared one
);

-- The history is what fence.identity says. That function is code, which state must not call.
DO $$
DECLARE
  system text := '';
BEGIN
  BEGIN
    system := (SELECT c.system_identifier::text FROM pg_catalog.pg_control_system() c);
  EXCEPTION WHEN insufficient_privilege THEN
    NULL;
  END;
  INSERT INTO objects.installation (history)
  VALUES (pg_catalog.format('%s/%s/%s', system,
    ('x' || pg_catalog.lpad(pg_catalog."left"(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8), 16, '0'))::bit(64)::bigint,
    'fence.resources'::pg_catalog.regclass::oid));
END $$;

GRANT SELECT ON objects.buckets, objects.prefix_rules, objects.bucket_documents, objects.blobs, objects.versions, objects.pointers,
  objects.uploads, objects.parts, objects.taggings, objects.stages TO fence_gateway;

RESET ROLE;

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it. The hash is that of the text
-- above: make code-hash.
COMMENT ON SCHEMA objects IS 'fencegate objects state 1 8248e4b9eb9e';
