-- What the migrations make, for reading and for comparing: it can't be run. The query is internal/catalogue/catalogue.sql;
-- PostgreSQL 15 wrote it. After a change: make schema

ROLE fence_gateway

ROLE fence_owner
  MEMBER OF pg_read_all_stats
  MEMBER OF pg_signal_backend

ROLE fence_protector

ROLE fence_writer

SCHEMA fence
  OWNER fence_owner
  GRANT USAGE TO PUBLIC
  COMMENT 'fencegate fence state 1 1a79ed4e0d65, code 31 ef13a461bb05'

TYPE fence.verdict AS (token bigint, state text, message text, detail text, hint text)
  OWNER fence_owner

SEQUENCE fence.protections AS integer START 1 INCREMENT 1 MINVALUE 1 MAXVALUE 2147483647 CACHE 1
  OWNER fence_owner

TABLE fence.arms
  resource text COLLATE "C" NOT NULL
  CONSTRAINT arms_pkey PRIMARY KEY (resource)
  CREATE UNIQUE INDEX arms_pkey ON fence.arms USING btree (resource)
  OWNER fence_owner

TABLE fence.beats WITH (fillfactor=10)
  only_row boolean NOT NULL DEFAULT true
  beats bigint NOT NULL
  CONSTRAINT beats_only_row_check CHECK (only_row)
  CONSTRAINT beats_pkey PRIMARY KEY (only_row)
  CREATE UNIQUE INDEX beats_pkey ON fence.beats USING btree (only_row)
  OWNER fence_owner

TABLE fence.epochs
  only_row boolean NOT NULL DEFAULT true
  epoch bigint NOT NULL
  CONSTRAINT epochs_epoch_check CHECK (((epoch >= 0) AND (epoch < 2097152)))
  CONSTRAINT epochs_only_row_check CHECK (only_row)
  CONSTRAINT epochs_pkey PRIMARY KEY (only_row)
  CREATE UNIQUE INDEX epochs_pkey ON fence.epochs USING btree (only_row)
  OWNER fence_owner

TABLE fence.floors WITH (fillfactor=50)
  bucket integer NOT NULL
  floor bigint NOT NULL
  CONSTRAINT floors_bucket_check CHECK (((bucket >= 0) AND (bucket <= 4095)))
  CONSTRAINT floors_floor_check CHECK ((floor > 0))
  CONSTRAINT floors_pkey PRIMARY KEY (bucket)
  CREATE UNIQUE INDEX floors_pkey ON fence.floors USING btree (bucket)
  OWNER fence_owner

TABLE fence.invalidations
  id uuid NOT NULL DEFAULT gen_random_uuid()
  identity text NOT NULL
  at timestamp with time zone NOT NULL DEFAULT now()
  by text NOT NULL DEFAULT SESSION_USER
  raised bigint NOT NULL
  unsealed bigint NOT NULL
  CONSTRAINT invalidations_pkey PRIMARY KEY (id)
  CREATE UNIQUE INDEX invalidations_pkey ON fence.invalidations USING btree (id)
  OWNER fence_owner

TABLE fence.lease_source
  only_row boolean NOT NULL DEFAULT true
  source text
  identity text
  CONSTRAINT lease_source_only_row_check CHECK (only_row)
  CONSTRAINT lease_source_pkey PRIMARY KEY (only_row)
  CONSTRAINT lease_source_source_check CHECK ((source <> ''::text))
  CREATE UNIQUE INDEX lease_source_pkey ON fence.lease_source USING btree (only_row)
  OWNER fence_owner

TABLE fence.leases WITH (fillfactor=50)
  resource text COLLATE "C" NOT NULL
  owner text NOT NULL
  token bigint NOT NULL
  holder text NOT NULL
  ends_at timestamp with time zone NOT NULL
  CONSTRAINT leases_pkey PRIMARY KEY (resource)
  CREATE UNIQUE INDEX leases_pkey ON fence.leases USING btree (resource)
  OWNER fence_owner

TABLE fence.leaving
  relation oid NOT NULL
  CONSTRAINT has_left TRIGGER DEFERRABLE INITIALLY DEFERRED
  CONSTRAINT leaving_pkey PRIMARY KEY (relation)
  CREATE UNIQUE INDEX leaving_pkey ON fence.leaving USING btree (relation)
  CREATE CONSTRAINT TRIGGER has_left AFTER INSERT ON fence.leaving DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fence.has_left() ENABLED A
  OWNER fence_owner

TABLE fence.lock_group
  only_row boolean NOT NULL DEFAULT true
  id uuid NOT NULL DEFAULT gen_random_uuid()
  CONSTRAINT lock_group_only_row_check CHECK (only_row)
  CONSTRAINT lock_group_pkey PRIMARY KEY (only_row)
  CREATE UNIQUE INDEX lock_group_pkey ON fence.lock_group USING btree (only_row)
  OWNER fence_owner

TABLE fence.registry
  relation regclass NOT NULL
  resource text
  under text
  per_row text
  mode text NOT NULL DEFAULT 'enforce'::text
  stamp name
  number integer
  CONSTRAINT registry_check CHECK ((num_nonnulls(resource, under, per_row) = 1))
  CONSTRAINT registry_mode_check CHECK ((mode = ANY (ARRAY['enforce'::text, 'report'::text])))
  CONSTRAINT registry_pkey PRIMARY KEY (relation)
  CREATE UNIQUE INDEX registry_pkey ON fence.registry USING btree (relation)
  OWNER fence_owner
  GRANT SELECT TO PUBLIC

TABLE fence.resources WITH (fillfactor=50)
  resource text COLLATE "C" NOT NULL
  token bigint NOT NULL
  seal bytea
  holder text NOT NULL
  armed_at timestamp with time zone NOT NULL
  ended_at timestamp with time zone
  undrained bigint[] NOT NULL DEFAULT '{}'::bigint[]
  CONSTRAINT resources_pkey PRIMARY KEY (resource)
  CONSTRAINT resources_seal_check CHECK ((octet_length(seal) = 32))
  CONSTRAINT resources_token_check CHECK ((token > 0))
  CREATE UNIQUE INDEX resources_pkey ON fence.resources USING btree (resource)
  OWNER fence_owner

TABLE fence.schema_names
  name text NOT NULL
  resource text
  under text
  per_row text
  mode text NOT NULL
  stamp name
  CONSTRAINT schema_names_pkey PRIMARY KEY (name)
  CREATE UNIQUE INDEX schema_names_pkey ON fence.schema_names USING btree (name)
  OWNER fence_owner

TABLE fence.unsealed
  pattern text COLLATE "C" NOT NULL
  floor bigint NOT NULL DEFAULT fence.highest_floor()
  CONSTRAINT unsealed_pattern_check CHECK ((pattern <> ''::text))
  CONSTRAINT unsealed_pkey PRIMARY KEY (pattern)
  CREATE UNIQUE INDEX unsealed_pkey ON fence.unsealed USING btree (pattern)
  OWNER fence_owner

UNLOGGED TABLE fence.lease_waiters
  resource text COLLATE "C" NOT NULL
  waiter text NOT NULL
  place bigint NOT NULL
  until timestamp with time zone NOT NULL
  CONSTRAINT lease_waiters_pkey PRIMARY KEY (resource, waiter)
  CREATE UNIQUE INDEX lease_waiters_pkey ON fence.lease_waiters USING btree (resource, waiter)
  OWNER fence_owner

VIEW fence.fences
  resource text
  token bigint
  sealed boolean
  holder text
  armed_at timestamp with time zone
  undrained integer
  ended_at timestamp with time zone
   SELECT resources.resource,
      resources.token,
      (resources.seal IS NOT NULL) AS sealed,
      resources.holder,
      resources.armed_at,
      cardinality(resources.undrained) AS undrained,
      resources.ended_at
     FROM fence.resources;
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

VIEW fence.outdated
  relation regclass
  generation integer
   SELECT r.relation,
      o.generation
     FROM (fence.registry r
       JOIN pg_proc p ON (((p.pronamespace = ('fence'::regnamespace)::oid) AND (p.proname = ('rows_'::text || r.number))))),
      LATERAL ( SELECT COALESCE(("substring"(obj_description(p.oid, 'pg_proc'::name), '^generation ([0-9]{1,9})$'::text))::integer, 0) AS "coalesce") o(generation)
    WHERE ((o.generation < fence.generation()) AND (NOT (EXISTS ( SELECT
             FROM (pg_inherits i
               JOIN fence.registry a ON (((a.relation)::oid = i.inhparent)))
            WHERE ((i.inhrelid = (r.relation)::oid) AND (a.number = r.number))))));
  OWNER fence_owner
  GRANT SELECT TO PUBLIC

