package table

// uploading surfaces write files.
var uploading = []string{"s3-small", "s3-large", "s3-multipart", "s3-slow", "publish"}

// objects are bugs of the objects: of the catalogue in PostgreSQL, and of the bytes.
var objects = []Mutant{
	{
		Name: "pointer-without-check",
		What: "The commit of an upload takes whatever grant is recorded and compares no token, so an upload of a " +
			"lease that is over moves the pointer. A client whose body comes slowly, or that goes on as a zombie, " +
			"is enough.",
		File: putSQL, Function: "objects.try_put",
		Old: "SELECT x.seal INTO held FROM fence.resources x WHERE x.resource = p_resource AND x.token = p_token;",
		New: "SELECT x.seal INTO held FROM fence.resources x WHERE x.resource = p_resource;",
		Also: []Change{{
			File: putSQL, Function: "objects.try_put",
			Old: `SELECT x.token, x.holder INTO f FROM fence.resources x
   WHERE x.resource = p_resource AND x.seal = held AND (x.token = p_token OR p_token = 0 AND p_seal IS NOT NULL) AND x.ended_at IS NULL;`,
			New: `SELECT p_token AS token, x.holder INTO f FROM fence.resources x WHERE x.resource = p_resource;`,
		}},
		Run: &Run{
			Surfaces: []string{"s3-small", "s3-large", "s3-slow"}, Faults: []string{"client-stop"}, MaxTTL: short,
			Expect: stale, Within: tries,
		},
	},
	{
		Name: "condemned-and-committed",
		What: "A commit does not look whether a sweep has given its blobs up, so the version names bytes that are " +
			"deleted. It takes sweeps with ages of seconds, and uploads or stages that take longer.",
		File: writeSQL, Function: "objects.commit_upload",
		Old: "IF n <> cardinality(p_blobs) THEN",
		New: "IF false THEN",
		Also: []Change{{
			File: publishSQL, Function: "objects.publish_one",
			Old: "IF n <> cardinality(s.blobs) THEN",
			New: "IF false THEN",
		}},
		Run: &Run{
			Surfaces: []string{"publish", "s3-slow"}, Faults: []string{"sweep"},
			Expect: []string{"unreadable", "torn"}, Within: seldom,
		},
	},
	{
		Name: "sweep-by-age-only",
		What: "A sweep condemns what is old, whatever its state: the bytes of current objects, too. Sweeps with " +
			"ages of seconds are enough, and an object that nobody writes for that long.",
		File: sweepSQL, Function: "objects.condemn",
		Old: `SELECT b.id FROM objects.blobs b
     WHERE b.state = 'superseded' AND b.changed_at > '-infinity' AND b.changed_at < superseded AND NOT objects.is_named(b.version)`,
		New: `SELECT b.id FROM objects.blobs b
     WHERE b.state <> 'condemned' AND b.changed_at < superseded`,
		Run: &Run{Surfaces: uploading, Faults: []string{"sweep"}, Expect: []string{"unreadable", "torn"}, Within: rarely},
	},
	{
		Name: "blob-overwritten-in-place",
		What: "The reserve hands the same blob to one small upload after the other, and the store writes over the " +
			"bytes that are there. The commit of the second is refused and its object made otherwise; that of the " +
			"first has the wrong bytes, or none. No fault is needed.",
		File: "gateway/objects/reserve.go",
		Old:  "id, ok = r.free[0].id, true\n\t\tr.free = r.free[1:]",
		New:  "id, ok = r.free[0].id, true",
		Also: []Change{{
			File: "gateway/blob/dir.go",
			Old:  "\tif err == nil && info.Size() > 0 {\n\t\terr = ErrFilled\n\t}",
			New:  "\t_ = info",
		}},
		Run: &Run{
			Surfaces: []string{"s3-small"}, Faults: []string{"client-stutter"},
			Expect: []string{"wrong-bytes", "torn", "lost"}, Within: rarely,
		},
	},
	{
		Name: "look-up-remembers",
		What: "A gateway remembers the current version of a key for 300 ms. What another gateway has committed " +
			"since is not seen: a read in real time is stale, and a holder computes from it. Two gateways are " +
			"enough.",
		File: "gateway/objects/reader.go",
		Old:  "\t\"strings\"\n\t\"time\"\n",
		New:  "\t\"strings\"\n\t\"sync\"\n\t\"time\"\n",
		Also: []Change{{
			File: "gateway/objects/reader.go",
			Old:  "// Reader finds versions",
			New: `var latest sync.Map

type late struct {
	v  Stored
	at time.Time
}

// Reader finds versions`,
		}, {
			File: "gateway/objects/reader.go",
			Old:  "\tcase err == nil:\n\t\tr.memory.remember(bucket, key, c, began)",
			New: `	case err == nil:
		old, ok := latest.Load(bucket + "/" + key)
		if ok && time.Since(old.(late).at) < 300*time.Millisecond {
			return old.(late).v, true, nil
		}
		if c.key {
			latest.Store(bucket+"/"+key, late{c.Stored, time.Now()})
		}
		r.memory.remember(bucket, key, c, began)`,
		}},
		Run: &Run{
			Surfaces: []string{"s3-small", "s3-large"}, Faults: []string{"client-stutter"},
			Expect: []string{"stale-read", "lost-update", "not-linearizable", "order"}, Within: tries,
		},
	},
}
