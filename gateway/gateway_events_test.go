//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	apiclient "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/wire"
)

var seenSurfaces = []string{wire.SurfacePG, wire.SurfaceSQL, wire.SurfaceCheck, wire.SurfaceS3}

// events returns the events that the gateway keeps.
func (c *client) events() (all []wire.Event) {
	c.t.Helper()
	if err := c.api().Events(c.t.Context(), "", false, func(e wire.Event) error { all = append(all, e); return nil }); err != nil {
		c.t.Fatal(err)
	}
	return all
}

// api is the Go client of the gateway.
func (c *client) api() *apiclient.Client {
	c.t.Helper()
	api, err := apiclient.New(apiclient.Config{URL: "http://" + c.g.Addrs().API, HTTPClient: c.http})
	if err != nil {
		c.t.Fatal(err)
	}
	return api
}

// refusals counts the refused writes of each surface, in the metrics and in the events.
func (c *client) refusals() (counted, reported map[string]int) {
	c.t.Helper()
	counted, reported = map[string]int{}, map[string]int{}
	for _, surface := range seenSurfaces {
		counted[surface], _ = strconv.Atoi(c.scraped()[fmt.Sprintf(`fencegate_refusals_total{code="ZF001",surface=%q}`, surface)])
	}
	for _, e := range c.events() {
		if e.Kind == wire.EventRefused {
			reported[e.Surface]++
		}
	}
	return counted, reported
}

// A stale write is reported on every surface, and counted once per write.
func TestStaleWritesAreSeenOnEachSurface(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	c := start(t, config(t, pg))
	stale := c.acquire("orders/1001", "30s")
	creds := c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": stale.handle})
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": stale.handle})
	current := c.acquire("orders/1001", "60s")
	relayed, direct := c.connect(pg, lease{}), past(t, pg, stale)
	const present = "SELECT set_config('fence.resource', $1, false), set_config('fence.token', $2, false)"
	// A grant that the gateway does not see, so it does not end the session.
	if _, err := relayed.Exec(t.Context(), present, stale.resource, stale.grant); err != nil {
		t.Fatal(err)
	}
	staleGrant, err := fence.ParseGrant(stale.resource, stale.grant)
	if err != nil {
		t.Fatal(err)
	}
	currentGrant, err := fence.ParseGrant(current.resource, current.grant)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the nodes answer the check in time", func() error {
		if checked, err := c.api().Check(t.Context(), currentGrant); err != nil || checked.Token != currentGrant.Token || checked.Locked == nil || !*checked.Locked {
			return fmt.Errorf("the current grant: %+v, %s", checked, fmt.Sprint(err))
		}
		return nil
	})
	const times = 100
	writes := map[string]func() error{
		wire.SurfacePG: func() error { _, err := relayed.Exec(t.Context(), updateOrder, "stale"); return err },
		wire.SurfaceSQL: func() error {
			a := c.want(http.StatusPreconditionFailed, "POST", "/v1/sql", map[string]any{"statements": []any{map[string]any{"sql": updateOrder, "args": []string{"stale"}}}},
				"Fencing-Resource", "orders/1001", "Fencing-Token", stale.grant)
			return fmt.Errorf("%s", a.text("code"))
		},
		wire.SurfaceCheck: func() error {
			_, err := c.api().Check(t.Context(), staleGrant)
			if err != nil && !errors.Is(err, fence.ErrStale) {
				t.Fatal(err)
			}
			return err
		},
		wire.SurfaceS3: func() error { return c.put(creds, "1001/invoice.txt", "stale") },
		"past":         func() error { _, err := direct.Exec(t.Context(), updateOrder, "stale"); return err },
	}
	for surface, write := range writes {
		before, toldBefore := c.refusals()
		inTable := refusedIn(t, pg, "orders")
		for range times {
			if err := write(); err == nil {
				t.Fatalf("%s: a stale write passed", surface)
			}
		}
		after, toldAfter := c.refusals()
		for _, other := range seenSurfaces {
			want := 0
			if other == surface {
				want = times
			}
			if got, events := after[other]-before[other], toldAfter[other]-toldBefore[other]; got != want || events != want {
				t.Errorf("%d stale writes on %s: %s shows +%d in the metrics and +%d in the events", times, surface, other, got, events)
			}
		}
		want := map[string]int{wire.SurfacePG: times, "past": times}[surface] // the others are refused before they write to the table
		if got := refusedIn(t, pg, "orders") - inTable; got != want {
			t.Errorf("%d stale writes on %s: fence.protected shows +%d, want +%d", times, surface, got, want)
		}
	}
	for _, e := range c.events() {
		if e.Kind == wire.EventRefused && !tellsAll(e, stale.token, current.token, creds.text("access_key_id")) {
			t.Fatalf("%+v", e)
		}
	}
}

// tellsAll reports whether the event of a refused write to orders/1001 has all that its surface knows.
func tellsAll(e wire.Event, presented, recorded, key string) bool {
	if e.Code != "ZF001" || e.Resource != "orders/1001" || e.Client == "" || e.Presented.String() != presented || e.Recorded.String() != recorded {
		return false
	}
	switch e.Surface {
	case wire.SurfacePG:
		return e.Login != "" && e.Statement == "UPDATE" && e.Table == "public.orders"
	case wire.SurfaceS3:
		return e.Login == key && e.Statement == "PutObject" && e.Table == "orders"
	case wire.SurfaceSQL:
		return e.Statement == "UPDATE"
	}
	return true
}

// past opens a session that bypasses the gateway.
func past(t *testing.T, pg testenv.PG, l lease) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["options"] = fmt.Sprintf("-c fence.resource=%s -c fence.token=%s", fence.EscapeResource(l.resource), l.grant)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func refusedIn(t *testing.T, pg testenv.PG, table string) (n int) {
	t.Helper()
	if err := pg.Pool(t).QueryRow(t.Context(), `SELECT refused FROM fence.protected WHERE relation = $1::text::regclass`, table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestLeasesAreSeen(t *testing.T) {
	t.Parallel()
	c, _ := guardedGateway(t, nil)
	l := c.acquire("orders/1001", "1m")
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	testenv.Eventually(t, "the lease came and went", func() bool {
		var kinds []string
		for _, e := range c.events() {
			if e.Surface == wire.SurfaceAPI && e.Resource == "orders/1001" {
				kinds = append(kinds, e.Kind)
			}
		}
		return fmt.Sprint(kinds) == "[acquired released]"
	})
}