VIEW fence.protected
  relation regclass
  resource text
  under text
  guard name
  complete boolean
  per_row text
  mode text
  stamp name
  would_refuse bigint
  number integer
  refused bigint
   SELECT (t.tgrelid)::regclass AS relation,
      g.resource,
      g.under,
      t.tgname AS guard,
      ((t.tgqual IS NULL) AND ((t.tgattr)::text = ''::text) AND (t.tgnargs > 0) AND
          CASE c.relkind
              WHEN 'v'::"char" THEN ((t.tgenabled = 'O'::"char") AND (t.tgtype = 30) AND (pg_relation_is_updatable((c.oid)::regclass, false) = 0))
              ELSE ((t.tgenabled = 'A'::"char") AND (t.tgtype = 62))
          END AND ((g.per_row IS NULL) OR COALESCE(((r.complete = 3) AND ((r.number)::text = g.number) AND (r.mode = g.mode) AND (r.needed IS NULL)), false)) AND ((g.per_row IS NOT NULL) OR (r.complete IS NULL) OR ((r.complete = 2) AND (NOT (r.needed IS DISTINCT FROM COALESCE(g.resource, (g.under || '*'::text)))))) AND ((r.number IS NULL) OR fence.judges_each((c.oid)::regclass, r.number, (r.needed IS NULL), r.mode)) AND ((r.stamp IS NULL) OR (c.relkind <> 'r'::"char") OR (EXISTS ( SELECT
             FROM (pg_trigger s
               JOIN pg_proc f ON ((f.oid = s.tgfoid)))
            WHERE ((s.tgrelid = t.tgrelid) AND (f.pronamespace = ('fence'::regnamespace)::oid) AND (f.proname = ('stamp_'::text || r.number)) AND (s.tgenabled = 'A'::"char") AND (s.tgtype = 23) AND (s.tgqual IS NULL) AND ((s.tgattr)::text = ''::text)))))) AS complete,
      g.per_row,
      g.mode,
      (COALESCE(r.stamp, g.later_stamp))::name AS stamp,
          CASE g.mode
              WHEN 'report'::text THEN COALESCE(pg_sequence_last_value(to_regclass(('fence.refused_'::text || g.number))), (0)::bigint)
              ELSE NULL::bigint
          END AS would_refuse,
      COALESCE(r.number, (g.number)::integer, y.number) AS number,
          CASE
              WHEN ((g.mode = 'enforce'::text) AND (to_regclass(('fence.refused_'::text || y.number)) IS NOT NULL)) THEN COALESCE(pg_sequence_last_value(to_regclass(('fence.refused_'::text || y.number))), (0)::bigint)
              ELSE NULL::bigint
          END AS refused
     FROM ((((pg_trigger t
       JOIN pg_class c ON ((c.oid = t.tgrelid)))
       JOIN ( VALUES ('fence.guard'::regproc,'guard'::text), ('fence.guard_rows'::regproc,'rows'::text), ('fence.report'::regproc,'report'::text)) k(made, kind) ON (((k.made)::oid = t.tgfoid)))
       LEFT JOIN fence.row_guards r ON (((r.relation)::oid = t.tgrelid)))
       LEFT JOIN fence.registry y ON (((y.relation)::oid = t.tgrelid))),
      LATERAL fence.arguments(t.tgargs) a(a),
      LATERAL ( SELECT NULLIF(
                  CASE
                      WHEN (k.kind <> 'rows'::text) THEN a.a[1]
                      ELSE NULL::text
                  END, ''::text) AS resource,
              NULLIF(
                  CASE
                      WHEN (k.kind <> 'rows'::text) THEN a.a[2]
                      ELSE NULL::text
                  END, ''::text) AS under,
              NULLIF(
                  CASE k.kind
                      WHEN 'rows'::text THEN a.a[1]
                      WHEN 'report'::text THEN a.a[3]
                      ELSE NULL::text
                  END, ''::text) AS per_row,
              "substring"(
                  CASE k.kind
                      WHEN 'rows'::text THEN a.a[2]
                      WHEN 'report'::text THEN a.a[4]
                      ELSE NULL::text
                  END, '^[0-9]{1,9}$'::text) AS number,
              NULLIF(
                  CASE k.kind
                      WHEN 'report'::text THEN a.a[5]
                      ELSE NULL::text
                  END, ''::text) AS later_stamp,
                  CASE k.kind
                      WHEN 'report'::text THEN 'report'::text
                      ELSE 'enforce'::text
                  END AS mode) g;
  OWNER fence_owner
  GRANT SELECT TO PUBLIC

VIEW fence.retired
  bucket integer
  floor bigint
   SELECT f.bucket,
      f.floor
     FROM fence.floors f;
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

VIEW fence.row_guards
  relation regclass
  number integer
  mode text
  needed text
  stamp text
  complete bigint
   SELECT (t.tgrelid)::regclass AS relation,
      (substr((p.proname)::text, 6))::integer AS number,
      a.a[1] AS mode,
      NULLIF(a.a[2], ''::text) AS needed,
      NULLIF(a.a[3], ''::text) AS stamp,
      count(*) FILTER (WHERE ((t.tgenabled = 'A'::"char") AND (t.tgqual IS NULL) AND ((t.tgattr)::text = ''::text) AND ((a.a[2] <> ''::text) OR ((t.tgtype = 4) OR (t.tgoldtable = 'old_rows'::name))) AND ((t.tgtype = 8) OR (t.tgnewtable = 'new_rows'::name)) AND (t.tgtype = ANY (ARRAY[4, 8, 16])))) AS complete
     FROM (pg_trigger t
       JOIN pg_proc p ON ((p.oid = t.tgfoid))),
      LATERAL fence.arguments(t.tgargs) a(a)
    WHERE ((p.pronamespace = ('fence'::regnamespace)::oid) AND (p.proname ~ '^rows_[0-9]+$'::text))
    GROUP BY (t.tgrelid)::regclass, (substr((p.proname)::text, 6))::integer, a.a[1], NULLIF(a.a[2], ''::text), NULLIF(a.a[3], ''::text);
  OWNER fence_owner
  GRANT SELECT TO PUBLIC

VIEW fence.schemas
  schema regnamespace
  resource text
  under text
  per_row text
  mode text
  stamp name
   SELECT to_regnamespace(n.name) AS schema,
      n.resource,
      n.under,
      n.per_row,
      n.mode,
      n.stamp
     FROM fence.schema_names n
    WHERE (to_regnamespace(n.name) IS NOT NULL);
  OWNER fence_owner
  GRANT SELECT TO PUBLIC

VIEW fence.uncovered
  relation regclass
  reason text
   SELECT u.relation,
      (u.reason COLLATE "C") AS reason
     FROM fence.find_uncovered() u(relation, reason);
  OWNER fence_owner
  GRANT SELECT TO PUBLIC

VIEW fence.unsealed_patterns
  pattern text
   SELECT unsealed.pattern
     FROM fence.unsealed;
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

FUNCTION fence."check"(needed text DEFAULT NULL::text) RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body 19e3461ebd73a065ab7c3bc2b3127526
  OWNER fence_owner
  GRANT EXECUTE TO fence_writer

FUNCTION fence."position"() RETURNS pg_lsn
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body b4fa9bb17e78b59c8304f0db9de84739
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.accepts_unsealed(p_resource text) RETURNS boolean
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 200eec4ad6dff4a50579208fb8f86274
  OWNER fence_owner

FUNCTION fence.allow_unsealed(p_pattern text) RETURNS boolean
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 602af41b090a357cc34c43db21af846d
  OWNER fence_owner

FUNCTION fence.ancestors(p_relation regclass) RETURNS SETOF regclass
  sql STABLE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 0ca54c5342e95808064661b0a1650457
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.arguments(p_bytes bytea) RETURNS text[]
  plpgsql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 8f3272af463eb9b6261a2e41b3d1351a
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.arm(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text, p_limit interval DEFAULT '00:00:05'::interval) RETURNS boolean
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body 7432e4ac158398c82a785e36d531d7e9
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.arm_group(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[], p_holders text[]) RETURNS boolean[]
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  SET plan_cache_mode=force_generic_plan
  SET enable_seqscan=off
  SET enable_hashjoin=off
  SET enable_mergejoin=off
  body 5e4b2d722bb12d461befd0e1d7381582
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.arm_otherwise(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text, p_limit interval) RETURNS boolean
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body fb8edc708a130b8e6ba25068868e39b6
  OWNER fence_owner

FUNCTION fence.arming_named(p_resource text) RETURNS text
  sql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body ac5b2fe918229ab80561674875530d9c
  OWNER fence_owner

FUNCTION fence.beat() RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body ac21fc626f3ac4caaa4fffddd0212d43
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.bucket_of(p_resource text) RETURNS integer
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body ac9b8f5536f4efe547e422ebfbc4b90c
  OWNER fence_owner

FUNCTION fence.call_next(p_resource text) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body af4a645d636ba62faeb41a564eef825e
  OWNER fence_owner

FUNCTION fence.can_stop() RETURNS boolean
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 61a383dc6af1e9971a5ff5175f48249c
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.change_source(p_source text, p_end boolean) RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 5514d65aaa4c8bd3bee5e5f478f17758
  OWNER fence_owner

FUNCTION fence.check_issued(resource text, token bigint) RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 43c78457a8219b7ea34c28291e71258e
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.claim_source(p_source text) RETURNS text
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body d30fef2306f4c472a96b872b963f48f5
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_locker

