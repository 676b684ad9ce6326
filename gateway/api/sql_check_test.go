package api_test

import (
	"net/http"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

func TestACheckAsksTheFenceAsAWriterDoes(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	grant := fence.Grant{Resource: "orders/1001", Token: 34, Seal: seal}
	presented := []string{fence.HeaderResource, "orders/1001", fence.HeaderToken, grant.Presented()}
	a := request(t, s, "POST", "/v1/check", "", presented...)
	if a.status != http.StatusOK || a.str("token") != "34" || a.body["locked"] != true || f.grant != grant || len(f.ran) != 0 {
		t.Errorf("held: %d %s, asked for %v", a.status, a.text, f.grant)
	}
	f.free = true
	if a := request(t, s, "POST", "/v1/check", "", presented...); a.status != http.StatusOK || a.body["locked"] != false {
		t.Errorf("a lease that ran out, and nobody came: %d %s", a.status, a.text)
	}
	f.lockErr = leasing.ErrUnavailable
	if a := request(t, s, "POST", "/v1/check", "", presented...); a.status != http.StatusOK || a.body["locked"] != nil {
		t.Errorf("without Redis: %d %s", a.status, a.text)
	}
	bare := request(t, s, "POST", "/v1/check", "", fence.HeaderResource, "jobs/7", fence.HeaderToken, "7")
	if bare.status != http.StatusOK || bare.body["locked"] != nil || f.grant.Resource != "jobs/7" {
		t.Errorf("a bare token: %d %s", bare.status, bare.text)
	}
}

func TestACheckThatTheFenceRefusesIsSeen(t *testing.T) {
	t.Parallel()
	f := newFakes()
	feed := activity.New(activity.Config{})
	defer feed.Close()
	s := newServer(t, f, func(c *api.Config) { c.Events = feed })
	f.err = &fence.StaleError{Resource: "orders/1001", Presented: 34, Recorded: 35}
	a := request(t, s, "POST", "/v1/check", "", fence.HeaderResource, "orders/1001", fence.HeaderToken, "34")
	if a.status != http.StatusPreconditionFailed || a.str("recorded") != "35" {
		t.Errorf("superseded: %d %s", a.status, a.text)
	}
	if all := feed.Kept(""); len(all) != 1 || all[0].Surface != wire.SurfaceCheck || all[0].Recorded != 35 {
		t.Errorf("events: %+v", all)
	}
	if a := request(t, s, "POST", "/v1/check", ""); a.status != http.StatusPreconditionRequired {
		t.Errorf("no grant: %d %s", a.status, a.text)
	}
	if a := request(t, s, "POST", "/v1/check", "", fence.HeaderResource, "orders/1001", fence.HeaderToken, "x"); a.status != http.StatusBadRequest {
		t.Errorf("malformed: %d %s", a.status, a.text)
	}
	none := newServer(t, newFakes(), func(c *api.Config) { c.SQL = nil })
	if a := request(t, none, "POST", "/v1/check", "", fence.HeaderResource, "orders/1001", fence.HeaderToken, "34"); a.status != http.StatusNotImplemented {
		t.Errorf("no login for SQL: %d %s", a.status, a.text)
	}
}
