package node

import (
	"bufio"
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReplyComesInPieces(t *testing.T) {
	t.Parallel()
	const text = "*4\r\n:0\r\n:1500\r\n:9007199254740991\r\n$4\r\nname\r\n-ERR x\r\n*2\r\n$-1\r\n:-2\r\n"
	k := &link{in: bufio.NewReaderSize(iotest.OneByteReader(strings.NewReader(text)), 16<<10)}
	for i, want := range [][]value{{{n: 0}, {n: 1500}, {n: 1<<53 - 1}, {Text: "name"}}, nil, {{}, {n: -2}}} {
		vals, err := k.reply()
		plain := slices.Clone(vals)
		for i := range plain {
			plain[i] = value{n: plain[i].n, Text: plain[i].Text}
		}
		var fromServer replyError
		if want == nil && !errors.As(err, &fromServer) || want != nil && (err != nil || !slices.Equal(plain, want)) {
			t.Errorf("reply %d: %v, %v", i, vals, err)
		}
	}
}

func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		"*1\r\n:1\r\n", "*4\r\n:0\r\n:-1\r\n:5\r\n$3\r\nabc\r\n", "-ERR no\r\n", "*-1\r\n", "$-1\r\n", "*2\r\n*1\r\n:1\r\n:2\r\n", "+OK\r\n", "*1\r\n$65537\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		k := &link{in: bufio.NewReaderSize(bytes.NewReader(text), 64)}
		for {
			vals, err := k.reply()
			var fromServer replyError
			if err != nil && !errors.As(err, &fromServer) {
				return
			}
			if len(vals) > len(text) {
				t.Fatalf("%d values of %d bytes", len(vals), len(text))
			}
			_, _ = parseReply(vals, err), parseBatch(nil, 2, vals, err)
		}
	})
}