FUNCTION fence.columns_read(p_number integer, p_stamp name) RETURNS SETOF name
  sql STABLE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 984b09ffc682c5f0ddd2004b847dcf0e
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.commit_durably() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body fae87b5f01980bc015080b2031e04b74
  OWNER fence_owner

FUNCTION fence.count_refusal(v fence.verdict, p_relation oid) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 71c176fc6940e150031fb183b6391bd1
  OWNER fence_owner

FUNCTION fence.detail_of(v fence.verdict, p_relation oid, p_operation text) RETURNS text
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 33360297715f316a5fe96706b5c15c77
  OWNER fence_owner

FUNCTION fence.disallow_unsealed(p_pattern text) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 816709b2a44e856e3499bcc89d883727
  OWNER fence_owner

FUNCTION fence.drain(p_resource text, p_token bigint, p_seal_hash bytea, p_grace interval DEFAULT '00:00:00.2'::interval, p_limit interval DEFAULT '00:00:05'::interval, OUT ours boolean, OUT recorded bigint, OUT ended integer) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body f4e55648b580a8b2c4d164e4e8851d1f
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_locker

FUNCTION fence.drain_all(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[], p_grace interval DEFAULT '00:00:00.2'::interval, p_limit interval DEFAULT '00:00:05'::interval, OUT ours boolean, OUT resource text, OUT recorded bigint) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 22910c1f2b3408e3a19f54396705ae7a
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.drain_invalidated(p_grace interval DEFAULT '00:00:00.2'::interval, p_limit interval DEFAULT '00:00:05'::interval) RETURNS TABLE(resource text, held_by text)
  plpgsql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 0e29a8e259da96e8b98fe0195d3a5dd3
  OWNER fence_owner

FUNCTION fence.drain_own(p_resource text, p_token bigint, p_seal_hash bytea) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body e632f7476b2cc2d0ceaaed4a6e2d5bc5
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.end_backend(p_pid integer, p_port integer) RETURNS boolean
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 0d51900af902e48ad7e6479d1fb55027
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.end_grants(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[], p_limit interval DEFAULT '00:00:00'::interval) RETURNS TABLE(n integer, ended boolean, busy boolean, recorded bigint)
  plpgsql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body f6a648550c5a11fbde56b0df4a56ca89
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.end_group(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[]) RETURNS TABLE(n integer, ended boolean, busy boolean, recorded bigint)
  plpgsql VOLATILE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET plan_cache_mode=force_generic_plan
  SET enable_seqscan=off
  SET enable_hashjoin=off
  SET enable_mergejoin=off
  body 3cae993455f7b6530ae423f156f05c3e
  OWNER fence_owner

FUNCTION fence.end_holders(p_key bigint, OUT told integer, OUT held_by text) RETURNS record
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 701c36fedfcc60db1b124b5309221bad
  OWNER fence_owner

FUNCTION fence.end_leases() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body fe692c8fbf37b1946d7110b62e77f902
  OWNER fence_owner

FUNCTION fence.enforce(relation regclass) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 05e91421c1cdae912e0642b31980062b
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.event_code() RETURNS TABLE(name text, arguments text, result text, caller text, asks boolean, body text)
  sql STABLE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 6159652cd3e005c36d94ee95d1471822
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.event_hash() RETURNS text
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 53cdbe99cb2f5a33e6cea4267eb2ba6a
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.expression_fault(p_index regclass) RETURNS text
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body c2def383f0991f0e51c185a3047f17e4
  OWNER fence_owner

FUNCTION fence.extend_leases(p_resources text[], p_owners text[], p_ttls bigint[], p_wait boolean DEFAULT false) RETURNS TABLE(n integer, extended boolean, busy boolean)
  plpgsql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET lock_timeout=5s
  SET plan_cache_mode=force_generic_plan
  SET enable_seqscan=off
  SET enable_hashjoin=off
  SET enable_mergejoin=off
  body 7da88a79199b98149e6828b6d48bf0fe
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_locker

FUNCTION fence.family(p_relation regclass) RETURNS SETOF regclass
  sql STABLE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 287d0a1fd52b1f3927fe1fbf5da603ae
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.fast_check(r text, g text, plain boolean DEFAULT false) RETURNS bigint
  plpgsql VOLATILE COST 100
  body f8327ca0ac62c2601cf8e1cc8495619a
  OWNER fence_owner

FUNCTION fence.fast_list(p_listed text, p_needed text) RETURNS bigint
  plpgsql VOLATILE COST 100
  body cdd31e7c47fcaff3788316c32a461d83
  OWNER fence_owner

FUNCTION fence.fast_settings(p_needed text) RETURNS bigint
  plpgsql VOLATILE COST 100
  body 63383b7d985247846f0e690ae7a94dc0
  OWNER fence_owner

FUNCTION fence.find_uncovered() RETURNS TABLE(relation regclass, reason text)
  sql STABLE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET jit=off
  body 5e875f3f1218b1890e5d6c47ecb67785
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.first_turn(p_resource text) RETURNS boolean
  sql VOLATILE COST 100
  body cd88bbcae7d405e25218a18c4b70d7b5
  OWNER fence_owner

FUNCTION fence.fits(p_resource text, p_pattern text) RETURNS boolean
  sql IMMUTABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body d8c27b046f085252cf106fb18e74eab8
  OWNER fence_owner

FUNCTION fence.floor_of(p_resource text) RETURNS bigint
  sql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body dbf68386f1e003e5f639567d3cc24385
  OWNER fence_owner

FUNCTION fence.floor_of_unsealed(p_resource text) RETURNS bigint
  sql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body fc597c46dd4332e31a1956b3db3fc4bb
  OWNER fence_owner

FUNCTION fence.free_leases(p_resources text[], p_owners text[], p_limit interval DEFAULT '00:00:00'::interval) RETURNS TABLE(n integer, freed boolean, busy boolean)
  plpgsql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET lock_timeout=5s
  SET plan_cache_mode=force_generic_plan
  SET enable_seqscan=off
  SET enable_hashjoin=off
  SET enable_mergejoin=off
  body 8ea4bacd2b30c42ff6f3ddfc15f19cd5
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_locker

FUNCTION fence.generation() RETURNS integer
  sql IMMUTABLE PARALLEL SAFE COST 100
  body cd0595aced438cc0b7af395a90bc3d59
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.guard() RETURNS trigger
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body b975f154c7a6308da7437014c36d7292
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.guard_rows() RETURNS trigger
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body bc427f1e5809ec380482d625a33417ca
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.guards_of(p_relation regclass) RETURNS SETOF name
  sql STABLE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 7cc4b3e4d8ca189739b3d6efb9332e30
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.has_left() RETURNS trigger
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 5642cc03079f7a78453dd1acdd4b1c54
  OWNER fence_owner

FUNCTION fence.highest_floor() RETURNS bigint
  sql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 8b31c672bba0ff7c0602f7200750c38b
  OWNER fence_owner

FUNCTION fence.holders(p_key bigint) RETURNS TABLE(pid integer, gid text, writer boolean)
  sql VOLATILE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 484776d1e0fb1317194d1f7ba9b40fb9
  OWNER fence_owner

FUNCTION fence.holders_named(p_key bigint) RETURNS text
  sql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 1d9e805705a3af2ec2f2f4bdf1867503
  OWNER fence_owner

FUNCTION fence.identity(OUT identity text, OUT written pg_lsn, OUT beats bigint, OUT invalidations text[]) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 30e8fafb6ac4c70949d915504ae8731b
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_writer

FUNCTION fence.install_event_triggers() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 4d602eef6a7338d04b235a1f865133d3
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.intact(p_relation regclass) RETURNS boolean
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body f1e8f478318775c19fb6f28844002994
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.invalidate_all(p_again boolean DEFAULT false, p_limit interval DEFAULT '00:00:05'::interval, OUT id uuid, OUT identity text, OUT raised bigint, OUT unsealed bigint, OUT already boolean) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 0d1a93031b05dadb112f58680efb110c
  OWNER fence_owner

FUNCTION fence.is_newest(p_resource text) RETURNS boolean
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 5dbd2d7ad5cc8b538f8de20a107248da
  OWNER fence_owner

FUNCTION fence.is_source(p_source text) RETURNS boolean
  sql IMMUTABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body edc72be914c9d91d5c615a5d632f74fe
  OWNER fence_owner

FUNCTION fence.is_uncommitted(p_xmin xid) RETURNS boolean
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body ded50042a5c9b9cfdf49a6efd7d1a4c8
  OWNER fence_owner

FUNCTION fence.judge(needed text) RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body f5ac3a9880b1917b0d9fd12f36912922
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.judge_report(p_relation text, p_operation text, p_number integer, p_resources text[], p_state text, p_fault text) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 54f10bfda31cfb99fab65d9871f0f43c
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.judge_rows(p_relation text, p_olds text[], p_news text[], p_tokens bigint[], p_needed text) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body 10fb3ca2ab967d6d7ced0c1a78bb9cd4
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.judge_stamp(needed text) RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body 19e3461ebd73a065ab7c3bc2b3127526
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.judges_each(p_relation regclass, p_number integer, p_per_row boolean, p_mode text) RETURNS boolean
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 992d817a20804cae09e80e87a20304d8
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.keep_unsealed(p_resource text, p_token bigint) RETURNS boolean
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 16ac8ce3e600b2db764f7c60af67a687
  OWNER fence_owner

