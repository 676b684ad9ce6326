//go:build unix

package s3_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// fill creates pointers without uploads.
func (w *world) fill(bucket string, keys ...string) {
	w.t.Helper()
	_, err := w.admin.Exec(w.t.Context(), `INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
		SELECT $1, k, gen_random_uuid(), 1, 'e', now() FROM unnest($2::text[]) k`, bucket, keys)
	if err != nil {
		w.t.Fatal(err)
	}
}

// names lists all pages: objects, and common prefixes in brackets.
func names(t *testing.T, c *awss3.Client, in awss3.ListObjectsV2Input) []string {
	t.Helper()
	var all []string
	for page := range 100 {
		out, err := c.ListObjectsV2(t.Context(), &in)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range out.Contents {
			got = append(got, *o.Key)
		}
		for _, p := range out.CommonPrefixes {
			got = append(got, "["+*p.Prefix+"]")
		}
		slices.SortFunc(got, func(a, b string) int { return strings.Compare(strings.Trim(a, "[]"), strings.Trim(b, "[]")) })
		all = append(all, got...)
		if len(got) != int(*out.KeyCount) || in.MaxKeys != nil && len(got) > int(*in.MaxKeys) {
			t.Errorf("page %d holds %d entries, says %d", page, len(got), *out.KeyCount)
		}
		if !*out.IsTruncated {
			return all
		}
		in.ContinuationToken = out.NextContinuationToken
	}
	t.Fatal("the listing does not end")
	return nil
}

func TestListingIsInByteOrderWithPrefixesDelimitersAndPages(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	keys := []string{"a", "a/1", "a/2", "a/b/1", "a/b/2", "a0", "b/", "b/x", "c//d", "Z", "ä/1", "\U0010FFFF/1", "\U0010FFFF/2", "\uD7FF/x", "~"}
	w.fill(bucket, keys...)
	w.fill("other", "a", "zzz")
	slices.Sort(keys)
	root := w.root()
	for _, c := range []struct {
		prefix, delimiter, after string
		want                     []string
	}{
		{"", "", "", keys},
		{"", "/", "", []string{"Z", "a", "[a/]", "a0", "[b/]", "[c/]", "~", "[ä/]", "[\uD7FF/]", "[\U0010FFFF/]"}},
		{"a/", "/", "", []string{"a/1", "a/2", "[a/b/]"}},
		{"a", "/", "", []string{"a", "[a/]", "a0"}},
		{"c/", "/", "", []string{"[c//]"}},
		{"a/b/", "/", "", []string{"a/b/1", "a/b/2"}},
		{"nothing", "/", "", nil},
		{"", "b/", "", []string{"Z", "a", "a/1", "a/2", "[a/b/]", "a0", "[b/]", "c//d", "~", "ä/1", "\uD7FF/x", "\U0010FFFF/1", "\U0010FFFF/2"}},
		{"", "", "a/2", []string{"a/b/1", "a/b/2", "a0", "b/", "b/x", "c//d", "~", "ä/1", "\uD7FF/x", "\U0010FFFF/1", "\U0010FFFF/2"}},
		{"", "/", "a/", []string{"a0", "[b/]", "[c/]", "~", "[ä/]", "[\uD7FF/]", "[\U0010FFFF/]"}},
		{"a/", "", "b", nil},
	} {
		for _, size := range []int32{1, 2, 3, 1000} {
			got := names(t, root, awss3.ListObjectsV2Input{Bucket: &bucket, Prefix: &c.prefix, Delimiter: &c.delimiter, StartAfter: &c.after, MaxKeys: &size})
			if !slices.Equal(got, c.want) {
				t.Errorf("prefix %q delimiter %q after %q pages of %d:\n got %q\nwant %q", c.prefix, c.delimiter, c.after, size, got, c.want)
			}
		}
	}
}

func TestTheFirstListingAndTheURLEncoding(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.fill(bucket, "a b/1", "a b/2", "a+b", "c")
	first, err := w.root().ListObjects(t.Context(), &awss3.ListObjectsInput{Bucket: &bucket, Delimiter: aws.String("/"), MaxKeys: aws.Int32(1)})
	if err != nil {
		t.Fatal(err)
	}
	if !*first.IsTruncated || len(first.CommonPrefixes) != 1 || *first.NextMarker != "a b/" {
		t.Errorf("got %+v", first)
	}
	second, err := w.root().ListObjects(t.Context(), &awss3.ListObjectsInput{
		Bucket: &bucket, Delimiter: aws.String("/"), Marker: first.NextMarker,
		EncodingType: types.EncodingTypeUrl,
	})
	if err != nil {
		t.Fatal(err)
	}
	if *second.IsTruncated || len(second.Contents) != 2 || *second.Contents[0].Key != "a%2Bb" || *second.Marker != "a%20b/" {
		t.Errorf("got %+v", second)
	}
	_, err = w.root().ListObjectsV2(t.Context(), &awss3.ListObjectsV2Input{Bucket: &bucket, ContinuationToken: aws.String("%%%")})
	wantRefused(t, err, 400, "InvalidArgument")
}

func TestListingJumpsOverCommonPrefixes(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	_, err := w.admin.Exec(t.Context(), `INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
		SELECT 'orders', format('%s/%s', d, k), gen_random_uuid(), 1, 'e', now() FROM generate_series(1, 20) d, generate_series(1, 2000) k`)
	if err != nil {
		t.Fatal(err)
	}
	got := names(t, w.root(), awss3.ListObjectsV2Input{Bucket: &bucket, Delimiter: aws.String("/")})
	if len(got) != 20 {
		t.Fatalf("got %d entries: %q", len(got), got)
	}
	tx, err := w.admin.Begin(t.Context()) // the counters may restart when it ends
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	read := func(count string) (n int64) {
		if err := tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_tuples_returned('objects.pointers_pkey'::regclass) FROM (`+count+`) c`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := read(`SELECT 1`)
	after := read(`SELECT count(*) FROM objects.list('orders', '', '/', '', 1000)`)
	// A full scan would read 40,000 index entries.
	if after-before < 20 || after-before > 400 {
		t.Errorf("listing 20 prefixes read %d entries of the index", after-before)
	}
}
