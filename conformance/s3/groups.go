package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// groups are the subjects of the tests; the first that matches applies.
var groups = []struct {
	name string
	fits *regexp.Regexp
}{
	{"encryption", regexp.MustCompile(`encrypt|_sse|_enc[_\[]|kms`)},
	{"object lock", regexp.MustCompile(`object_lock|retention|legal_hold`)},
	{"bucket policies, public access", regexp.MustCompile(`policy|public_block|block_public|public_acls|ownership|bucket_owner|_nonpublic|object_writer`)},
	{"ACLs, other accounts, anonymous access", regexp.MustCompile(`acl|access_bucket|anonymous|_anon_|object_raw|not_owned|nonowner|authenticated_expired|tags_obj_public|expected_bucket_owner|_usage|grant`)},
	{"CORS", regexp.MustCompile(`cors`)},
	{"headers and signatures", regexp.MustCompile(`^test_headers::`)},
	{"lists", regexp.MustCompile(`bucket_list|basic_key_count|list_multipart|multi_objectv?2?_delete`)},
	{"buckets", regexp.MustCompile(`::test_(bucket|buckets|create_bucket|list_buckets|bucketv2|rm_bucket|head_bucket|get_bucket|put_bucket|delete_bucket|set_bucket|logging)`)},
	{"versions", regexp.MustCompile(`version|delete_marker`)},
	{"objects proper", regexp.MustCompile(`.`)},
}

func groupOf(test string) string {
	for _, g := range groups {
		if g.fits.MatchString(test) {
			return g.name
		}
	}
	return ""
}

// print shows the results by group.
func (r results) print() {
	counts := map[string]map[string]int{"all": {}}
	for test, how := range r {
		name := groupOf(test)
		if counts[name] == nil {
			counts[name] = map[string]int{}
		}
		for _, c := range []map[string]int{counts[name], counts["all"]} {
			c[how]++
			c["run"]++
		}
	}
	fmt.Println("| group | passed | of | skipped |\n|---|---:|---:|---:|")
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Compare(counts[b]["run"], counts[a]["run"]) }) {
		fmt.Printf("| %s | %d | %d | %d |\n", name, counts[name][passed], counts[name]["run"], counts[name][skipped])
	}
}

// compare reports tests with another outcome than expected, and counts those that got worse: a test that passed must
// pass, and no test may go missing. With update, the current outcomes become the expected ones.
func (r results) compare(file string, partial, update bool) (worse int, err error) {
	if update {
		return 0, os.WriteFile(file, []byte(r.lines()), 0o644) //nolint:gosec // for everybody to read
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	expected := results{}
	for line := range strings.Lines(string(data)) {
		how, test, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			return 0, fmt.Errorf("%s: a line is %q", file, line)
		}
		expected[test] = how
	}
	for _, test := range slices.Sorted(maps.Keys(expected)) {
		how, ran := r[test]
		if how == expected[test] || !ran && partial {
			continue
		}
		fmt.Fprintf(os.Stderr, "conformance-s3: %s: %s, expected %s\n", test, cmp.Or(how, "did not run"), expected[test])
		if expected[test] == passed || !ran {
			worse++
		}
	}
	for _, test := range slices.Sorted(maps.Keys(r)) {
		if expected[test] == "" {
			fmt.Fprintf(os.Stderr, "conformance-s3: %s: %s, and %s does not know it\n", test, r[test], file)
		}
	}
	return worse, nil
}

// lines has a line for each test, in order.
func (r results) lines() string {
	var text strings.Builder
	for _, test := range slices.Sorted(maps.Keys(r)) {
		text.WriteString(r[test] + " " + test + "\n")
	}
	return text.String()
}