FUNCTION fence.kept(p_relation regclass, p_column integer) RETURNS boolean
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 957d7003f72b0beb692bb15d6ecfa410
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.key(p_resource text, p_token bigint, p_seal_hash bytea) RETURNS bigint
  sql IMMUTABLE PARALLEL SAFE COST 100
  body 291a88ea2de843102fe598fb20cce585
  OWNER fence_owner

FUNCTION fence.lease_of(p_resource text, OUT owner text, OUT holder text, OUT token bigint, OUT left_us bigint, OUT waiters integer) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body a4b0c5e077f498eaa11306af833c1de0
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_locker

FUNCTION fence.leases_ready() RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 65820b04a02edd9dd9847b788437d942
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_locker

FUNCTION fence.leave(p_relation regclass) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body ff1aecd22362fde681668601496496ee
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.leave_line(p_resource text, p_waiter text) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 59b3eea5c3aa90b6695d89956601be0f
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_locker

FUNCTION fence.lock(p_key bigint) RETURNS void
  plpgsql VOLATILE COST 100
  body 3e789f6b681d71d513c41b00bae24f82
  OWNER fence_owner

FUNCTION fence.lock_group(OUT id uuid, OUT database oid) RETURNS record
  plpgsql STABLE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 8085a23a22785995d3a629f1831a9e8d
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_writer

FUNCTION fence.lock_within(p_key bigint, p_exclusive boolean, p_patience numeric) RETURNS boolean
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 714f15743cedd0bf83b5529a0498a05d
  OWNER fence_owner

FUNCTION fence.log_refusal(p_relation text, p_operation text, p_number text, v fence.verdict) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body b544cb1157f5d67b5942e772a24375ab
  OWNER fence_owner

FUNCTION fence.make_asker() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 758728e9f518a274bc94d065e4f3b2a4
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.make_counter(p_number integer) RETURNS integer
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 0308a9aba3fda79d1cfcee36f8b89059
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.make_event_triggers() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 8bd1a36dd14463787adfbbd8285f5ef2
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.make_guards(p_relation regclass) RETURNS text[]
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 63e482a318b3c34ce50d2643ee6043ef
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.make_judging(p_number integer, p_resource text, p_stamp text) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 8f048f47a87a400628e616377e67276d
  OWNER fence_owner

FUNCTION fence.make_moved(p_number integer, p_stamp text) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 4e1e2ee7d6ba0f8969a9567abecf4d20
  OWNER fence_owner

FUNCTION fence.make_number(p_relation regclass, p_per_row text, p_mode text, p_stamp name) RETURNS integer
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 069a0649e3901c6b4e612ac65bc1cb0f
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.make_resource(p_number integer, p_index regclass) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 5e6a15b403add280307d96dc52f039f2
  OWNER fence_owner

FUNCTION fence.make_rows(p_index regclass, p_stamp name) RETURNS integer
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body b027d761143c4f3114ccade62c604524
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.make_stamp(p_number integer, p_resource text, p_stamp text) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 654a9b394b7a86a90d68f9cfc583652b
  OWNER fence_owner

FUNCTION fence.make_trigger(p_kind text, p_number integer, p_code text) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body bdfeba01830e68ff246d2bac76870faf
  OWNER fence_owner

FUNCTION fence.make_triggers(p_number integer, p_stamp text) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 88cb16ad981e6f29352b9c433ec2d121
  OWNER fence_owner

FUNCTION fence.mark_move() RETURNS trigger
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body 4ae94a8b0272ba6d3ff4dd2000237e0c
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.moving() RETURNS boolean
  sql VOLATILE COST 100
  body 4f8b7c93044191937b1c2099b7c6ec3d
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.need_protector() RETURNS void
  plpgsql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body c15f47d3b49415cda4f0661b7da031ed
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.need_read_committed() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body eb9acb4633417be0026448b63247c5ad
  OWNER fence_owner

FUNCTION fence.need_source() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body d29308c9759e0b4f1e5f06e5a8dc0298
  OWNER fence_owner

FUNCTION fence.new_group(p_limit interval DEFAULT '00:00:05'::interval, OUT id uuid, OUT before uuid, OUT database text, OUT raised bigint, OUT unsealed bigint) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 62a9281ec3e2979edcce1645ff59759d
  OWNER fence_owner

FUNCTION fence.next_epoch(p_above bigint) RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body f1f08ba09b46048ec853c52bf077c87b
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.other_guards(p_relation regclass, p_per_row text, p_mode text, p_stamp name) RETURNS TABLE(member regclass, guard name)
  sql STABLE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 7a18dbfd91ef18e5ced190577db8ac20
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.outcome(xid text, run text) RETURNS text
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body bd934957d24a651ea8d30519262a0fe7
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_writer

FUNCTION fence.patience() RETURNS numeric
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 526e580dcac0430335ad0614b96d5d18
  OWNER fence_owner

FUNCTION fence.probe(p_relation regclass, p_expression text) RETURNS regclass
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 2f6247071127747ebf13753e444cdf5b
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.protect(relation regclass, resource text DEFAULT NULL::text, under text DEFAULT NULL::text, per_row text DEFAULT NULL::text, mode text DEFAULT 'enforce'::text, stamp name DEFAULT NULL::name) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 87c46ebdde4bd6145fc7881cf54bc3ad
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.protect_fault(p_relation regclass, p_resource text, p_under text, p_per_row text, p_mode text, p_stamp name) RETURNS text
  plpgsql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body cb1c973ce88e438bfda7997a0e0ea620
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.protect_schema(schema regnamespace, resource text DEFAULT NULL::text, under text DEFAULT NULL::text, per_row text DEFAULT NULL::text, mode text DEFAULT 'enforce'::text, stamp name DEFAULT NULL::name) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body a4b6d7903a44e7dbe2c2ca44836eb2f8
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.protected_named(p_relation text) RETURNS oid
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 9bb81b3164632db234c960c4b7f52819
  OWNER fence_owner

FUNCTION fence.publish(stage uuid, if_match text DEFAULT NULL::text, if_none_match boolean DEFAULT false) RETURNS TABLE(bucket text, key text, etag text, size bigint)
  sql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 6a1f4a5aa78f916dbc79a1ac7fd128d6
  OWNER fence_owner
  GRANT EXECUTE TO fence_writer

FUNCTION fence.publish_all(stages uuid[]) RETURNS TABLE(stage uuid, bucket text, key text, etag text, size bigint)
  sql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body ce4b33b8255c04484d0658b38a5c70ef
  OWNER fence_owner
  GRANT EXECUTE TO fence_writer

FUNCTION fence.put_guards(p_relation regclass, p_resource text, p_under text, p_per_row text, p_mode text, p_stamp name, p_number integer) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 37029d035b47da04652e1c0ee6f81bdb
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.raise(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text, p_limit interval DEFAULT '00:00:05'::interval, OUT raised boolean, OUT recorded bigint) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 20b57c75c1f2166a800ad85362dec623
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.raise_all(p_resources text[], p_tokens bigint[], p_seal_hashes bytea[], p_holders text[], p_limit interval DEFAULT '00:00:05'::interval, OUT raised boolean, OUT resource text, OUT recorded bigint) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 23c3ea162dba45c38d8bccbdf6d45b8f
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.raise_own(p_resource text, p_token bigint, p_seal_hash bytea, p_holder text) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 74e7b51c5ae37a1cfceec7b454c17805
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.raise_unsealed(p_resource text, p_token bigint) RETURNS fence.verdict
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body bde4427cad1a3d53ebe36c1217ad22a3
  OWNER fence_owner

FUNCTION fence.refresh(relation regclass, patience interval DEFAULT '00:00:03'::interval) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 97f2e06fbe70d6f07acf23ccbf8befb9
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.refusal(p_state text, p_message text, p_resource text, p_presented bigint, p_recorded bigint, p_needed text DEFAULT NULL::text, p_advice text DEFAULT NULL::text, p_held_by text DEFAULT NULL::text) RETURNS fence.verdict
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 0ac87f9f527736f3a6b26d096277c005
  OWNER fence_owner

FUNCTION fence.refusal_of_ended(p_resource text, p_token bigint) RETURNS fence.verdict
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body eda8038b1b8eca954043bdb8388da138
  OWNER fence_owner

FUNCTION fence.refusal_of_retired(p_resource text, p_token bigint, p_floor bigint) RETURNS fence.verdict
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 742f758e5e4ff20c25bd673d357d625a
  OWNER fence_owner

FUNCTION fence.remember(p_relation regclass) RETURNS void
  sql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 1f5e52f06c4e44e096d163234620786a
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.remember_schema(p_schema regnamespace, p_resource text, p_under text, p_per_row text, p_mode text, p_stamp name) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 6fdac47042264c3097154716bca50d59
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.replicates() RETURNS boolean
  sql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body c99cd7e91ecab4a5dc8d1dc2d5c81d2c
  OWNER fence_owner

