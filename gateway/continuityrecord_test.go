package gateway

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/continuity"
)

// A connection made in doubt may have led to another server, whose record may be lower.
func TestARecordOfAPostgreSQLThatWasInDoubtMeanwhileCountsForNothing(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	config, err := pgxpool.ParseConfig(pg.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	pgfence.Configure(config)
	s := newServers(config.ConnConfig)
	s.history = &continuity.Memory{}
	s.configure(config, true)
	if s.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	record := continuityRecord{pgfence.New(s.pool), s}
	doubt := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.accepted == nil {
			t.Error("there was a doubt before: this test shows nothing")
		}
		s.doubt()
	}
	longest, err := record.RaiseLongest(t.Context(), "nodes", time.Second)
	if err != nil || longest.TTL != time.Second {
		t.Fatalf("%+v, %v", longest, err)
	}
	err = pg.Blocked(t, "epochs", func() error {
		_, err := record.RaiseLongest(t.Context(), "nodes", time.Minute)
		return err
	}, doubt)
	if !errors.Is(err, errChanging) {
		t.Errorf("raised: %v", err)
	}
	keep := func() error { return record.KeepLongest(t.Context(), "nodes", longest.Record, true) }
	if err := pg.Blocked(t, "epochs", keep, doubt); !errors.Is(err, errChanging) {
		t.Errorf("kept: %v", err)
	}
	if longest, err = record.RaiseLongest(t.Context(), "nodes", time.Second); err != nil || longest.TTL != time.Minute || !longest.Kept {
		t.Errorf("once PostgreSQL is accepted again: %+v, %v", longest, err)
	}
}
