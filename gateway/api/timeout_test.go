package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// silent is a PostgreSQL that hangs.
type silent struct{ *fakes }

func (silent) Inspect(ctx context.Context, _ string) (fence.Record, error) {
	<-ctx.Done()
	return fence.Record{}, ctx.Err()
}

func (silent) List(ctx context.Context, _, _ string, _ int) ([]fence.Record, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// after wants a request to take exactly so long, on a bubble's clock.
func after(t *testing.T, want time.Duration, request func()) {
	t.Helper()
	began := time.Now()
	request()
	if took := time.Since(began); took != want {
		t.Errorf("it took %v, want %v", took, want)
	}
}

// patience is how long a request waits for PostgreSQL.
const patience = 3 * time.Second

func TestWhilePostgreSQLHangsThePageSaysSoAndStillShowsEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		feed, on := withEvents(t, 100)
		f := newFakes()
		b := newBrowser(t, transportTo(t, newServer(t, f, on, func(c *api.Config) { c.Fences = silent{f} })))
		const said = "The held leases can&#39;t be listed now: PostgreSQL did not answer."
		after(t, patience, func() {
			if status, text := b.do("/", nil); status != http.StatusOK || !strings.Contains(text, said) || !strings.Contains(text, "Not known.") {
				t.Errorf("%d %s", status, text)
			}
		})
		after(t, patience, func() {
			if _, text := b.do("/page/revoke?resource=orders%2F1001", nil); !strings.Contains(text, "PostgreSQL did not answer.") {
				t.Errorf("the question before a revocation: %s", text)
			}
		})
		var lines <-chan string
		after(t, patience, func() {
			var status int
			if lines, status = b.stream(t.Context()); status != http.StatusOK {
				t.Fatal(status)
			}
		})
		feed.Tell(activity.Event{Kind: wire.EventRefused, Resource: "orders/9"})
		after(t, 0, func() {
			saysSo, shows := false, false
			for line := range lines {
				saysSo, shows = saysSo || strings.Contains(line, said), shows || strings.Contains(line, "orders/9")
				if saysSo && shows {
					return
				}
			}
			t.Errorf("the stream says so: %v; it shows the event: %v", saysSo, shows)
		})
	})
}

func TestWhilePostgreSQLHangsAListIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		s := newServer(t, f, func(c *api.Config) { c.Fences = silent{f} })
		for _, path := range []string{"/v1/resources", "/v1/resources/orders%2F1001"} {
			after(t, patience, func() {
				a := request(t, s, "GET", path, "")
				if a.status != http.StatusServiceUnavailable || a.str("part") != wire.PartPostgres || a.str("detail") != "PostgreSQL did not answer." {
					t.Errorf("%s: %d %s", path, a.status, a.text)
				}
			})
		}
	})
}

func TestWhilePostgreSQLHangsNoCredentialsAreIssued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		handle := aHandle(t, newServer(t, f))
		s := newServer(t, f, func(c *api.Config) { c.Fences = silent{f} })
		after(t, patience, func() {
			a := request(t, s, "POST", "/v1/leases/credentials", fmt.Sprintf(`{"handle":%q}`, handle))
			if a.status != http.StatusServiceUnavailable || a.str("part") != wire.PartPostgres {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
	})
}

// The key itself may hold the resource: "held" would say that this request acquired nothing.
func TestWhilePostgreSQLHangsAKeyIsNotToldThatAnotherHoldsItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		keeping(f)
		body := `{"resource":"orders/1001","wait":"0s"}`
		if a := request(t, newServer(t, f), "POST", "/v1/leases", body, wire.IdempotencyKey, aKey); a.status != http.StatusCreated {
			t.Fatalf("%d %s", a.status, a.text)
		}
		s := newServer(t, f, func(c *api.Config) { c.Fences = silent{f} })
		after(t, patience, func() {
			a := request(t, s, "POST", "/v1/leases", body, wire.IdempotencyKey, aKey)
			if a.status != http.StatusServiceUnavailable || a.str("part") != wire.PartPostgres || !strings.Contains(a.str("hint"), "same Idempotency-Key") {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
		after(t, 0, func() {
			if a := request(t, s, "POST", "/v1/leases", body); a.status != http.StatusConflict {
				t.Errorf("without a key: %d %s", a.status, a.text)
			}
		})
	})
}
