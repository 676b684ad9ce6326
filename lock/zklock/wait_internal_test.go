package zklock

import (
	"path"
	"reflect"
	"testing"
)

// A watch on a node that does not exist stays in the client and in the server.
func TestWhatIsGoneIsNotWatched(t *testing.T) {
	t.Parallel()
	s := ownStore(t)
	at, err := s.look(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	p := &place{guid: "p", name: "wait.p-0000000009"}
	at.waiting = []string{"wait.gone-0000000001", p.name}
	s.watch(t.Context(), "r", p, at)
	if n := reflect.ValueOf(s.session.conn).Elem().FieldByName("watchers").Len(); n > 0 || p.fired != nil {
		t.Errorf("%d watches for %s", n, path.Join(s.node("r"), at.waiting[0]))
	}
}
