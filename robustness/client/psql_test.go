package client

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

// psql prints the end of a session that arrives right behind an answer before the answer's rows.
func TestAReadWhoseSessionEndsRightBehindTheAnswerSawItsValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ printed, saw, wrong string }{
		{"c2.2-7", "c2.2-7", ""},
		{"FATAL:  stale fencing token 34\nDETAIL:  {}\nHINT:  A newer holder has taken over.\nc2.2-7", "c2.2-7", ""},
		{"c2.2-7\nc2.2-8", "", "psql printed 2 lines: c2.2-7 | c2.2-8"},
	} {
		in, out := io.Pipe()
		go func() { _, _ = io.Copy(io.Discard, in) }()
		p := &program{in: out, lines: make(chan string, 8)}
		for line := range strings.SplitSeq(fmt.Sprintf("%s\n@1 false 00000 1", c.printed), "\n") {
			p.lines <- line
		}
		if saw, wrong, err := (&psql{program: p}).read(t.Context(), rowKind+"r"); saw != c.saw || wrong != c.wrong || err != nil {
			t.Errorf("%q: saw %q, wrong %q, %v", c.printed, saw, wrong, err)
		}
		_ = out.Close()
	}
}