FUNCTION fence.replicates(p_relation oid, p_operation text) RETURNS boolean
  sql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 230961b32950bb1956a6f488718688ea
  OWNER fence_owner

FUNCTION fence.report() RETURNS trigger
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body eb06a4e998be3c6aaabfd57de26d2fca
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.resource_fault(p_resource text) RETURNS text
  plpgsql IMMUTABLE PARALLEL SAFE COST 100
  body f44f4a04627f32628f9160b580612d01
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.retire(p_unused interval, p_after text DEFAULT ''::text, p_limit integer DEFAULT 200, OUT last text, OUT retired integer, OUT unended text[]) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 2301edb86577bb20cbfb84d18179bae5
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.revoke(p_resource text, p_holder text DEFAULT NULL::text, OUT token bigint, OUT seal_hash bytea) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 1e2256b1742c5e02cc4fb8540e87a549
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION fence.row_resource(p_number integer) RETURNS text
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 5a3206ea9ca2f6bb9f44c275ba3d2658
  OWNER fence_owner

FUNCTION fence.row_token(p_stamp text) RETURNS text
  sql IMMUTABLE STRICT COST 100
  SET search_path=pg_catalog, pg_temp
  body 23693949be46cfaf20cde556b9d2f850
  OWNER fence_owner

FUNCTION fence.server_identity() RETURNS text
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 52fb937bd239e21381220c86454a97e6
  OWNER fence_owner

FUNCTION fence.server_run() RETURNS text
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body 9675efa74e3c968f00c0b074b1a57c3f
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_writer

FUNCTION fence.set_source(p_source text) RETURNS void
  sql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 0a6a62db69b1b2c6bcd550533d05275a
  OWNER fence_owner

FUNCTION fence.shown(p_name text) RETURNS text
  plpgsql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body cec20845d08b58b28dde825cbe80b29b
  OWNER fence_owner

FUNCTION fence.staged(stage uuid) RETURNS text
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body a95f03f2e8aa96ba3865e74f6e094945
  OWNER fence_owner
  GRANT EXECUTE TO fence_writer

FUNCTION fence.tables_of(p_schema regnamespace) RETURNS SETOF regclass
  sql STABLE COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body 6050fedc9650ff6976020572d8df8a03
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.take_fault(p_resource text, p_token bigint, p_seal_hash bytea) RETURNS text
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 14967e200614ad1b1d1e1f92a220c444
  OWNER fence_owner

FUNCTION fence.take_lease(p_resource text, p_owner text, p_ttl bigint, p_seal_hash bytea, p_holder text, p_behind boolean, p_waiter text DEFAULT NULL::text, p_keep interval DEFAULT '00:00:05'::interval, p_limit interval DEFAULT '00:00:05'::interval, OUT taken boolean, OUT token bigint, OUT holder text, OUT left_us bigint) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  SET lock_timeout=5s
  body c15a3f9c20d29eaee5cf5b0a4f04083c
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_locker

FUNCTION fence.take_leases(p_resources text[], p_owners text[], p_ttls bigint[], p_seal_hashes bytea[], p_holders text[], p_behind boolean[]) RETURNS TABLE(n integer, taken boolean, held boolean, token bigint, holder text, left_us bigint)
  plpgsql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET plan_cache_mode=force_generic_plan
  SET enable_seqscan=off
  SET enable_hashjoin=off
  SET enable_mergejoin=off
  body 33f7af853e7327fe2d9f3a2793040193
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway
  GRANT EXECUTE TO fence_locker

FUNCTION fence.take_turn(p_resource text, p_patience numeric) RETURNS boolean
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body ca4f5b75738531efd721c81403a158b1
  OWNER fence_owner

FUNCTION fence.text_fault(p_expression text) RETURNS text
  plpgsql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 8caeccf9a60fae9357577056669b83c4
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.tidy(p_but integer DEFAULT NULL::integer) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 30306d539fd4d76193f31de4ea79d625
  OWNER fence_owner
  GRANT EXECUTE TO fence_protector

FUNCTION fence.told_of(v fence.verdict, p_relation oid) RETURNS text
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body b0a5bc52b83fd30660900dbc019d79b7
  OWNER fence_owner

FUNCTION fence.try_lock(p_key bigint, p_exclusive boolean) RETURNS boolean
  plpgsql VOLATILE COST 100
  body 2613dccd617039cfb8644645f8163639
  OWNER fence_owner

FUNCTION fence.try_settings(p_needed text) RETURNS fence.verdict
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body dd0b31c9cde8c44c528e6062c0fc837f
  OWNER fence_owner

FUNCTION fence.unescape(p_escaped text) RETURNS text
  plpgsql IMMUTABLE COST 100
  body d1070453fb5671caab858155a7762f98
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.unescape_otherwise(p_escaped text) RETURNS text
  plpgsql IMMUTABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body 4f9a7a845c87ddf39c1157f18e6cdb60
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.uninstall_event_triggers() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body e6c30d9ae0c17a8646c4fef810cd6878
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.unprotect(relation regclass) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 533923b80312c45b97e34beaac31657e
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.unprotect_schema(schema regnamespace) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body a5f7eef360e818c17ac6a9bcbb637a9a
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.unpublish(bucket text, key text, if_match text DEFAULT NULL::text) RETURNS boolean
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 00e50582b72057ceb7de8c4c4ea715ef
  OWNER fence_owner
  GRANT EXECUTE TO fence_writer

FUNCTION fence.use(resource text, token text) RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body fb94f7ea51d673f9184c8140011fc1fa
  OWNER fence_owner
  GRANT EXECUTE TO fence_writer

FUNCTION fence.use(resources text[], tokens text[]) RETURNS integer
  plpgsql VOLATILE SECURITY DEFINER COST 100
  body 9c71689ed8cd340d49211608cae46639
  OWNER fence_owner
  GRANT EXECUTE TO fence_writer

FUNCTION fence.verdict_of(p_relation text, p_resources text[], p_tokens bigint[], p_needed text) RETURNS fence.verdict
  plpgsql VOLATILE COST 100
  body 3074ba9bb3fe3559715eda9bfb16c54b
  OWNER fence_owner

FUNCTION fence.verify(p_resource text, p_token bigint, p_seal_hash bytea, p_kind text) RETURNS fence.verdict
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 89d7a0108b2fa1570da505ddfb2d5fe4
  OWNER fence_owner

FUNCTION fence.verify_presented(p_resource text, p_presented text) RETURNS fence.verdict
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body dead39345a4523bdeabf1f73dbc41693
  OWNER fence_owner

FUNCTION fence.verify_settings(p_needed text) RETURNS fence.verdict
  plpgsql VOLATILE COST 100
  body 243e1bee9d12fbdef865daf4f28f6c00
  OWNER fence_owner

FUNCTION fence.verify_slowly(p_needed text) RETURNS fence.verdict
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 468ae8518298943c4ea8980ae92ffee3
  OWNER fence_owner

FUNCTION fence.view_fault(p_view regclass) RETURNS text
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body d1d661987ace46fb63cc9d09bf96669f
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.wanted(p_relation regclass) RETURNS fence.registry
  plpgsql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body ac35e5050dd33c051f0550ed27c924c9
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

FUNCTION fence.wants_guards(p_relation regclass) RETURNS boolean
  sql STABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body a746d9727abe7c98cf8145e25091549e
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

PROCEDURE fence.take(IN p_resource text, IN p_token bigint, IN p_seal_hash bytea, IN p_holder text DEFAULT ''::text)
  plpgsql VOLATILE COST 100
  body e9a377f1be0333a62e555e3e9568a8a3
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

PROCEDURE fence.wait_for(IN p_position pg_lsn, IN p_patience interval DEFAULT '00:00:05'::interval)
  plpgsql VOLATILE COST 100
  body c2c9f953f181ed1ed00fb1818f137ff0
  OWNER fence_owner
  GRANT EXECUTE TO PUBLIC

SCHEMA fencegate
  OWNER (who migrates)
  GRANT USAGE TO PUBLIC

TABLE fencegate.code
  name text NOT NULL
  revision integer NOT NULL
  hash text NOT NULL
  min_program integer NOT NULL
  applied_at timestamp with time zone NOT NULL DEFAULT now()
  CONSTRAINT code_pkey PRIMARY KEY (name)
  CREATE UNIQUE INDEX code_pkey ON fencegate.code USING btree (name)
  OWNER (who migrates)
  GRANT SELECT TO PUBLIC

TABLE fencegate.fence_state
  version bigint NOT NULL
  dirty boolean NOT NULL
  CONSTRAINT fence_state_pkey PRIMARY KEY (version)
  CREATE UNIQUE INDEX fence_state_pkey ON fencegate.fence_state USING btree (version)
  OWNER (who migrates)
  GRANT SELECT TO PUBLIC

TABLE fencegate.objects_state
  version bigint NOT NULL
  dirty boolean NOT NULL
  CONSTRAINT objects_state_pkey PRIMARY KEY (version)
  CREATE UNIQUE INDEX objects_state_pkey ON fencegate.objects_state USING btree (version)
  OWNER (who migrates)
  GRANT SELECT TO PUBLIC

