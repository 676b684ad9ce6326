package gateway_test

import (
	"io"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencegate/fencegate/internal/testenv"
)

// The cache of a write-once bucket belongs to one PostgreSQL. With Redis nodes a periodic look finds another
// PostgreSQL, otherwise a new connection does.
func TestAnotherPostgreSQLEndsWhatIsRemembered(t *testing.T) {
	t.Parallel()
	for name, embedded := range map[string]bool{"a look": false, "a connection": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t)
			db := pg.Pool(t)
			cfg := config(t, pg)
			cfg.EmbeddedNodes = embedded
			cfg.S3.RootAccessKey, cfg.S3.RootSecretKey = "root", "root-secret"
			c := start(t, cfg)
			files := filesOf(c)
			if a := c.do("PUT", "/v1/buckets/free", map[string]string{"rule": "none", "write_once": "1h"}); a.Status != 201 {
				t.Fatalf("%+v", a)
			}
			files.put("read", "old")
			files.put("other", "new")
			files.wants("read", "old")
			exec := func(sql string) {
				t.Helper()
				if _, err := db.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			exec("UPDATE objects.pointers p SET version = o.version, size = o.size, etag = o.etag FROM objects.pointers o WHERE p.key = 'read' AND o.key = 'other'")
			files.wants("read", "old") // it is cached
			exec(`CREATE OR REPLACE FUNCTION fence.identity(OUT identity text, OUT written pg_lsn, OUT beats bigint, OUT invalidations text[]) LANGUAGE sql
				SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT '1/2/3', pg_current_wal_flush_lsn(), 0::bigint, ARRAY[]::text[] $$`)
			if embedded {
				exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
			}
			testenv.Eventually(t, "it is forgotten", func() bool { return files.get("absent") == "" && files.get("read") == "new" })
		})
	}
}

// files are root's objects in the bucket free.
type files struct {
	c  *client
	s3 *awss3.Client
}

func filesOf(c *client) files {
	return files{c, awss3.New(awss3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://" + c.g.Addrs().S3), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider("root", "root-secret", ""), HTTPClient: c.http,
	})}
}

func (f files) put(key, data string) {
	f.c.t.Helper()
	if _, err := f.s3.PutObject(f.c.t.Context(), &awss3.PutObjectInput{Bucket: aws.String("free"), Key: &key, Body: strings.NewReader(data)}); err != nil {
		f.c.t.Fatal(err)
	}
}

// get returns the content of a key; "" if it cannot be read.
func (f files) get(key string) string {
	out, err := f.s3.GetObject(f.c.t.Context(), &awss3.GetObjectInput{Bucket: aws.String("free"), Key: &key})
	if err != nil {
		return ""
	}
	defer func() { _ = out.Body.Close() }()
	data, _ := io.ReadAll(out.Body)
	return string(data)
}

func (f files) wants(key, data string) {
	f.c.t.Helper()
	if got := f.get(key); got != data {
		f.c.t.Errorf("%s holds %q, want %q", key, got, data)
	}
}
