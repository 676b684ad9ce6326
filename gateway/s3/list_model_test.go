//go:build unix

package s3_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/internal/testenv"
)

// question is one call of objects.list.
type question struct {
	prefix, delimiter, after string
	limit                    int
}

// listModel returns the expected answer of a list: a key is followed by its size, a common prefix is not. The keys are
// ordered by their bytes.
func listModel(keys []string, q question) []string {
	folder := func(key string) string { // the common prefix of the key; "": none
		below, found := strings.CutPrefix(key, q.prefix)
		if !found || q.delimiter == "" {
			return ""
		}
		if part, _, cut := strings.Cut(below, q.delimiter); cut {
			return q.prefix + part + q.delimiter
		}
		return ""
	}
	var all []string
	last := ""
	for _, key := range keys {
		if !strings.HasPrefix(key, q.prefix) || key <= q.after || q.after != "" && q.after == folder(q.after) && folder(key) == q.after {
			continue
		}
		entry := fmt.Sprintf("%q %d", key, sizeOf(key))
		if f := folder(key); f != "" {
			entry = fmt.Sprintf("%q", f)
		}
		if entry == last {
			continue
		}
		if len(all) == q.limit {
			break
		}
		all, last = append(all, entry), entry
	}
	return all
}

// sizeOf returns a key's size in the tests of lists.
func sizeOf(key string) (n int64) {
	for _, b := range []byte(key) {
		n = (n*31 + int64(b)) % 1_000_003
	}
	return n
}

// alphabet is what names are made of.
type alphabet struct {
	characters []string
	few        []string // of which names often collide
	delimiters []string // the first one is none
}

