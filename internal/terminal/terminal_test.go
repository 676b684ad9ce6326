package terminal_test

import (
	"os"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/terminal"
)

func TestNothingElseIsATerminal(t *testing.T) {
	t.Parallel()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	stdin := os.NewFile(null.Fd(), "/dev/stdin") // as a process sees its input
	for name, v := range map[string]any{"/dev/null": null, "/dev/null as stdin": stdin, "reader": strings.NewReader(""), "nothing": nil} {
		if terminal.Is(v) {
			t.Errorf("%s is taken for a terminal", name)
		}
	}
}
