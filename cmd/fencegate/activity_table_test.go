package main

import (
	"strings"
	"testing"

	"github.com/fencegate/fencegate/wire"
)

func TestATableIsLinesWhereNoTerminalIs(t *testing.T) {
	t.Parallel()
	vars, _ := lister(t)
	code, stdout, stderr := cli(t, vars, "activity", "--table", "--follow=false", "orders/")
	want := "held orders/1 token=7 by=w\\x1b[2J left=1.5s waiters=2\n" +
		"held orders/2 token=8 by=x left=- waiters=0\n" +
		"held orders/3 token=9 by=y left=never ends waiters=0\n" +
		"2026-11-02T09:12:44Z expired resource=orders/1 token=7\n" // sweeps concern no resource, and are not shown
	if code != exitOK || stdout != want {
		t.Errorf("%d %q %q", code, stdout, stderr)
	}
}

// Text that others chose stays in its line and is escaped, and the screen is no larger than the terminal.
func TestThePictureFitsTheTerminal(t *testing.T) {
	t.Parallel()
	w := &activityTable{latest: []wire.Event{{Kind: wire.EventRefused, Resource: "r\x1b[2J"}, {Kind: wire.EventAcquired, Resource: "last"}}}
	var held []wire.Listed
	for range 50 {
		one := wire.Listed{State: wire.StateLive}
		one.Resource, one.Holder = "orders/1", "x\x1b]0;title\a\nnext"
		held = append(held, one)
	}
	two := int64(2)
	status := wire.Status{Version: "v1", Held: &two, Lock: wire.LockStatus{Kind: "redis", State: "ok", Nodes: []wire.NodeStatus{{Name: "n1", State: "quarantined", QuarantineMS: 1500}}}}
	for _, height := range []int{1, 5, 10, 24} {
		text := string(w.draw(status, held, true, nil, 60, height))
		lines := strings.Split(text, "\r\n")
		if len(lines) > height || strings.Contains(text, "\x1b]") || strings.Contains(text, "\x1b[2J") {
			t.Errorf("%d rows: %d lines %q", height, len(lines), text)
		}
		for _, line := range lines {
			if plain := strings.NewReplacer("\x1b[H", "", "\x1b[K", "", "\x1b[J", "").Replace(line); len([]rune(plain)) > 60 {
				t.Errorf("%q is too wide", plain)
			}
		}
		if height == 24 && (!strings.Contains(text, "acquired resource=last") || !strings.Contains(text, "more, and others")) {
			t.Errorf("%q", text)
		}
	}
	if text := string(w.draw(status, held, true, nil, 0, 0)); !strings.Contains(text, "acquired resource=last") {
		t.Errorf("on a terminal that does not know its size: %q", text)
	}
	if text := summary(status); !strings.Contains(text, "n1 quarantined 2s") || !strings.Contains(text, "held here 2") || strings.Contains(text, "waiting") {
		t.Error(text)
	}
}