// The ends of the ranges that UTF-8 encodes in one to four bytes, and of the gap within them.
var unicodeNames = alphabet{
	[]string{"\x01", "a", "b", "-", "/", "0", "\x7f", "\u0080", "ä", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010FFFF"},
	[]string{"a", "b", "/", "\U0010FFFF"},
	[]string{"", "/", "/", "//", "-", "ab", "aa", "ä", "\x7f", "\ud7ff", "\U0010FFFF", "/\U0010FFFF", "\U0010FFFF\U0010FFFF"},
}

func (a alphabet) name(rng *rand.Rand, longest int) string {
	var b strings.Builder
	runes := a.characters
	if rng.IntN(2) == 0 {
		runes = a.few
	}
	for range rng.IntN(longest + 1) {
		b.WriteString(runes[rng.IntN(len(runes))])
	}
	return b.String()
}

// keys returns single keys, and folders of one key, of a few and of many, alternating or in long runs.
func (a alphabet) keys(rng *rand.Rand) []string {
	delimiters := a.delimiters[1:]
	set := map[string]bool{}
	for range rng.IntN(60) {
		set[a.name(rng, 6)] = true
	}
	for range rng.IntN(4) {
		top := a.name(rng, 2)
		delimiter := delimiters[rng.IntN(len(delimiters))]
		sizes := [][]int{{1}, {30}, {0}, {0, 30}, {1, 30}, {7, 8, 9, 10, 11}, {0, 1, 2, 8, 9, 30}}[rng.IntN(7)]
		for i := range 1 + rng.IntN(80) {
			folder := fmt.Sprintf("%s%c%c", top, 'a'+i/26, 'a'+i%26)
			size := sizes[rng.IntN(len(sizes))]
			if size == 0 {
				set[folder] = true
			}
			for k := range size {
				set[fmt.Sprintf("%s%s%c", folder, delimiter, 'A'+k)] = true
			}
		}
	}
	delete(set, "")
	keys := make([]string, 0, len(set))
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (a alphabet) question(rng *rand.Rand, keys []string) question {
	piece := func() string { // the beginning of a key
		if len(keys) == 0 {
			return ""
		}
		key := []rune(keys[rng.IntN(len(keys))])
		return string(key[:rng.IntN(len(key)+1)])
	}
	q := question{delimiter: a.delimiters[rng.IntN(len(a.delimiters))], limit: []int{0, 1, 2, 3, 10, 40, 1001}[rng.IntN(7)]}
	switch rng.IntN(4) {
	case 0:
		q.prefix = piece()
	case 1:
		q.prefix = a.name(rng, 2)
	}
	switch rng.IntN(6) {
	case 0:
		q.after = piece()
	case 1:
		q.after = a.name(rng, 4)
	case 2:
		q.after = q.prefix + a.name(rng, 2) + q.delimiter
	}
	return q
}

func fillKeys(t *testing.T, db *pgxpool.Pool, bucket string, keys []string) {
	t.Helper()
	sizes := make([]int64, len(keys))
	for i, key := range keys {
		sizes[i] = sizeOf(key)
	}
	_, err := db.Exec(t.Context(), `INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
		SELECT $1, k, gen_random_uuid(), s, 'e' || s, timestamptz 'epoch' + s * interval '1s' FROM unnest($2::text[], $3::bigint[]) u (k, s)`, bucket, keys, sizes)
	if err != nil {
		t.Fatal(err)
	}
}

// asked returns the answer of objects.list in listModel's form.
func asked(t *testing.T, db *pgxpool.Pool, bucket string, q question) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT entry, is_prefix, size,
		CASE WHEN is_prefix THEN etag IS NULL AND modified_at IS NULL ELSE etag = 'e' || size AND modified_at = timestamptz 'epoch' + size * interval '1s' END
		FROM objects.list($1, $2, $3, $4, $5)`, bucket, q.prefix, q.delimiter, q.after, q.limit)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var entry string
		var isPrefix, fits bool
		var size *int64
		if err := row.Scan(&entry, &isPrefix, &size, &fits); err != nil {
			return "", err
		}
		if isPrefix != (size == nil) || !fits {
			t.Errorf("%+v: %q: is_prefix %v, size %v, and the rest fits: %v", q, entry, isPrefix, size, fits)
		}
		if size == nil {
			return fmt.Sprintf("%q", entry), nil
		}
		return fmt.Sprintf("%q %d", entry, *size), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestListsAnswerAsTheModelDoes compares objects.list with a simple model in Go, for random keys, prefixes, delimiters,
// starting points and limits, and the pages with the whole list.
func TestListsAnswerAsTheModelDoes(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t).Pool(t)
	fillKeys(t, db, "bucket 0", []string{"/", "aa/a", "zz", "\U0010FFFF/"}) // neighbours in the table
	fillKeys(t, db, "bucket 9", []string{"", "/", "aa/a", "zz"})
	for seed := range uint64(40) {
		asksAsTheModel(t, db, unicodeNames, seed)
	}
}

// asksAsTheModel fills a bucket, and returns its name and keys.
func asksAsTheModel(t *testing.T, db *pgxpool.Pool, a alphabet, seed uint64) (bucket string, keys []string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	bucket, keys = fmt.Sprintf("bucket 5.%d", seed), a.keys(rng)
	fillKeys(t, db, bucket, keys)
	for range 60 {
		q := a.question(rng, keys)
		if got, want := asked(t, db, bucket, q), listModel(keys, q); !slices.Equal(got, want) {
			t.Fatalf("seed %d, %+v of %d keys:\n got %s\nwant %s", seed, q, len(keys), got, want)
		}
	}
	q := a.question(rng, keys)
	q.limit = 1 + rng.IntN(7)
	var paged []string
	whole := listModel(keys, question{prefix: q.prefix, delimiter: q.delimiter, after: q.after, limit: 1_000_000})
	for len(paged) <= len(whole) {
		page := asked(t, db, bucket, q)
		if paged = append(paged, page...); len(page) < q.limit {
			break
		}
		if _, err := fmt.Sscanf(page[len(page)-1], "%q", &q.after); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(paged, whole) {
		t.Fatalf("seed %d, pages of %d with %+v:\n got %s\nwant %s", seed, q.limit, q, paged, whole)
	}
	return bucket, keys
}
