package migrations_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.VerifyMain(m, testenv.LeakOptions()...)
}

// twin is one of two databases that run the same steps.
type twin struct {
	conn *pgx.Conn
	put  string // the call that commits an upload of one blob
}

// Both calls return the same columns: the version, and whether the bucket keeps it.
const (
	byPut    = `SELECT p.version::text, p.kept FROM objects.commit_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) p`
	byUpload = `SELECT v.id::text, objects.keeps($2) FROM objects.commit_upload($1, $2, $3, ARRAY[$4::uuid], ARRAY[$5::bigint], $6, $7, $8, $9, $10, $11, $12, $13) v`

	// All stored rows; times are compared only with each other.
	everything = `SELECT jsonb_build_object(
  'versions', (SELECT jsonb_agg(to_jsonb(v) - '{created_at,kept_at,removed_at}'::text[] ORDER BY v.id) FROM objects.versions v),
  'pointers', (SELECT jsonb_agg(to_jsonb(p) - 'modified_at' || jsonb_build_object('same time', p.modified_at = v.created_at) ORDER BY p.bucket, p.key)
                 FROM objects.pointers p LEFT JOIN objects.versions v ON v.id = p.version),
  'blobs', (SELECT jsonb_agg(to_jsonb(b) - 'changed_at' ORDER BY b.id) FROM objects.blobs b),
  'buckets', (SELECT jsonb_agg(to_jsonb(b) - 'created_at' ORDER BY b.name) FROM objects.buckets b),
  'rules', (SELECT jsonb_agg(to_jsonb(r) ORDER BY r.bucket, r.prefix) FROM objects.prefix_rules r),
  'taggings', (SELECT jsonb_agg(to_jsonb(t) - 'created_at' ORDER BY t.id) FROM objects.taggings t),
  'fences', (SELECT jsonb_agg(to_jsonb(f) - 'armed_at' - 'ended_at' || jsonb_build_object('ended', f.ended_at IS NOT NULL) ORDER BY f.resource) FROM fence.resources f))::text`
)

