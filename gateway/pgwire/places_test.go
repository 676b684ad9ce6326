package pgwire

import "testing"

// A connection that is refused for lack of a place takes none, however long it stays open.
func TestARefusedConnectionTakesNobodysPlace(t *testing.T) {
	t.Parallel()
	srv, err := New(Config{Addr: "127.0.0.1:1", Options: Options{MaxConnections: 1}})
	if err != nil {
		t.Fatal(err)
	}
	served, refused, next, another := newSession(srv, nil), newSession(srv, nil), newSession(srv, nil), newSession(srv, nil)
	if !srv.add(served) || served.surplus || !srv.add(refused) || !refused.surplus {
		t.Fatal("not the first is served, and the second refused")
	}
	srv.remove(served)
	if !srv.add(next) || next.surplus {
		t.Error("the place of the first is not free while the second stays")
	}
	srv.remove(refused)
	if !srv.add(another) || !another.surplus {
		t.Error("there are two places")
	}
}
