package pgfence_test

import "testing"

// A process ID is not enough: it may be a pooler's, or have been reused.
func TestASessionIsEndedByItsPortAndProcess(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.session(t)
	var pid, port int
	if err := conn.QueryRow(t.Context(), `SELECT pg_backend_pid(), inet_client_port()`).Scan(&pid, &port); err != nil {
		t.Fatal(err)
	}
	gate := connect(t, w.pg.GatewayURL)
	end := func(pid, port int) (ended bool) {
		t.Helper()
		if err := gate.QueryRow(t.Context(), `SELECT fence.end_backend($1, $2)`, pid, port).Scan(&ended); err != nil {
			t.Fatal(err)
		}
		return ended
	}
	for _, other := range [][2]int{{pid, port + 1}, {pid + 1, port}, {pid, 0}, {pid, -1}} {
		if end(other[0], other[1]) {
			t.Errorf("%v is ended; the session is %d, %d", other, pid, port)
		}
	}
	if err := conn.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT fence.end_backend($1, $2)`, pid, port); err == nil {
		t.Error("a writer may end sessions")
	}
	if !end(pid, port) {
		t.Error("the session goes on")
	}
	w.waitFor(t, "it has ended", `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid)
}
