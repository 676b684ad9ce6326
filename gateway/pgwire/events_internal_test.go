package pgwire

import (
	"net"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
)

// A grant may be presented by its seal alone. Then the refusal contains token 0.
func TestARefusalTellsTheTokenOfTheSessionsGrant(t *testing.T) {
	t.Parallel()
	raw, other := net.Pipe()
	defer func() { _, _ = raw.Close(), other.Close() }()
	for detail, want := range map[string]fence.Token{
		`{"resource": "orders/1", "presented": "0", "recorded": "9"}`: 7,
		`{"resource": "orders/1", "presented": "5", "recorded": "9"}`: 5,
		`{"resource": "orders/2", "presented": "0", "recorded": "9"}`: 0,
	} {
		var got activity.Event
		e := &events{
			report: func(e activity.Event) { got = e }, client: &client{raw: raw},
			session: &session{claims: claims{{resource: "orders/1", token: 7}}},
		}
		e.refused("ZF001", detail)
		if got.Presented != want || got.Recorded != 9 {
			t.Errorf("%s: presented %d, recorded %d; want %d", detail, got.Presented, got.Recorded, want)
		}
	}
}
