package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"

	"github.com/fencegate/fencegate/bench/internal/run"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
)

// s3Subject measures the S3 port against versitygw's POSIX back end and MinIO, if there is one, each in its own process,
// on the same disk, with the same client.
//
// Ours writes under a current lease: the fence is checked in each commit, blobs and their folders are synced, and
// PostgreSQL has fsync=on. versitygw's POSIX back end syncs nothing. MinIO, on one drive, opens its files with O_DSYNC
// or syncs them, and renames.
func s3Subject() subject {
	on := func(measure func(context.Context, *bench, *s3World)) func(context.Context, *bench, *stack.Stack) {
		return func(ctx context.Context, b *bench, s *stack.Stack) { measure(ctx, b, startS3(ctx, b, s)) }
	}
	return subject{
		name: "s3", workers: []int{1, 16, 64}, slice: time.Second, rounds: 5, contenders: []string{"versitygw", "minio", "ours"},
		parts: []part{{name: "memory", run: on(s3Memory)}, {name: "put", run: on(s3Put)}, {name: "get", run: on(s3Get)}, {name: "list", run: on(s3List)}, {name: "writes", run: on(s3Writes), extra: true}},
	}
}

// s3World are the servers, and the PostgreSQL of ours.
type s3World struct {
	database

	servers []*s3Server // ours is the last one
}

// s3Server is an S3 server in its own process.
type s3Server struct {
	*s3Client

	name   string
	folder string // the folder of its objects
	pid    int
}

