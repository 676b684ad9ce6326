-- What a run is judged by: the rows that clients write, and the order in which rows and objects took their values, written by
-- triggers of the test's own in the very transaction that changes them. A register's row is locked while its trigger runs, so
-- seq has the order of each register; of two registers it says nothing.
CREATE SCHEMA judged;

-- One register for each resource: "row:" || resource. Protected per row.
CREATE TABLE judged.registers (
  resource text COLLATE "C" PRIMARY KEY,
  value    text NOT NULL DEFAULT '',   -- the ID of the write that set it
  token    bigint NOT NULL DEFAULT 0   -- the token that its writer meant to write with
);
SELECT fence.protect('judged.registers', per_row => 'resource');
GRANT SELECT, INSERT, UPDATE, DELETE ON judged.registers TO fence_writer;
GRANT USAGE ON SCHEMA judged TO fence_writer, fence_gateway;

CREATE TABLE judged.effects (
  seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  register  text NOT NULL,
  value     text NOT NULL,             -- the ID of the write; '' of an object that is deleted
  overwrote text NOT NULL,             -- the value before it
  resource  text NOT NULL,
  token     bigint NOT NULL,
  version   uuid,                      -- of an object
  lsn       pg_lsn NOT NULL DEFAULT pg_current_wal_insert_lsn(),
  wall      bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1e9)::bigint   -- when the trigger ran
);
CREATE INDEX effects_of_version ON judged.effects (version);

CREATE FUNCTION judged.row_set() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO judged.effects (register, value, overwrote, resource, token)
  VALUES ('row:' || NEW.resource, NEW.value, OLD.value, NEW.resource, NEW.token);
  RETURN NULL;
END $$;
CREATE TRIGGER judged AFTER UPDATE ON judged.registers FOR EACH ROW EXECUTE FUNCTION judged.row_set();
ALTER TABLE judged.registers ENABLE ALWAYS TRIGGER judged;

-- An object's value is its metadata "op"; its token is the one that the catalogue recorded for its version.
CREATE FUNCTION judged.file_set() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made objects.versions;
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.version = OLD.version THEN
    RETURN NULL;
  END IF;
  SELECT * INTO made FROM objects.versions v WHERE v.id = NEW.version;
  INSERT INTO judged.effects (register, value, overwrote, resource, token, version)
  VALUES ('file:' || COALESCE(NEW.bucket, OLD.bucket) || '/' || COALESCE(NEW.key, OLD.key),
    COALESCE(made.attributes #>> '{metadata,op}', CASE WHEN NEW.version IS NULL THEN '' ELSE 'unmarked ' || NEW.version END),
    COALESCE((SELECT e.value FROM judged.effects e WHERE e.version = OLD.version ORDER BY e.seq DESC LIMIT 1), ''),
    COALESCE(made.resource, ''), COALESCE(made.token, 0), NEW.version);
  RETURN NULL;
END $$;
CREATE TRIGGER judged AFTER INSERT OR UPDATE OR DELETE ON objects.pointers FOR EACH ROW EXECUTE FUNCTION judged.file_set();
ALTER TABLE objects.pointers ENABLE ALWAYS TRIGGER judged;
