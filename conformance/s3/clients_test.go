package main

import (
	"context"
	"strings"
	"testing"
)

func TestAClientDoesAllThatItDoesNotLack(t *testing.T) {
	t.Parallel()
	right := outcomes{"put": wanted, "get": {"current": "ok", "stale": "ok", "none": "ok"}}
	for name, c := range map[string]struct {
		of      string
		lacks   []string
		outcome outcomes
		wrong   int
	}{
		"done":                     {"put", nil, right, 0},
		"read":                     {"get", nil, right, 0},
		"omitted":                  {"put", nil, outcomes{}, 3},
		"not offered":              {"put", nil, outcomes{"put": {"current": notOffered, "stale": notOffered, "none": notOffered}}, 3},
		"omitted, as it lacks it":  {"put", []string{"put"}, outcomes{}, 0},
		"done, although it lacked": {"put", []string{"put"}, right, 3},
	} {
		if text, wrong := c.outcome.cell(s3Client{lacks: c.lacks}, c.of, c.of == "put"); wrong != c.wrong {
			t.Errorf("%s: %s, %d wrong", name, text, wrong)
		}
	}
}

// unfencedBy stores what has a checksum of one algorithm, and refuses all else.
type unfencedBy string

func (unfencedBy) close() error { return nil }

func (u unfencedBy) call(_ context.Context, operation string, in input) (answer, error) {
	if operation == "PutObject" && in.ChecksumAlgorithm != string(u) {
		return answer{}, &refusal{412, "StaleFencingToken"}
	}
	return answer{Body: olderText}, nil
}

func TestOneUnfencedChecksumIsSeen(t *testing.T) {
	t.Parallel()
	for algorithm, want := range map[unfencedBy]string{"none": "412 StaleFencingToken", "SHA1": "failed: ", "CRC32": "failed: "} {
		s := session{caller: algorithm, ctx: t.Context(), checksums: []string{"CRC32", "SHA1"}}
		if got := outcome(writes[1].do(s)); !strings.HasPrefix(got, want) {
			t.Errorf("%s is unfenced: %s", algorithm, got)
		}
	}
}
