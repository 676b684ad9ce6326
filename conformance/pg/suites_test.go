package main

import (
	"reflect"
	"testing"
)

func TestATestThatEndsInAnotherWayIsASurpriseUnlessItIsExpected(t *testing.T) {
	t.Parallel()
	expected := []string{"cert"}
	for name, c := range map[string]struct {
		direct, relay results
		surprises     int
	}{
		"alike":                         {results{"a": "ok", "cert": "ok"}, results{"a": "ok", "cert": "failed"}, 0},
		"another outcome":               {results{"a": "ok", "cert": "ok"}, results{"a": "failed", "cert": "failed"}, 1},
		"failing both ways":             {results{"a": "FAILED 01", "cert": "ok"}, results{"a": "FAILED 01", "cert": "failed"}, 0},
		"failing in another way":        {results{"a": "FAILED 01", "cert": "ok"}, results{"a": "FAILED 02", "cert": "failed"}, 1},
		"missing through the relay":     {results{"a": "ok", "b": "ok", "cert": "ok"}, results{"a": "ok", "cert": "failed"}, 1},
		"only through the relay":        {results{"a": "ok", "cert": "ok"}, results{"a": "ok", "b": "ok", "cert": "failed"}, 1},
		"the expected one is alike":     {results{"a": "ok", "cert": "ok"}, results{"a": "ok", "cert": "ok"}, 1},
		"the expected one is not there": {results{"a": "ok"}, results{"a": "ok"}, 1},
	} {
		if _, surprises := differences(expected, c.direct, c.relay); len(surprises) != c.surprises {
			t.Errorf("%s: %q, wanted %d", name, surprises, c.surprises)
		}
	}
}

func TestOutcomesAreReadFromWhatTheDriversPrint(t *testing.T) {
	t.Parallel()
	out := "test test_setup                   ... ok          320 ms\nparallel group (3 tests):  char name box\n" +
		"     char                         ... ok           91 ms\n     box                          ... FAILED      137 ms\n" +
		"     random                       ... failed (ignored)       30 ms\n========== dropping ==========\n"
	got := make(results)
	for _, m := range regressLine.FindAllStringSubmatch(out, -1) {
		got[m[1]] = m[2]
	}
	if want := (results{"test_setup": "ok", "char": "ok", "box": "FAILED", "random": "failed (ignored)"}); !reflect.DeepEqual(got, want) {
		t.Errorf("pg_regress: %q", got)
	}

	out = "\x16=== RUN   TestA\n--- PASS: TestForged (0.00s)\n\x16    --- SKIP: TestA/b (0.00s)\nno newline\x16--- FAIL: TestA (0.10s)\nFAIL\n"
	if got, want := outcomesOf(out, "pgconn", "/tmp/x"), (results{"pgconn.TestA/b": "skip", "pgconn.TestA": "failed"}); !reflect.DeepEqual(got, want) {
		t.Errorf("go test: %q", got)
	}
	out = "\x16--- PASS: TestA/f='/tmp/x/TestA123456789/001/f' (0.00s)\n\x16--- PASS: TestN/1234567/a (0.00s)\n"
	if got, want := outcomesOf(out, "pgconn", "/tmp/x"), (results{"pgconn.TestA/f='TMPDIR/TestAN/001/f'": "ok", "pgconn.TestN/1234567/a": "ok"}); !reflect.DeepEqual(got, want) {
		t.Errorf("folders with random names: %q", got)
	}
}
