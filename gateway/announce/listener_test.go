package announce

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

func TestAFloodOfNotificationsIsLookedIntoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, floods) // where no time passes while notifications arrive
}

func floods(t *testing.T) {
	h := newNotices()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	looks := make(chan []string)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.follow(ctx, func(_ context.Context, armed ...string) error {
			slices.Sort(armed)
			looks <- armed
			return nil
		})
	}()
	h.add("a")
	if got := <-looks; !slices.Equal(got, []string{"a"}) {
		t.Errorf("the first one: %q", got)
	}
	for range 10_000 {
		h.add("b\nc")
	}
	if got := <-looks; !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("10,000 at once: %q", got)
	}
	for i := range maxNotices + 1 {
		h.add(fmt.Sprint(i))
	}
	h.mu.Lock()
	kept := len(h.armed)
	h.mu.Unlock()
	if kept > maxNotices+1 {
		t.Errorf("%d names are kept", kept)
	}
	h.add("d") // the next look covers all resources anyway
	if got := <-looks; len(got) != 0 {
		t.Errorf("of too many: %d names; want a look at all", len(got))
	}
	h.add("e")
	h.add("")
	if got := <-looks; len(got) != 0 {
		t.Errorf("any: %q", got)
	}
	h.add(strings.Repeat("x\n", 3) + "y")
	if got := <-looks; !slices.Equal(got, []string{"x", "y"}) {
		t.Errorf("afterwards: %q", got)
	}
	stop()
	<-ended
	if armed, said := h.take(); said {
		t.Errorf("nothing was said: %q", armed)
	}
}