func startS3(ctx context.Context, b *bench, s *stack.Stack) *s3World {
	w := &s3World{database: startDatabase(ctx, s, stack.PostgresConfig{Durable: true, Settings: map[string]string{"autovacuum": "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}})}
	minio, _ := exec.LookPath("minio")
	if minio == "" {
		b.Printf("there is no minio; it is left out\n")
	}
	for _, name := range []string{"versitygw", "minio", "ours"} {
		if (name != "minio" || minio != "") && b.Chosen(name) {
			w.servers = append(w.servers, w.start(ctx, s, name, minio))
		}
	}
	if len(w.servers) == 0 {
		run.Check(errors.New("none of the chosen servers is on this machine"))
	}
	return w
}

// start starts a server and returns when it has the bucket. For ours the bucket is one resource, and the client gets the
// credentials of its lease.
func (w *s3World) start(ctx context.Context, s *stack.Stack, name, minio string) *s3Server {
	one, addr := &s3Server{name: name, folder: filepath.Join(s.Dir, name)}, run.Must(stack.FreeAddr())
	run.Check(os.Mkdir(one.folder, 0o700))
	one.s3Client = newS3Client(s, addr, aws.Credentials{AccessKeyID: "access-" + rand.Text(), SecretAccessKey: rand.Text()})
	config := server{Kind: name, Addr: addr, Folder: one.folder, Access: one.keys.AccessKeyID, Secret: one.keys.SecretAccessKey}
	look := func(ctx context.Context) error {
		_, err := one.send(ctx, http.MethodPut, "/"+bucket, nil, 0)
		return err
	}
	switch name {
	case "ours":
		config.Kind, config.Postgres, config.Key = "s3", w.Admin()+"&pool_max_conns=20", stack.NewMasterKey()
		one.pid = config.spawn(ctx, s, look).Pid()
	case "versitygw":
		one.pid = config.spawn(ctx, s, look).Pid()
	default:
		one.pid = run.Must(s.Run(ctx, "server-minio", child.Spec{
			Path: minio, Args: []string{"server", "--quiet", "--address", addr, "--console-address", "127.0.0.1:0", one.folder},
			Env: append(os.Environ(), "MINIO_ROOT_USER="+config.Access, "MINIO_ROOT_PASSWORD="+config.Secret, "MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_CALLHOME_ENABLE=off"),
		}, look)).Pid()
	}
	if name == "ours" {
		run.Must(w.Arm(ctx, bucket, 7))
		c := run.Must(run.Must(credentials.ParseKeyring(config.Key)).Issue(bucket, 7, time.Now().Add(24*time.Hour), 0))
		one.keys = aws.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.SessionToken}
	}
	return one
}

// s3 is ours: the port alone, so that it is compared with what does as much.
func (s server) s3(ctx context.Context) {
	srv := run.Must(stack.StartS3(ctx, stack.S3Config{
		URL: s.Postgres, Blobs: s.Folder, MasterKey: s.Key, Addr: s.Addr, Root: credentials.Credentials{AccessKeyID: s.Access, SecretAccessKey: s.Secret},
	}))
	<-ctx.Done()
	run.Check(srv.Close())
}

// versitygw runs with its own command's settings.
func (s server) versitygw(ctx context.Context) {
	be := run.Must(posix.New(s.Folder, meta.XattrMeta{}, posix.PosixOpts{NewDirPerm: 0o755, Concurrency: 5000}))
	root := middlewares.RootUserConfig{Access: s.Access, Secret: s.Secret}
	iam := auth.NewIAMServiceSingle(auth.Account{Access: root.Access, Secret: root.Secret, Role: auth.RoleAdmin})
	srv := run.Must(s3api.New(be, root, "us-east-1", iam, nil, nil, nil, nil, s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithConcurrencyLimiter(100_000, 100_000)))
	ended := make(chan error, 1)
	go func() { ended <- srv.ServeMultiPort([]string{s.Addr}) }()
	select {
	case err := <-ended:
		run.Check(err)
	case <-ctx.Done():
	}
}

// The meters of processor time: of a server, its PostgreSQL, and the clients, which are this process.
const (
	ofServer   = "server"
	ofPostgres = "PostgreSQL"
	ofClients  = "clients"
)

// contenders let clients repeat an operation on each server.
func (w *s3World) contenders(do func(ctx context.Context, one *s3Server, n int64) error) (all []run.Contender) {
	for _, one := range w.servers {
		c := run.Contender{Name: one.name, Op: func(ctx context.Context, _ int, n int64) error { return do(ctx, one, n) }, Meters: slices.Concat(
			cost(ofServer, func() time.Duration { return spentBy(one.pid) }),
			cost(ofClients, func() time.Duration { return spentBy(os.Getpid()) }),
		)}
		if one.name == "ours" {
			c.Peers = []string{"versitygw", "minio"}
			c.Meters = append(c.Meters, cost(ofPostgres, func() time.Duration { return spentByTree(w.Pid()) })...)
		}
		all = append(all, c)
	}
	return all
}

const largeSize = 16 << 20

// eachSize runs a part with every size and number of clients.
func eachSize(b *bench, f func(size objectSize, clients int)) {
	sizes := b.sizes
	if b.Quick {
		sizes = sizes[:min(2, len(sizes))]
	}
	for _, size := range sizes {
		for i, clients := range b.Workers {
			if size.bytes <= largeSize || i == 0 {
				f(size, clients)
			}
		}
	}
}

// s3Put writes 256 keys again and again, so that the disk does not fill up.
func s3Put(ctx context.Context, b *bench, w *s3World) {
	multixacts := func() (n int64) { // how many there have been in all tables; each is work for VACUUM
		w.ask(ctx, "SELECT mxid_age('1'::xid)", &n)
		return n
	}
	before := multixacts()
	eachSize(b, func(size objectSize, clients int) {
		keys, name := int64(256), fmt.Sprintf("put.%s.c%d", size.text, clients)
		if size.bytes > largeSize {
			keys = 2
		}
		results := b.Measure(ctx, run.Cell{Name: name, Workers: clients}, w.contenders(func(ctx context.Context, one *s3Server, n int64) error {
			return one.put(ctx, fmt.Sprintf("put/%s/%d", size.text, n%keys), size.bytes)
		})...)
		if size.text != "4KiB" {
			return
		}
		b.AtLeast("s3."+name+".minio", results, "ours", "minio", 1)
		if ours := results["ours"]; clients > 1 && ours != nil {
			within := func(part, meter string, most time.Duration) {
				if _, measured := ours.Meters["µs of "+meter]; !measured {
					return
				}
				b.Within("s3."+name+".processor."+part, time.Duration(ours.Meter("µs of "+meter)*float64(time.Microsecond)), most)
			}
			within("postgres", ofPostgres, 500*time.Microsecond)
			within("server", ofServer, 600*time.Microsecond)
		}
	})
	made := multixacts() - before
	b.Add(run.Goal{Name: "s3.put.multixacts", Ours: strconv.FormatInt(made, 10), Peer: "0", Ratio: float64(made), Want: 0, AtMost: true})
}

func s3Get(ctx context.Context, b *bench, w *s3World) {
	eachSize(b, func(size objectSize, clients int) {
		keys, name := int64(16), fmt.Sprintf("get.%s.c%d", size.text, clients)
		if size.bytes > largeSize {
			keys = 1
		}
		key := func(n int64) string { return fmt.Sprintf("get/%s/%d", size.text, n%keys) }
		for _, one := range w.servers {
			for n := range keys {
				run.Check(one.put(ctx, key(n), size.bytes))
			}
		}
		results := b.Measure(ctx, run.Cell{Name: name, Workers: clients}, w.contenders(func(ctx context.Context, one *s3Server, n int64) error {
			return one.get(ctx, key(n), size.bytes)
		})...)
		b.AtLeast("s3."+name+".versitygw", results, "ours", "versitygw", 1)
	})
}

// s3Memory uploads 1 GiB and measures the memory that it took.
func s3Memory(ctx context.Context, b *bench, w *s3World) {
	for _, one := range w.servers {
		run.Check(one.put(ctx, "small", 1))
		idle := memory(one.pid, "VmRSS")
		run.Check(os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", one.pid), []byte("5"), 0o600)) // resets the peak
		run.Check(one.put(ctx, "large", 1<<30))
		const mib = 1 << 20
		grown := float64(memory(one.pid, "VmHWM")-idle) / mib
		b.Printf("%-30s %-22s %10.1f MiB over %.1f idle\n", "memory.put.1GiB", one.name, grown, float64(idle)/mib)
		if one.name == "ours" {
			b.Add(run.Goal{Name: "s3.memory.put.1GiB", Ours: fmt.Sprintf("%.1fMiB", grown), Peer: "40MiB", Ratio: grown / 40, Want: 1, AtMost: true})
		}
	}
}

// s3List lists all of 100,000 keys, a page of a thousand from many under a delimiter, and a thousand folders.
func s3List(ctx context.Context, b *bench, w *s3World) {
	const page = 1000
	all, most := 100_000, 1_000_000
	if b.Quick {
		all, most = 20_000, 20_000
	}
	w.servers = slices.DeleteFunc(w.servers, func(one *s3Server) bool { return one.name == "minio" }) // its storage can't be filled beside its port
	for _, one := range w.servers {
		w.fill(ctx, one, "flat/", "", all)
		w.fill(ctx, one, "many/", "", most)
		w.fill(ctx, one, "folders/", "/key", page)
	}
	w.exec(ctx, "VACUUM ANALYZE objects.pointers")
	for _, list := range []struct {
		name, prefix, delimiter string
		want                    int
		goal                    float64
	}{
		{fmt.Sprintf("all-of-%d-keys", all), "flat/", "", all, 0},
		{fmt.Sprintf("1000-of-%d-keys", most), "many/", "/", page, 10},
		{"1000-folders", "folders/", "/", page, 0},
	} {
		results := b.Measure(ctx, run.Cell{Name: "list." + list.name, Workers: 1}, w.contenders(func(ctx context.Context, one *s3Server, _ int64) error {
			n, err := one.list(ctx, list.prefix, list.delimiter, list.want)
			if err == nil && n != list.want {
				err = fmt.Errorf("list of %s has %d entries, wanted %d", list.prefix, n, list.want)
			}
			return err
		})...)
		if list.goal > 0 {
			b.AtLeast("s3.list."+list.name+".versitygw", results, "ours", "versitygw", list.goal)
		}
	}
}

// fill stores n keys, prefix, number and suffix, directly in a server's storage: rows for ours, empty files for versitygw.
func (w *s3World) fill(ctx context.Context, one *s3Server, prefix, suffix string, n int) {
	if one.name == "ours" {
		w.exec(ctx, `INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
			SELECT $1, $2 || lpad(n::text, 7, '0') || $3, gen_random_uuid(), 1, 'e', now() FROM generate_series(0, $4::integer - 1) n`, bucket, prefix, suffix, n)
		return
	}
	for i := range n {
		path := filepath.Join(one.folder, bucket, prefix, fmt.Sprintf("%07d", i)) + suffix
		if i == 0 || suffix != "" {
			run.Check(os.MkdirAll(filepath.Dir(path), 0o700))
		}
		run.Check(run.Must(os.Create(path)).Close())
	}
}

// list counts the entries below a prefix, page by page, until it has enough.
func (c *s3Client) list(ctx context.Context, prefix, delimiter string, enough int) (n int, err error) {
	for token := ""; ; {
		query := url.Values{"list-type": {"2"}, "prefix": {prefix}}
		if delimiter != "" {
			query.Set("delimiter", delimiter)
		}
		if token != "" {
			query.Set("continuation-token", token)
		}
		text, err := c.send(ctx, http.MethodGet, "/"+bucket+"?"+strings.ReplaceAll(query.Encode(), "+", "%20"), nil, 0)
		if err != nil {
			return n, err
		}
		n += strings.Count(text, "<Key>") + strings.Count(text, "<CommonPrefixes>")
		token = between(text, "<NextContinuationToken>", "</NextContinuationToken>")
		if token == "" || n >= enough {
			return n, nil
		}
	}
}

func between(text, before, after string) string {
	_, rest, _ := strings.Cut(text, before)
	found, _, _ := strings.Cut(rest, after)
	return found
}

// A write's cost in PostgreSQL: rows, WAL, space and flushes. There is a single client, so that no commits are shared.

const writesOf = 256 // of each kind; blobs are reserved 128 at a time

// books are PostgreSQL's counters, with the names of the columns.
var books = []string{"rows made", "changed", "in place", "deleted", "bytes of WAL", "records", "page images", "flushes", "bytes of room"}

const sqlBooks = `SELECT ARRAY[t.inserted, t.updated, t.hot, t.deleted, pg_current_wal_insert_lsn() - '0/0', w.wal_records, w.wal_fpi, w.wal_sync,
  (SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.relnamespace = 'objects'::regnamespace AND c.relkind = 'r')]::float8[]
FROM pg_stat_wal w, (SELECT sum(n_tup_ins) AS inserted, sum(n_tup_upd) AS updated, sum(n_tup_hot_upd) AS hot, sum(n_tup_del) AS deleted
  FROM pg_stat_user_tables) t`

// meters read the books at once, with the first one.
func (w *s3World) meters() (all []run.Meter) {
	var counters []float64
	for i, name := range books {
		all = append(all, run.Meter{Name: name, Read: func(ctx context.Context) float64 {
			if i == 0 {
				time.Sleep(11 * time.Second) // longer than an idle PostgreSQL session delays reporting its counters
				w.ask(ctx, sqlBooks, &counters)
			}
			return counters[i]
		}})
	}
	return all
}

// writeKind is a kind of write: the request of the n-th.
type writeKind struct {
	name          string
	method, query string // with %UPLOAD% for the n-th upload's id
	keys          string // the n-th key is that and n
	text          string // with %ETAG% for that of the n-th upload's part
	header        []string
	keep          string                       // versions of the bucket; default: 0
	take          func(n int64, answer string) // what is noted of the answer
}

func writeKinds(ids, parts *[writesOf]string) []writeKind {
	text, large := strings.Repeat("x", 4<<10), strings.Repeat("x", 128<<10)
	const tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
	const upload = "?uploadId=%UPLOAD%"
	begin := writeKind{name: "CreateMultipartUpload", method: http.MethodPost, query: "?uploads", keys: "m", take: func(n int64, answer string) {
		ids[n] = between(answer, "<UploadId>", "</UploadId>")
	}}
	return []writeKind{
		{name: "PUT, 4 KiB, a new key", method: http.MethodPut, keys: "s", text: text},
		{name: "PUT, 4 KiB, over another", method: http.MethodPut, keys: "s", text: text},
		{name: "PUT, 4 KiB, versions are kept", method: http.MethodPut, keys: "s", text: text, keep: "NULL"},
		{name: "PUT, 128 KiB, a new key", method: http.MethodPut, keys: "l", text: large},
		{name: "PUT, 128 KiB, over another", method: http.MethodPut, keys: "l", text: large},
		{name: "CopyObject, 4 KiB", method: http.MethodPut, keys: "c", header: []string{"X-Amz-Copy-Source", "/" + bucket + "/w/s1"}},
		{name: "PUT, 4 KiB, staged", method: http.MethodPut, keys: "g", text: text, header: []string{"Fencing-Stage", "true"}},
		{name: "PutObjectTagging", method: http.MethodPut, keys: "s", query: "?tagging", text: tags},
		{name: "DELETE", method: http.MethodDelete, keys: "s"},
		begin,
		{name: "UploadPart", method: http.MethodPut, keys: "m", query: upload + "&partNumber=1", text: large},
		{name: "ListParts", method: http.MethodGet, keys: "m", query: upload, take: func(n int64, answer string) { parts[n] = between(answer, "<ETag>", "</ETag>") }},
		{
			name: "CompleteMultipartUpload", method: http.MethodPost, keys: "m", query: upload,
			text: "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%ETAG%</ETag></Part></CompleteMultipartUpload>",
		},
		begin, // to abort
		{name: "AbortMultipartUpload", method: http.MethodDelete, keys: "m", query: upload},
	}
}

// s3Writes measures each kind of write to ours.
func s3Writes(ctx context.Context, b *bench, w *s3World) {
	one := w.servers[len(w.servers)-1]
	if one.name != "ours" {
		return
	}
	for n := range writesOf { // warm-up: tables get pages, plans are made
		run.Check(one.put(ctx, "w/warm"+strconv.Itoa(n), 4<<10))
	}
	var ids, parts [writesOf]string
	for _, kind := range writeKinds(&ids, &parts) {
		w.exec(ctx, "SELECT objects.set_keep($1, "+cmp.Or(kind.keep, "0")+", NULL)", bucket)
		b.Measure(ctx, run.Cell{Name: kind.name, Workers: 1, Ops: writesOf, Slice: time.Minute, Rounds: 1, Cold: true}, run.Contender{Name: "ours", Meters: w.meters(), Op: func(ctx context.Context, _ int, count int64) error {
			n := count - 1
			query, text := strings.ReplaceAll(kind.query, "%UPLOAD%", ids[n]), strings.ReplaceAll(kind.text, "%ETAG%", parts[n])
			var body io.Reader
			if text != "" {
				body = strings.NewReader(text)
			}
			answer, err := one.send(ctx, kind.method, fmt.Sprintf("/%s/w/%s%d%s", bucket, kind.keys, n, query), body, int64(len(text)), kind.header...)
			if kind.take != nil {
				kind.take(n, answer)
			}
			return err
		}})
	}
}

// objectSize is a size such as "4KiB".
type objectSize struct {
	text  string
	bytes int64
}

func parseSize(text string) (objectSize, error) {
	for unit, bytes := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if number, has := strings.CutSuffix(text, unit); has {
			n, err := strconv.ParseInt(number, 10, 64)
			return objectSize{text, n * bytes}, err
		}
	}
	return objectSize{}, errors.New("a size ends in KiB, MiB or GiB")
}