// do runs one statement in its own transaction, and returns the answer as text.
func (w twin) do(t *testing.T, settings, sql string, args ...any) string {
	t.Helper()
	var answer []any
	err := pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), settings); err != nil {
			return err
		}
		rows, _ := tx.Query(t.Context(), sql, args...) // rows returns the error again
		_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (any, error) {
			values, err := row.Values()
			answer = append(answer, values)
			return nil, err
		})
		return err
	})
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return fmt.Sprintf("%s %s; %s", refused.Code, refused.Message, refused.Detail)
	} else if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (w twin) stored(t *testing.T) (text string) {
	t.Helper()
	if err := w.conn.QueryRow(t.Context(), everything).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

// lease is a lease that a writer may present.
type lease struct {
	resource string
	token    int64
	seal     []byte // its hash
}

// steps generates random steps, which are often valid and often nearly valid.
type steps struct {
	*rand.Rand
	made      int
	leases    []lease
	versions  []string
	blobs     []string
	etags     []string
	attempts  []string // invocation ids
	committed int
}

func (s *steps) uuid() string {
	s.made++
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", s.Uint32(), s.made)
}

func (s *steps) chance(percent int) bool { return s.IntN(100) < percent }

func pick[T any](s *steps, list ...T) T { return list[s.IntN(len(list))] }

var (
	someBuckets = []string{"whole", "parts", "keeps", "monotone", "none"}
	someKeys    = []string{"a/1", "a/2", "b/1", "c"}
	leased      = []string{"whole", "parts/a", "parts/b", "parts/c", "keeps", "monotone/a", "elsewhere"}
)

// of usually returns the lease that a key's write needs: the newest one that fits.
func (s *steps) of(bucket, key string) lease {
	needed := bucket
	if bucket == "parts" || bucket == "monotone" {
		needed += "/" + key[:1]
	}
	if !s.chance(10) {
		for _, l := range slices.Backward(s.leases) {
			if l.resource == needed && !s.chance(10) {
				return l
			}
		}
	}
	return pick(s, s.leases...)
}

// present chooses how a gateway passes on the lease: with its seal, by the token alone after it checked the seal itself,
// by the seal alone, as unsealed with the next token, or with a random seal.
func (s *steps) present(l lease) (token int64, seal []byte) {
	switch n := s.IntN(20); {
	case n < 9:
		return l.token, l.seal
	case n < 16:
		return l.token, nil
	case n < 18:
		return 0, l.seal
	case n < 19:
		return l.token + 1, []byte{}
	}
	return l.token + int64(s.IntN(3)) - 1, pick(s, s.leases...).seal
}

// next returns a step: the transaction's settings, and the
// statement. If upload is set, the arguments are those of a commit.
func (s *steps) next() (settings, sql string, args []any, upload bool) {
	bucket, key := pick(s, someBuckets...), pick(s, someKeys...)
	l := s.of(bucket, key)
	token, seal := s.present(l)
	switch n := s.IntN(100); {
	case n < 8:
		settings, sql, args = s.raise(pick(s, leased...))
		return settings, sql, args, false
	case n < 12:
		return "SELECT", `SELECT objects.abandon_upload($1)`, []any{s.known(s.blobs)}, false
	case n < 20:
		return "SELECT", `SELECT (objects.commit_deletion($1, $2, $3, $4, $5, $6, $7, $8)).id::text`,
			[]any{s.uuid(), bucket, key, l.resource, token, seal, s.attempt(), s.etagOr(nil)}, false
	case n < 23:
		return "SELECT", `SELECT objects.put_tags($1, $2, $3, NULL, $4, $5, $6, $7, NULL)::text`,
			[]any{s.uuid(), bucket, key, `{"a": "b"}`, l.resource, token, seal}, false
	case n < 26:
		return "SELECT", `SELECT objects.set_keep($1, $2, NULL)`, []any{bucket, pick(s, 0, 1, 2)}, false
	case n < 28:
		return "SELECT", `SELECT objects.set_prefix_rule($1, $2, $3, $4)`, []any{bucket, pick(s, "a/", "c", "d/"), pick(s, 0, 1), pick(s, "lease", "none", "monotone")}, false
	case n < 32:
		return "SELECT", `SELECT ended FROM fence.end_grants(ARRAY[$1::text], ARRAY[$2::bigint], ARRAY[$3::bytea])`, []any{l.resource, l.token, pick(s, l.seal, nil)}, false
	}
	return s.upload(bucket, key, l, token, seal)
}

// raise returns the step that gives a new lease of a resource.
func (s *steps) raise(resource string) (settings, sql string, args []any) {
	l := lease{resource, int64(len(s.leases) + 1), fmt.Appendf(nil, "%032d", len(s.leases))}
	s.leases = append(s.leases, l)
	return "SELECT", `SELECT fence.raise($1, $2, $3, $4)`, []any{l.resource, l.token, l.seal, "holder of " + resource}
}

func (s *steps) upload(bucket, key string, l lease, token int64, seal []byte) (settings, sql string, args []any, upload bool) {
	settings = "SET LOCAL synchronous_commit = on" // required by commit_put's fast path
	if s.chance(3) {
		settings = pick(s, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SET LOCAL synchronous_commit = off", "SET LOCAL synchronous_commit = remote_apply")
	}
	version, blob := s.uuid(), s.known(s.blobs)
	if s.chance(85) {
		blob = s.uuid() // the caller reserves it
		s.blobs = append(s.blobs, blob)
	}
	if s.chance(8) {
		version = s.known(s.versions)
	}
	s.versions = append(s.versions, version)
	etag := fmt.Sprintf("etag-%d", s.IntN(4))
	s.etags = append(s.etags, etag)
	ifMatch, none := s.etagOr(nil), s.chance(8)
	return settings, "", []any{version, bucket, key, blob, int64(s.IntN(9)), etag, `{"type": "text"}`, l.resource, token, seal, s.attempt(), ifMatch, none}, true
}

// known returns an earlier value, usually a recent one.
func (s *steps) known(list []string) string {
	if len(list) == 0 {
		return s.uuid()
	}
	return list[len(list)-1-s.IntN(min(len(list), 6))]
}

// attempt returns an invocation id, none, or a used one.
func (s *steps) attempt() *string {
	switch n := s.IntN(10); {
	case n < 4:
		return nil
	case n < 6 && len(s.attempts) > 0:
		id := s.known(s.attempts)
		return &id
	}
	id := s.uuid()
	s.attempts = append(s.attempts, id)
	return &id
}

// etagOr returns a condition, usually none.
func (s *steps) etagOr(none *string) *string {
	if len(s.etags) == 0 || !s.chance(20) {
		return none
	}
	text := pick(s, "*", "", "!") + s.known(s.etags)
	if text[0] == '*' {
		text = "*"
	}
	return &text
}

// objects.commit_put has a fast path. Its answer, and the stored rows, must equal those of objects.commit_upload.
func TestThePutOfOneBlobIsACommitLikeAnyOther(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, rand.Uint64()} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			var twins [2]twin
			for i, put := range []string{byPut, byUpload} {
				conn, err := pgx.Connect(t.Context(), testenv.Postgres(t).URL)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close(t.Context()) })
				twins[i] = twin{conn, put}
			}
			s := &steps{Rand: rand.New(rand.NewPCG(seed, 0))}
			s.run(t, twins, 300)
			if s.committed < 30 {
				t.Errorf("of all uploads only %d were committed", s.committed)
			}
		})
	}
}

func (s *steps) run(t *testing.T, twins [2]twin, n int) {
	t.Helper()
	both := func(settings, sql string, args ...any) {
		var said [2]string
		for i, w := range twins {
			if said[i] = w.do(t, settings, sql, args...); sql == "" {
				t.Fatal("no statement")
			}
		}
		if said[0] != said[1] {
			t.Fatalf("%s %v: %s, and %s", sql, args, said[0], said[1])
		}
		if strings.Contains(sql, "fence.raise") && said[0][0] != '[' {
			t.Fatalf("no lease, so nothing is compared: %s", said[0])
		}
	}
	both("SELECT", `SELECT (objects.create_bucket('whole', 0)).created, (objects.create_bucket('parts', 1)).created, (objects.create_bucket('keeps', 0)).created,
		(objects.create_bucket('monotone', 1, 'monotone')).created, (objects.create_bucket('none', 0, 'none')).created`)
	both("SELECT", `SELECT objects.set_keep('keeps', 2, NULL)`)
	for _, resource := range leased {
		settings, sql, args := s.raise(resource)
		both(settings, sql, args...)
	}
	for range n {
		settings, sql, args, upload := s.next()
		if !upload {
			both(settings, sql, args...)
		} else {
			if !s.chance(5) { // otherwise the blob is not reserved
				both("SELECT", `SELECT objects.reserve_blobs(ARRAY[$1::uuid])`, args[3])
			}
			var said [2]string
			for i, w := range twins {
				said[i] = w.do(t, settings, w.put, args...)
			}
			if said[0] != said[1] {
				t.Fatalf("%s; %v:\ncommit_put    %s\ncommit_upload %s", settings, args, said[0], said[1])
			}
			if said[0][0] == '[' {
				s.committed++
			}
		}
		if a, b := twins[0].stored(t), twins[1].stored(t); a != b {
			t.Fatalf("%s; %s %v leaves\n%s\nand\n%s", settings, sql, args, a, b)
		}
	}
}
