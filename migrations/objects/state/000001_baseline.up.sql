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
) WITH (fillfactor = 70);
CREATE INDEX blobs_to_sweep ON objects.blobs (changed_at) WHERE state <> 'live';

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
  removed_with  bigint,                               -- and with which token
  removed_at    timestamptz
);
CREATE SEQUENCE objects.kept_order;
-- Also of writes without an invocation id: the audit looks there. NULLs are distinct.
CREATE UNIQUE INDEX versions_once ON objects.versions (bucket, key, invocation_id);
CREATE INDEX versions_kept ON objects.versions (bucket, key, kept_order DESC) WHERE kept_order IS NOT NULL;
CREATE INDEX versions_of_origin ON objects.versions (origin) WHERE origin IS NOT NULL;
CREATE INDEX deletions_to_forget ON objects.versions (created_at) WHERE deletion AND kept_order IS NULL;

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

CREATE TABLE objects.parts (
  upload             uuid NOT NULL REFERENCES objects.uploads ON DELETE CASCADE,
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
CREATE UNIQUE INDEX taggings_once ON objects.taggings (bucket, key, invocation_id) WHERE invocation_id IS NOT NULL;

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
  since    timestamptz NOT NULL DEFAULT '-infinity'      -- and since when; see objects.ages_since
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

-- Says what is applied, in the same transaction: migrating again after an interruption goes by it.
COMMENT ON SCHEMA objects IS 'fencegate objects state 1';
