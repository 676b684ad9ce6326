package fault

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/robustness/relay"
)

// legs are the connections between the product's parts.
var legs = []leg{
	{"client", "gateway", ""},
	{"client", "postgres", ""},
	{"client", "redis", NeedsRedis},
	{"client", "balancer", NeedsBalancer},
	{"balancer", "gateway", NeedsBalancer},
	{"gateway", "redis", NeedsRedis},
	{"gateway", "postgres", ""},
	{"gateway", "blobs", NeedsBlobs},
	{"postgres", "postgres", ""}, // replication
}

type leg struct {
	from, to string
	needs    Need
}

// netKind is one kind of network fault.
type netKind struct {
	name, what        string
	weight            int
	shortest, longest time.Duration
	every             time.Duration // how often it is repeated while it lasts; 0: once
	draw              func(s *Stage) (begin func(*relay.Relay), drawn string)
}

var netKinds = []netKind{
	{"delay", "messages come late", 2, 300 * ms, 8 * sec, 0, netDelay},
	{"hold", "nothing passes, in one direction or both; connections stay", 2, 50 * ms, 6 * sec, 0, netHold},
	{"cut", "connections are reset", 1, 10 * ms, 3 * sec, 400 * ms, netCut},
	{"cut-before", "connections are cut before a request arrives", 1, 200 * ms, 5 * sec, 600 * ms, netCutBefore},
	{"cut-after", "requests are carried out and their answers lost", 2, 200 * ms, 5 * sec, 600 * ms, netCutAfter},
	{"cut-body", "connections are cut in the middle of what they carry", 1, 200 * ms, 5 * sec, 600 * ms, netCutBody},
	{"refuse", "new connections are refused, and the old ones cut", 1, 50 * ms, 5 * sec, 0, netRefuse},
	{"absorb", "new connections are taken and never answered", 1, 50 * ms, 5 * sec, 0, netAbsorb},
}

// netFaults returns every kind on every leg.
func netFaults() (all []Fault) {
	for _, kind := range netKinds {
		for _, way := range legs {
			all = append(all, Fault{
				"net-" + kind.name + "/" + way.from + "-" + way.to, fmt.Sprintf("between %s and %s %s", way.from, way.to, kind.what),
				kind.weight, way.needs, kind.shortest, kind.longest, 500 * ms,
				func(ctx context.Context, s *Stage) error { return runNet(ctx, s, kind, way) },
			})
		}
	}
	return all
}

// link is a relay as a part.
type link struct{ *relay.Relay }

func (l link) ID() string { return l.From + "→" + l.To }

func runNet(ctx context.Context, s *Stage, kind netKind, way leg) error {
	var on []link
	for _, r := range s.Links() {
		if strings.HasPrefix(r.From, way.from) && strings.HasPrefix(r.To, way.to) {
			on = append(on, link{r})
		}
	}
	on = s.partition(on)
	return with(ctx, s, on, "net", len(on), func(of []link) error {
		begin := func() {
			start, drawn := kind.draw(s)
			s.logf("%s", drawn)
			for _, l := range of {
				start(l.Relay)
			}
		}
		defer func() {
			for _, l := range of {
				l.Heal()
			}
		}()
		end := time.Now().Add(s.For)
		begin()
		for kind.every > 0 && time.Until(end) > kind.every && wait(ctx, s.between(kind.every/4, kind.every)) {
			begin()
		}
		wait(ctx, time.Until(end))
		return nil
	})
}

// partition draws the affected links: one, all of one end, or all. It usually starts from a link in use, since no
// client uses a standby.
func (s *Stage) partition(on []link) []link {
	from := slices.Clone(on)
	if !s.odds(4) {
		from = slices.DeleteFunc(from, func(l link) bool { return l.Connections() == 0 })
	}
	if len(from) == 0 {
		from = on
	}
	if len(on) == 0 {
		return nil
	}
	one := from[s.Rand.IntN(len(from))]
	switch s.Rand.IntN(5) {
	case 0:
		return []link{one}
	case 1, 2:
		return slices.DeleteFunc(on, func(l link) bool { return l.From != one.From })
	case 3:
		return slices.DeleteFunc(on, func(l link) bool { return l.To != one.To })
	default:
		return on
	}
}

func (s *Stage) directions() []relay.Direction {
	return [][]relay.Direction{{relay.Requests}, {relay.Replies}, {relay.Requests, relay.Replies}}[s.Rand.IntN(3)]
}

func said(ways []relay.Direction) string {
	if len(ways) == 2 {
		return "both directions"
	}
	return map[relay.Direction]string{relay.Requests: "requests", relay.Replies: "replies"}[ways[0]]
}

func netDelay(s *Stage) (func(*relay.Relay), string) {
	d, jitter := s.between(0, 120*ms), s.between(0, 60*ms)
	if s.odds(6) {
		d *= 10
	}
	ways := s.directions()
	return func(r *relay.Relay) {
		for _, dir := range ways {
			r.Delay(dir, d, jitter)
		}
	}, fmt.Sprintf("%s by %v and up to %v", said(ways), d, jitter)
}

func netHold(s *Stage) (func(*relay.Relay), string) {
	ways := s.directions()
	return func(r *relay.Relay) {
		for _, dir := range ways {
			r.Hold(dir, true)
		}
	}, said(ways)
}

func netCut(*Stage) (func(*relay.Relay), string) {
	return func(r *relay.Relay) { r.Cut() }, "all connections"
}

func netCutBefore(s *Stage) (func(*relay.Relay), string) {
	n := 1 + s.Rand.IntN(6)
	return func(r *relay.Relay) { r.CutBefore(n) }, fmt.Sprintf("the next %d requests of each", n)
}

func netCutAfter(s *Stage) (func(*relay.Relay), string) {
	n := 1 + s.Rand.IntN(6)
	return func(r *relay.Relay) { r.CutAfter(n) }, fmt.Sprintf("the next %d replies of each", n)
}

func netCutBody(s *Stage) (func(*relay.Relay), string) {
	after, n, dir := int64(1)<<s.Rand.IntN(20), 1+s.Rand.IntN(4), relay.Direction(s.Rand.IntN(2))
	return func(r *relay.Relay) { r.CutBody(dir, after, n) },
		fmt.Sprintf("the next %d of each, after %d bytes of %s", n, after, said([]relay.Direction{dir}))
}

func netRefuse(*Stage) (func(*relay.Relay), string) {
	return func(r *relay.Relay) { r.Refuse(true); r.Cut() }, "all connections"
}

func netAbsorb(s *Stage) (func(*relay.Relay), string) {
	cut := s.odds(2)
	return func(r *relay.Relay) {
		r.Absorb(true)
		if cut {
			r.Cut()
		}
	}, fmt.Sprintf("open connections are cut: %v", cut)
}
