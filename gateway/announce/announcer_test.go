package announce

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestEachResourceIsNotifiedOnceWithinPostgreSQLsLimit(t *testing.T) {
	t.Parallel()
	n := New(nil, slog.Default())
	if notes := n.notes(); notes != nil {
		t.Errorf("nothing was armed: %q", notes)
	}
	var want []string
	for i := range 100 {
		name := fmt.Sprintf("%03d", i) + strings.Repeat("x", 500)
		want = append(want, name)
		for range 3 {
			n.Announce(name)
		}
	}
	var got []string
	for _, note := range n.notes() {
		if len(note) > maxPayload {
			t.Errorf("a notification of %d bytes", len(note))
		}
		got = append(got, strings.Split(note, "\n")...)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("said %d names, want %d", len(got), len(want))
	}
	for i := range 1000 {
		n.Announce(fmt.Sprintf("%03d", i) + strings.Repeat("x", 500))
	}
	if notes := n.notes(); !slices.Equal(notes, []string{""}) {
		t.Errorf("of too many: %d notifications", len(notes))
	}
	if notes := n.notes(); notes != nil {
		t.Errorf("said twice: %q", notes)
	}
}