SCHEMA objects
  OWNER fence_owner
  GRANT USAGE TO fence_gateway
  COMMENT 'fencegate objects state 1 8248e4b9eb9e, code 14 cf36f01f82d4'

SEQUENCE objects.kept_order AS bigint START 1 INCREMENT 1 MINVALUE 1 MAXVALUE 9223372036854775807 CACHE 1
  OWNER fence_owner

TABLE objects.attempts
  bucket text COLLATE "C" NOT NULL
  key text COLLATE "C" NOT NULL
  invocation_id text NOT NULL
  what text NOT NULL
  answer jsonb NOT NULL
  created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
  CONSTRAINT attempts_pkey PRIMARY KEY (bucket, key, invocation_id, what)
  CREATE INDEX attempts_to_forget ON objects.attempts USING btree (created_at)
  CREATE UNIQUE INDEX attempts_pkey ON objects.attempts USING btree (bucket, key, invocation_id, what)
  OWNER fence_owner

TABLE objects.blobs WITH (fillfactor=70, autovacuum_vacuum_scale_factor=0.02)
  id uuid NOT NULL
  state text NOT NULL DEFAULT 'pending'::text
  changed_at timestamp with time zone NOT NULL DEFAULT now()
  swept_at timestamp with time zone
  tried_at timestamp with time zone
  version uuid
  CONSTRAINT blobs_pkey PRIMARY KEY (id)
  CONSTRAINT blobs_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'live'::text, 'superseded'::text, 'condemned'::text])))
  CREATE INDEX blobs_to_condemn ON objects.blobs USING btree (state, changed_at) WHERE ((state = ANY (ARRAY['pending'::text, 'superseded'::text])) AND (changed_at > '-infinity'::timestamp with time zone))
  CREATE INDEX blobs_to_delete ON objects.blobs USING btree (tried_at NULLS FIRST, changed_at) WHERE ((state = 'condemned'::text) AND ((swept_at = tried_at) IS NOT TRUE))
  CREATE INDEX blobs_to_delete_again ON objects.blobs USING btree (swept_at) WHERE ((state = 'condemned'::text) AND ((swept_at = tried_at) IS TRUE))
  CREATE UNIQUE INDEX blobs_pkey ON objects.blobs USING btree (id)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

TABLE objects.bucket_documents
  bucket text COLLATE "C" NOT NULL
  kind text NOT NULL
  document text NOT NULL
  CONSTRAINT bucket_documents_bucket_fkey FOREIGN KEY (bucket) REFERENCES objects.buckets(name) ON DELETE CASCADE
  CONSTRAINT bucket_documents_document_check CHECK (((octet_length(document) >= 1) AND (octet_length(document) <= 65536)))
  CONSTRAINT bucket_documents_kind_check CHECK ((kind = ANY (ARRAY['cors'::text, 'tagging'::text])))
  CONSTRAINT bucket_documents_pkey PRIMARY KEY (bucket, kind)
  CREATE UNIQUE INDEX bucket_documents_pkey ON objects.bucket_documents USING btree (bucket, kind)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

TABLE objects.buckets
  name text COLLATE "C" NOT NULL
  depth integer NOT NULL
  created_at timestamp with time zone NOT NULL DEFAULT now()
  keep_count integer DEFAULT 0
  keep_age interval
  retention interval
  mode text NOT NULL DEFAULT 'lease'::text
  CONSTRAINT buckets_check CHECK (((keep_count IS NULL) OR (keep_age IS NULL)))
  CONSTRAINT buckets_depth_check CHECK ((depth >= '-1'::integer))
  CONSTRAINT buckets_keep_age_check CHECK ((keep_age > '00:00:00'::interval))
  CONSTRAINT buckets_keep_count_check CHECK ((keep_count >= 0))
  CONSTRAINT buckets_mode_check CHECK ((mode = ANY (ARRAY['lease'::text, 'monotone'::text, 'none'::text])))
  CONSTRAINT buckets_pkey PRIMARY KEY (name)
  CONSTRAINT buckets_retention_check CHECK ((retention > '00:00:00'::interval))
  CREATE UNIQUE INDEX buckets_pkey ON objects.buckets USING btree (name)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

TABLE objects.installation
  only_row boolean NOT NULL DEFAULT true
  id uuid NOT NULL DEFAULT gen_random_uuid()
  history text
  since timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone
  grace interval
  CONSTRAINT installation_grace_check CHECK ((grace >= '00:00:00'::interval))
  CONSTRAINT installation_only_row_check CHECK (only_row)
  CONSTRAINT installation_pkey PRIMARY KEY (only_row)
  CREATE UNIQUE INDEX installation_pkey ON objects.installation USING btree (only_row)
  OWNER fence_owner

TABLE objects.parts
  upload uuid NOT NULL
  number integer NOT NULL
  blob uuid NOT NULL
  size bigint NOT NULL
  etag text NOT NULL
  checksum_algorithm text NOT NULL
  checksum text NOT NULL
  changed_at timestamp with time zone NOT NULL DEFAULT now()
  CONSTRAINT parts_blob_key UNIQUE (blob)
  CONSTRAINT parts_number_check CHECK (((number >= 1) AND (number <= 10000)))
  CONSTRAINT parts_pkey PRIMARY KEY (upload, number)
  CREATE UNIQUE INDEX parts_blob_key ON objects.parts USING btree (blob)
  CREATE UNIQUE INDEX parts_pkey ON objects.parts USING btree (upload, number)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

TABLE objects.pointers WITH (fillfactor=80)
  bucket text COLLATE "C" NOT NULL
  key text COLLATE "C" NOT NULL
  version uuid NOT NULL
  size bigint NOT NULL
  etag text NOT NULL
  modified_at timestamp with time zone NOT NULL
  CONSTRAINT pointers_pkey PRIMARY KEY (bucket, key)
  CREATE UNIQUE INDEX pointers_pkey ON objects.pointers USING btree (bucket, key)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

TABLE objects.prefix_rules
  bucket text COLLATE "C" NOT NULL
  prefix text COLLATE "C" NOT NULL
  depth integer NOT NULL
  mode text NOT NULL
  CONSTRAINT prefix_rules_bucket_fkey FOREIGN KEY (bucket) REFERENCES objects.buckets(name) ON DELETE CASCADE
  CONSTRAINT prefix_rules_depth_check CHECK ((depth >= '-1'::integer))
  CONSTRAINT prefix_rules_mode_check CHECK ((mode = ANY (ARRAY['lease'::text, 'monotone'::text, 'none'::text])))
  CONSTRAINT prefix_rules_pkey PRIMARY KEY (bucket, prefix)
  CONSTRAINT prefix_rules_prefix_check CHECK ((prefix <> ''::text))
  CREATE UNIQUE INDEX prefix_rules_pkey ON objects.prefix_rules USING btree (bucket, prefix)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

TABLE objects.retired
  version uuid NOT NULL
  since timestamp with time zone NOT NULL DEFAULT clock_timestamp()
  CONSTRAINT retired_pkey PRIMARY KEY (version)
  CREATE INDEX retired_in_order ON objects.retired USING btree (since)
  CREATE UNIQUE INDEX retired_pkey ON objects.retired USING btree (version)
  OWNER fence_owner

TABLE objects.stages
  id uuid NOT NULL
  bucket text COLLATE "C" NOT NULL
  key text COLLATE "C" NOT NULL
  blob uuid NOT NULL
  blobs uuid[] NOT NULL
  blob_sizes bigint[] NOT NULL
  etag text NOT NULL
  attributes jsonb NOT NULL
  resource text NOT NULL
  token bigint NOT NULL
  if_match text
  if_none_match boolean NOT NULL
  created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
  CONSTRAINT stages_blob_fkey FOREIGN KEY (blob) REFERENCES objects.blobs(id) ON DELETE CASCADE
  CONSTRAINT stages_blob_key UNIQUE (blob)
  CONSTRAINT stages_pkey PRIMARY KEY (id)
  CREATE INDEX stages_in_order ON objects.stages USING btree (bucket, key, id)
  CREATE UNIQUE INDEX stages_blob_key ON objects.stages USING btree (blob)
  CREATE UNIQUE INDEX stages_pkey ON objects.stages USING btree (id)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

TABLE objects.taggings
  id uuid NOT NULL
  version uuid NOT NULL
  bucket text COLLATE "C" NOT NULL
  key text COLLATE "C" NOT NULL
  tags jsonb NOT NULL
  resource text NOT NULL
  token bigint NOT NULL
  invocation_id text
  created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
  CONSTRAINT taggings_pkey PRIMARY KEY (id)
  CONSTRAINT taggings_version_fkey FOREIGN KEY (version) REFERENCES objects.versions(id) ON DELETE CASCADE
  CREATE INDEX taggings_of_version ON objects.taggings USING btree (version)
  CREATE INDEX taggings_to_forget ON objects.taggings USING btree (created_at)
  CREATE UNIQUE INDEX taggings_once ON objects.taggings USING btree (bucket, key, invocation_id) WHERE (invocation_id IS NOT NULL)
  CREATE UNIQUE INDEX taggings_pkey ON objects.taggings USING btree (id)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

