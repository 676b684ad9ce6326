package continuity

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// The connection may have led to another server, whose record is lower.
func TestARecordOfAPostgreSQLThatWasInDoubtMeanwhileCountsForNothing(t *testing.T) {
	t.Parallel()
	pg, nodes := testenv.Postgres(t), testenv.Redis(t, 1)
	config, err := pgxpool.ParseConfig(pg.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Open(t.Context(), Config{Pool: config, Nodes: []lock.Node{{Addr: nodes.Addrs[0]}}, KeyPrefix: nodes.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	doubt := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.accepted == nil {
			t.Error("there was a doubt before: this test shows nothing")
		}
		a.doubt()
	}
	longest, err := a.RaiseLongest(t.Context(), "nodes", time.Second)
	if err != nil || longest.TTL != time.Second {
		t.Fatalf("%+v, %v", longest, err)
	}
	err = pg.Blocked(t, "epochs", func() error {
		_, err := a.RaiseLongest(t.Context(), "nodes", time.Minute)
		return err
	}, doubt)
	if !errors.Is(err, ErrChanging) {
		t.Errorf("raised: %v", err)
	}
	keep := func() error { return a.KeepLongest(t.Context(), "nodes", longest.Record, true) }
	if err := pg.Blocked(t, "epochs", keep, doubt); !errors.Is(err, ErrChanging) {
		t.Errorf("kept: %v", err)
	}
	if longest, err = a.RaiseLongest(t.Context(), "nodes", time.Second); err != nil || longest.TTL != time.Minute || !longest.Kept {
		t.Errorf("once it is trusted again: %+v, %v", longest, err)
	}
}
