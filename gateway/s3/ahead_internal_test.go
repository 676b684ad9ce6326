//go:build unix

package s3 //nolint:testpackage // what was begun ahead shows only inside

import (
	"log/slog"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

// reading is a reader of a database that has the bucket b.
func reading(t *testing.T) *objects.Reader {
	t.Helper()
	pg := testenv.Postgres(t)
	if _, err := pg.Pool(t).Exec(t.Context(), "SELECT objects.create_bucket('b', 0, 'none')"); err != nil {
		t.Fatal(err)
	}
	return objects.NewReader(objects.NewDatabase(testenv.PoolOf(t, pg.GatewayURL), 0), nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

func TestALookUpAheadIsTakenOnceAndOfItsKeyOnly(t *testing.T) {
	t.Parallel()
	var rc fasthttp.RequestCtx
	l := reading(t).Begin("b", "k")
	defer l.Leave()
	rc.SetUserValue(localAhead, l)
	for _, other := range [][2]string{{"b", "other"}, {"other", "k"}} {
		if takeAhead(&rc, other[0], other[1]) != nil {
			t.Errorf("taken for %v", other)
		}
	}
	if takeAhead(&rc, "b", "k") != l || takeAhead(&rc, "b", "k") != nil {
		t.Error("not taken once")
	}
}

// PostgreSQL would refuse such a name, and with it the question that others share.
func TestNoLookUpBeginsForNamesThatCannotBe(t *testing.T) {
	t.Parallel()
	g := &gate{cfg: config{Options: Options{RootAccessKey: "root"}}, reader: reading(t)}
	for path, want := range map[string]bool{"/b/warm": true, "/%ff/warm": false, "/b%00/warm": false, "/b/": false} {
		var rc fasthttp.RequestCtx
		rc.Request.SetRequestURI(path)
		rc.Request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=root/20260101/us-east-1/s3/aws4_request")
		c := fiber.New().AcquireCtx(&rc)
		if got := g.lookAhead(c, ""); got != want {
			t.Errorf("%s: %v", path, got)
		}
		if l := takeAhead(&rc, "b", "warm"); l != nil {
			l.Leave()
		}
	}
}
