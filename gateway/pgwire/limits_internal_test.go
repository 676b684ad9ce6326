package pgwire

import "testing"

// Taken returns how many of [Options.MaxConnections] are taken.
func (s *Server) Taken() int { return s.limits.connections.Used(served) }

func TestConnectionsThatSayNothingAreLimitedToo(t *testing.T) {
	t.Parallel()
	srv, err := New(Config{Addr: "127.0.0.1:1", Options: Options{MaxConnections: 3}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 + refusers + 2 {
		p, ok := srv.limits.take(nil)
		if ok != (n < 3+refusers) || p.surplus != (n >= 3) {
			t.Errorf("connection %d: place %v, surplus %v", n, ok, p.surplus)
		}
	}
}

// A connection that is refused for lack of a place takes none, however long it stays open.
func TestARefusedConnectionTakesNobodysPlace(t *testing.T) {
	t.Parallel()
	srv, err := New(Config{Addr: "127.0.0.1:1", Options: Options{MaxConnections: 1}})
	if err != nil {
		t.Fatal(err)
	}
	first, _ := srv.limits.take(nil)
	refused, ok := srv.limits.take(nil)
	if first.surplus || !ok || !refused.surplus {
		t.Fatal("not the first is served, and the second refused")
	}
	first.leave()
	if next, ok := srv.limits.take(nil); !ok || next.surplus {
		t.Error("the place of the first is not free while the second stays")
	}
	refused.leave()
	if another, ok := srv.limits.take(nil); !ok || !another.surplus {
		t.Error("there are two places")
	}
}