TABLE objects.uploads
  id uuid NOT NULL
  bucket text COLLATE "C" NOT NULL
  key text COLLATE "C" NOT NULL
  attributes jsonb NOT NULL
  resource text NOT NULL
  token bigint NOT NULL
  created_at timestamp with time zone NOT NULL DEFAULT now()
  CONSTRAINT uploads_pkey PRIMARY KEY (id)
  CREATE INDEX uploads_in_order ON objects.uploads USING btree (bucket, key, id)
  CREATE INDEX uploads_to_abort ON objects.uploads USING btree (created_at)
  CREATE UNIQUE INDEX uploads_pkey ON objects.uploads USING btree (id)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

TABLE objects.versions
  id uuid NOT NULL
  bucket text COLLATE "C" NOT NULL
  key text COLLATE "C" NOT NULL
  deletion boolean NOT NULL DEFAULT false
  blobs uuid[] NOT NULL
  blob_sizes bigint[] NOT NULL
  size bigint NOT NULL
  etag text NOT NULL
  attributes jsonb NOT NULL DEFAULT '{}'::jsonb
  resource text NOT NULL
  token bigint NOT NULL
  invocation_id text
  created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
  holder text NOT NULL DEFAULT ''::text
  origin uuid
  kept_order bigint
  kept_at timestamp with time zone
  removed_by text
  removed_under text
  removed_with bigint
  removed_at timestamp with time zone
  CONSTRAINT versions_pkey PRIMARY KEY (id)
  CREATE INDEX deletions_to_forget ON objects.versions USING btree (created_at) WHERE (deletion AND (kept_order IS NULL))
  CREATE INDEX versions_kept ON objects.versions USING btree (bucket, key, kept_order DESC) WHERE (kept_order IS NOT NULL)
  CREATE INDEX versions_of_origin ON objects.versions USING btree (origin) WHERE (origin IS NOT NULL)
  CREATE UNIQUE INDEX versions_once ON objects.versions USING btree (bucket, key, invocation_id)
  CREATE UNIQUE INDEX versions_pkey ON objects.versions USING btree (id)
  OWNER fence_owner
  GRANT SELECT TO fence_gateway

FUNCTION objects.abandon_upload(p_blob uuid) RETURNS boolean
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 636569383545b53c60e0072a637e7edd
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.abort_multipart(p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text) RETURNS uuid[]
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 29d394efd8b71ed1bf4a2e063d890289
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.adopt(p_blobs uuid[], p_dry boolean, OUT adopted integer, OUT named integer) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  SET plan_cache_mode=force_custom_plan
  body ddb8122faaa4c6f2940e2e094304d52e
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.ages_since(p_dry boolean) RETURNS timestamp with time zone
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 45485986313b8dd8d21a7c580927b33c
  OWNER fence_owner

FUNCTION objects.answer_lasts() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 7364d661cae5f75ff4984ffa8d3f6edc
  OWNER fence_owner

