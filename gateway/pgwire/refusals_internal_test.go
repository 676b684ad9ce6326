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
		var told activity.Event
		s := &session{srv: &Server{cfg: Config{Tell: func(e activity.Event) { told = e }}}, raw: raw}
		s.claims = []claim{{resource: "orders/1", token: 7}}
		s.tellOf("ZF001", detail)
		if told.Presented != want || told.Recorded != 9 {
			t.Errorf("%s: presented %d, recorded %d; want %d", detail, told.Presented, told.Recorded, want)
		}
	}
}