FUNCTION objects.authorize(p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body b18ddb166993fc8dd2e725e5879fd203
  OWNER fence_owner

FUNCTION objects.authorize_stage(s objects.stages) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body f0d11c2dd841978b20ed19a170e9ef3d
  OWNER fence_owner

FUNCTION objects.begin_change() RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body d5bc71619c57d89ab98fd31138a10fa2
  OWNER fence_owner

FUNCTION objects.begin_multipart(p_upload uuid, p_bucket text, p_key text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text) RETURNS uuid
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 2ffe85fc166e85a05c78ae8382ea0198
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.begin_upload(p_blob uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 65ef318b1dde65c4100707863b44ff44
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.check_expected(v objects.versions, p_if_match text, p_size bigint, p_modified timestamp with time zone) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 17abf51ed5088c20bbd08beb40ae026a
  OWNER fence_owner

FUNCTION objects.check_retained(p_bucket text, p_version uuid) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 4955f2f060b94009b88d2d9c05752280
  OWNER fence_owner

FUNCTION objects.commit_deletion(p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text) RETURNS objects.versions
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 67257716309238527240d04b1d7f2f1a
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.commit_deletion_if(p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_size bigint, p_modified timestamp with time zone) RETURNS objects.versions
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body dba779123b70ab9b08e1677dade3f48b
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.commit_put(p_version uuid, p_bucket text, p_key text, p_blob uuid, p_size bigint, p_etag text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean, OUT version uuid, OUT modified timestamp with time zone, OUT kept boolean) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  SET enable_seqscan=off
  SET plan_cache_mode=force_generic_plan
  body 0b9ee943b7bbf88d0a2982a77859a927
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.commit_puts(p_versions uuid[], p_buckets text[], p_keys text[], p_blobs uuid[], p_sizes bigint[], p_etags text[], p_attributes text[], p_resources text[], p_tokens bigint[], p_seals bytea[], p_invocations text[]) RETURNS TABLE(n integer, modified timestamp with time zone, kept boolean)
  plpgsql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET enable_seqscan=off
  SET plan_cache_mode=force_generic_plan
  SET lock_timeout=50ms
  body 57a426e6f1d693b1321bddee4dae0c0b
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.commit_upload(p_version uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean) RETURNS objects.versions
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 2292d1f664e4713a979931710697bea8
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.complete_multipart(p_upload uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean) RETURNS objects.versions
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body df8e9dedf0185300cd183f3da79f8eab
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.completed_multipart(p_upload uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text) RETURNS objects.versions
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body c49185065606b120f5a4a0c25e09b275
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.condemn(p_pending interval, p_superseded interval, p_limit integer, p_dry boolean, p_shorten boolean) RETURNS integer
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  SET plan_cache_mode=force_generic_plan
  SET jit=off
  SET enable_seqscan=off
  SET enable_bitmapscan=off
  SET enable_hashjoin=off
  SET enable_mergejoin=off
  SET enable_sort=off
  body 68c2e0d85432682ba14963cd3813b401
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.condemned(p_again interval, p_begun timestamp with time zone, p_limit integer) RETURNS SETOF uuid
  plpgsql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET plan_cache_mode=force_generic_plan
  SET jit=off
  SET enable_seqscan=off
  SET enable_bitmapscan=off
  SET enable_sort=off
  body ec17b250647c336345edd9ce4be2240f
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.create_bucket(p_bucket text, p_depth integer, p_mode text DEFAULT 'lease'::text, OUT created boolean, OUT current_depth integer, OUT current_mode text) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 06a1237ff643b014629da576f113302c
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.delete_bucket(p_bucket text) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 5de90dc9c4f1cb627e16237c3e9ccdb3
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.delete_key(p_version uuid, p_bucket text, p_key text, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_size bigint, p_modified timestamp with time zone) RETURNS objects.versions
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 00b91905dd5f75c63c84eaa07522afa2
  OWNER fence_owner

FUNCTION objects.drop_multipart(p_upload uuid) RETURNS uuid[]
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 4007879d7b253da3db55058da8cb7c8e
  OWNER fence_owner

FUNCTION objects.earlier_answer(p_bucket text, p_key text, p_invocation text, p_what text) RETURNS jsonb
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body ff15db5000eb975d9ea880463c96da16
  OWNER fence_owner

FUNCTION objects.earlier_attempt(p_bucket text, p_key text, p_version uuid, p_invocation text) RETURNS objects.versions
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body f626745ba9e165d1554cc30e923f01a4
  OWNER fence_owner

FUNCTION objects.earlier_result(p_bucket text, p_key text, p_invocation text, p_what text) RETURNS jsonb
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body a063050400c45304b951bd5340739781
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.end_upload(p_upload uuid, p_bucket text, p_key text) RETURNS boolean
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 361a2fec3c299c0b2d5c886fc3337a47
  OWNER fence_owner

FUNCTION objects.ensure_bucket(p_bucket text, p_depth integer, p_mode text DEFAULT 'lease'::text) RETURNS boolean
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body fa6f58a7f9bcf6b0a961313902928e62
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.forget_deletions(p_age interval, p_limit integer, p_dry boolean) RETURNS integer
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  SET plan_cache_mode=force_generic_plan
  SET jit=off
  SET enable_seqscan=off
  SET enable_bitmapscan=off
  SET enable_hashjoin=off
  SET enable_mergejoin=off
  SET enable_sort=off
  body d995fdc99af4753d50689187363cd689
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.forget_versions(p_age interval, p_limit integer, p_dry boolean) RETURNS integer
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  SET enable_seqscan=off
  SET plan_cache_mode=force_generic_plan
  body 59f7c47b3874f8f66692c7928308348a
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.grace_for(p_given interval, p_shorten boolean, p_dry boolean) RETURNS interval
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body e26a1bc7706139db1ba7d09ee6e66c7b
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.hold_rules(p_bucket text) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body d790cdf0fa6a1e0aa9213190db68e429
  OWNER fence_owner

FUNCTION objects.hold_upload(p_upload uuid) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 682351bb6ac5abc27ee263e61fbbe80d
  OWNER fence_owner

FUNCTION objects.holder_of(p_resource text) RETURNS text
  plpgsql STABLE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body db5796749ffad2d21106573d1565ea0e
  OWNER fence_owner

FUNCTION objects.is_named(p_origin uuid) RETURNS boolean
  plpgsql STABLE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body c95820c98e707b33345652d5f5095485
  OWNER fence_owner

FUNCTION objects.is_usual() RETURNS boolean
  sql STABLE COST 100
  body d3846ff4c1c041914eafab00d001f388
  OWNER fence_owner

FUNCTION objects.keeps(p_bucket text) RETURNS boolean
  plpgsql STABLE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body a6a33a01709f7ebc7ab021f3d1576273
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.list(p_bucket text, p_prefix text, p_delimiter text, p_after text, p_limit integer) RETURNS TABLE(entry text, is_prefix boolean, size bigint, etag text, modified_at timestamp with time zone)
  plpgsql STABLE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET enable_seqscan=off
  SET enable_bitmapscan=off
  SET plan_cache_mode=force_generic_plan
  SET jit=off
  body 839f080684f8232aa33b8f430a3414e8
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.list_uploads(p_bucket text, p_prefix text, p_delimiter text, p_after_key text, p_after_id uuid, p_limit integer) RETURNS TABLE(entry text, is_prefix boolean, id uuid, created_at timestamp with time zone)
  plpgsql STABLE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET enable_seqscan=off
  SET enable_bitmapscan=off
  SET plan_cache_mode=force_generic_plan
  body 1e6bf6d22a6327b3aaf453ac28047157
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.list_versions(p_bucket text, p_prefix text, p_delimiter text, p_after_key text, p_after_version uuid, p_limit integer) RETURNS TABLE(entry text, is_prefix boolean, id uuid, latest boolean, deletion boolean, size bigint, etag text, modified_at timestamp with time zone, resource text, token bigint, holder text)
  plpgsql STABLE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  SET enable_seqscan=off
  SET enable_bitmapscan=off
  SET plan_cache_mode=force_generic_plan
  body 20241f6fd4c375cb49633e4aa55c8edc
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.lock_current(p_bucket text, p_key text) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 38d316e06106e7295587ba99fd945410
  OWNER fence_owner

FUNCTION objects.lock_pointer(p_bucket text, p_key text, p_if_match text, p_if_none_match boolean) RETURNS objects.pointers
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 7268c4d28b2f718cbf6cb8e7266d1816
  OWNER fence_owner

FUNCTION objects.make_current(made objects.versions, p_if_match text, p_if_none_match boolean) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 243a5e2b5a2b6142d5969ac89565e135
  OWNER fence_owner

FUNCTION objects.note_answer(p_bucket text, p_key text, p_invocation text, p_what text, p_answer jsonb) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 4466e8346ba39e843a99520afeaa779b
  OWNER fence_owner

FUNCTION objects.owner_mark() RETURNS text
  sql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 0ede3878c1772f5f828ec8eff5c33896
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.prefix_end(p text) RETURNS text
  plpgsql IMMUTABLE COST 100
  body 7f6f38d22c210355c9c081d84a76e662
  OWNER fence_owner

FUNCTION objects.prune_versions(p_bucket text, p_key text, p_limit integer, p_dry boolean, OUT pruned integer, OUT bucket text, OUT key text) RETURNS record
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  SET enable_seqscan=off
  SET enable_bitmapscan=off
  SET plan_cache_mode=force_generic_plan
  body e77fb660953d355d4360285c49a17cf5
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.publish(p_stages uuid[], p_if_match text, p_if_none_match boolean) RETURNS SETOF objects.stages
  plpgsql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body b60e5484b09b97f71e9352f3857e13a7
  OWNER fence_owner

FUNCTION objects.publish_one(s objects.stages) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 1dbc2ce4ff80ae0bbb311b6630c2fcb9
  OWNER fence_owner

FUNCTION objects.put_part(p_upload uuid, p_bucket text, p_key text, p_number integer, p_blob uuid, p_size bigint, p_etag text, p_algorithm text, p_checksum text, p_resource text, p_token bigint, p_seal bytea, p_invocation text) RETURNS uuid
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 61e68693693259c05b27ef6968273f27
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.put_tags(p_change uuid, p_bucket text, p_key text, p_version uuid, p_tags jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text) RETURNS uuid
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body de2b5bddff2721f378333283a3827e04
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.raise_monotone(p_resource text, p_token bigint) RETURNS bigint
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 976a95f1a32da2eb69924abc563854b5
  OWNER fence_owner

FUNCTION objects.remove_version(p_bucket text, p_key text, p_version uuid, p_resource text, p_token bigint, p_seal bytea) RETURNS boolean
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 398e08d39f452f19502960d11909b93c
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.remove_version_if(p_bucket text, p_key text, p_version uuid, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_size bigint, p_modified timestamp with time zone) RETURNS boolean
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 85a9d14ecd8ee3b8805630d6324b61c6
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.reserve_blobs(p_blobs uuid[]) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 49c1ef4c2bb11079e0cf35bc9ec6847b
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.resource_of(p_bucket text, p_depth integer, p_key text) RETURNS text
  plpgsql IMMUTABLE PARALLEL SAFE COST 100
  body 040ee76e2834aed7456393e56e4e5623
  OWNER fence_owner

FUNCTION objects.restore_version(p_version uuid, p_bucket text, p_key text, p_source uuid, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_if_match text, p_if_none_match boolean) RETURNS objects.versions
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body e3ae4ee1f74df77b9c18b72949ef1109
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.retire(p_bucket text, p_version uuid) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 946f6d67b6d1af67b231b9f52f1d2ac0
  OWNER fence_owner

FUNCTION objects.return_blobs(p_blobs uuid[]) RETURNS SETOF uuid
  plpgsql VOLATILE SECURITY DEFINER COST 100 ROWS 1000
  SET search_path=pg_catalog, pg_temp
  body d68acf7fcb7ff6256a37b79d2cac715b
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.rule_of(p_bucket text, p_key text, OUT depth integer, OUT mode text) RETURNS record
  plpgsql STABLE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body b6aeaca47f85e2e06fd32bdb7d7b096f
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.set_bucket_document(p_bucket text, p_kind text, p_document text) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body f3034e960b7b3504720e67acaab9530f
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.set_keep(p_bucket text, p_count integer, p_age interval) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 24820518b036cfa6a33338d67b6502b1
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.set_prefix_rule(p_bucket text, p_prefix text, p_depth integer, p_mode text) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body d3d6eac2bfdcf1d25ebf0c6fa17a32d9
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.set_retention(p_bucket text, p_retention interval) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 8f786ff59d61f5cdaf328d83f2706755
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.stage_multipart(p_upload uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea, p_if_match text, p_if_none_match boolean) RETURNS objects.stages
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 8f2036811bb4838958b6e1165b864632
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.stage_stands(p_stage uuid) RETURNS boolean
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body c890becd979d9b6818d39e95479f01da
  OWNER fence_owner

FUNCTION objects.stage_upload(p_stage uuid, p_bucket text, p_key text, p_blobs uuid[], p_blob_sizes bigint[], p_etag text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea, p_if_match text, p_if_none_match boolean, p_invocation text) RETURNS uuid
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 476a490f790a305c9100b5a4350f77eb
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.supersede(p_version uuid) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 32cae18256ac7f649ca35ca8af3ec461
  OWNER fence_owner

FUNCTION objects.sweep_grace() RETURNS interval
  sql STABLE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body f5db1157d930575cda472ac10c70b9b2
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.swept(p_deleted uuid[], p_failed uuid[], p_forget interval) RETURNS void
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body ea2a7c124fccb7650624544a2e2480a7
  OWNER fence_owner
  GRANT EXECUTE TO fence_gateway

FUNCTION objects.take_turn(p_bucket text, p_key text, p_invocation text) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body bc7b75928118780f30fd3eb8bcee4c5c
  OWNER fence_owner

FUNCTION objects.try_put(p_version uuid, p_bucket text, p_key text, p_blob uuid, p_size bigint, p_etag text, p_attributes jsonb, p_resource text, p_token bigint, p_seal bytea, p_invocation text, p_patient boolean, OUT modified timestamp with time zone, OUT kept boolean) RETURNS record
  plpgsql VOLATILE COST 100
  body 390cd2e19b2fa7073459f3a489260b08
  OWNER fence_owner

FUNCTION objects.verify_presented(p_needed text, p_mode text) RETURNS fence.verdict
  plpgsql VOLATILE SECURITY DEFINER COST 100
  SET search_path=pg_catalog, pg_temp
  body 15ad989148dbcabef72d117214b8d3cd
  OWNER fence_owner

FUNCTION objects.wait_for_writes(p_bucket text) RETURNS void
  plpgsql VOLATILE COST 100
  SET search_path=pg_catalog, pg_temp
  body 20971804258a88af97b16341d3e140fd
  OWNER fence_owner

FUNCTION objects.wanted_etag(p_etag text) RETURNS text
  plpgsql IMMUTABLE COST 100
  SET search_path=pg_catalog, pg_temp
  body c6717f2b0b182608c205b67ca631b3ac
  OWNER fence_owner
