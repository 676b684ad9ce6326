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
	{"client", "redis", ""},
	{"gateway", "redis", ""},
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
	begin             func(s *Stage, links []*relay.Relay) (drawn string)
}

var netKinds = []netKind{
	{
		name: "delay", what: "messages come late", weight: 2,
		shortest: 300 * time.Millisecond, longest: 8 * time.Second, begin: netDelay,
	},
	{
		name: "hold", what: "nothing passes, in one direction or both; connections stay", weight: 2,
		shortest: 50 * time.Millisecond, longest: 6 * time.Second, begin: netHold,
	},
	{
		name: "cut", what: "connections are reset", weight: 1,
		shortest: 10 * time.Millisecond, longest: 3 * time.Second, every: 400 * time.Millisecond, begin: netCut,
	},
	{
		name: "cut-before", what: "connections are cut before a request arrives", weight: 1,
		shortest: 200 * time.Millisecond, longest: 5 * time.Second, every: 600 * time.Millisecond, begin: netCutBefore,
	},
	{
		name: "cut-after", what: "requests are carried out and their answers lost", weight: 2,
		shortest: 200 * time.Millisecond, longest: 5 * time.Second, every: 600 * time.Millisecond, begin: netCutAfter,
	},
	{
		name: "cut-body", what: "connections are cut in the middle of what they carry", weight: 1,
		shortest: 200 * time.Millisecond, longest: 5 * time.Second, every: 600 * time.Millisecond, begin: netCutBody,
	},
	{
		name: "refuse", what: "new connections are refused, and the old ones cut", weight: 1,
		shortest: 50 * time.Millisecond, longest: 5 * time.Second, begin: netRefuse,
	},
	{
		name: "absorb", what: "new connections are taken and never answered", weight: 1,
		shortest: 50 * time.Millisecond, longest: 5 * time.Second, begin: netAbsorb,
	},
}

// netFaults returns every kind on every leg.
func netFaults() []Fault {
	var all []Fault
	for _, kind := range netKinds {
		for _, way := range legs {
			all = append(all, Fault{
				Name: "net-" + kind.name + "/" + way.from + "-" + way.to,
				What: fmt.Sprintf("between %s and %s %s", way.from, way.to, kind.what), Weight: kind.weight, Needs: way.needs,
				Shortest: kind.shortest, Longest: kind.longest, Tail: 500 * time.Millisecond,
				Run: func(ctx context.Context, s *Stage) error { return runNet(ctx, s, kind, way) },
			})
		}
	}
	return all
}

func runNet(ctx context.Context, s *Stage, kind netKind, way leg) error {
	on := s.Links()
	on = slices.DeleteFunc(on, func(r *relay.Relay) bool {
		return !strings.HasPrefix(r.From, way.from) || !strings.HasPrefix(r.To, way.to)
	})
	if len(on) == 0 {
		return fmt.Errorf("%w: no relay leads from a %s to a %s", ErrNotDone, way.from, way.to)
	}
	on = s.partition(on)
	name := func(r *relay.Relay) string { return r.From + "→" + r.To }
	of, release := claim(ctx, s, on, name, "net", len(on))
	defer release()
	defer func() {
		for _, r := range of {
			r.Heal()
		}
	}()
	end := time.Now().Add(s.For)
	s.logf("%s: %s", ends(of), kind.begin(s, of))
	for kind.every > 0 && time.Until(end) > kind.every && wait(ctx, s.between(kind.every/4, kind.every)) {
		kind.begin(s, of)
	}
	wait(ctx, time.Until(end))
	return nil
}

// partition draws the affected links: one, all of one end, or all. It usually starts from a link in use, since no
// client uses a standby.
func (s *Stage) partition(on []*relay.Relay) []*relay.Relay {
	from := slices.Clone(on)
	if !s.odds(4) {
		from = slices.DeleteFunc(from, func(r *relay.Relay) bool { return r.Connections() == 0 })
	}
	if len(from) == 0 {
		from = on
	}
	one := from[s.Rand.IntN(len(from))]
	switch s.Rand.IntN(5) {
	case 0:
		return []*relay.Relay{one}
	case 1, 2:
		return slices.DeleteFunc(on, func(r *relay.Relay) bool { return r.From != one.From })
	case 3:
		return slices.DeleteFunc(on, func(r *relay.Relay) bool { return r.To != one.To })
	default:
		return on
	}
}

// ends returns the names of the links' ends.
func ends(of []*relay.Relay) string {
	var from, to []string
	for _, r := range of {
		from, to = append(from, r.From), append(to, r.To)
	}
	slices.Sort(from)
	slices.Sort(to)
	return fmt.Sprintf("%v→%v", slices.Compact(from), slices.Compact(to))
}

func netDelay(s *Stage, of []*relay.Relay) string {
	d, jitter := s.between(0, 120*time.Millisecond), s.between(0, 60*time.Millisecond)
	if s.odds(6) {
		d *= 10
	}
	ways := s.directions()
	for _, r := range of {
		for _, dir := range ways {
			r.Delay(dir, d, jitter)
		}
	}
	return fmt.Sprintf("%s by %v and up to %v", said(ways), d, jitter)
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

func netHold(s *Stage, of []*relay.Relay) string {
	ways := s.directions()
	for _, r := range of {
		for _, dir := range ways {
			r.Hold(dir, true)
		}
	}
	return said(ways)
}

func netCut(_ *Stage, of []*relay.Relay) string {
	n := 0
	for _, r := range of {
		n += r.Cut()
	}
	return fmt.Sprintf("%d connections", n)
}

func netCutBefore(s *Stage, of []*relay.Relay) string {
	n := 1 + s.Rand.IntN(6)
	for _, r := range of {
		r.CutBefore(n)
	}
	return fmt.Sprintf("the next %d requests of each", n)
}

func netCutAfter(s *Stage, of []*relay.Relay) string {
	n := 1 + s.Rand.IntN(6)
	for _, r := range of {
		r.CutAfter(n)
	}
	return fmt.Sprintf("the next %d replies of each", n)
}

func netCutBody(s *Stage, of []*relay.Relay) string {
	after, n, dir := int64(1)<<s.Rand.IntN(20), 1+s.Rand.IntN(4), relay.Direction(s.Rand.IntN(2))
	for _, r := range of {
		r.CutBody(dir, after, n)
	}
	return fmt.Sprintf("the next %d of each, after %d bytes of %s", n, after, said([]relay.Direction{dir}))
}

func netRefuse(_ *Stage, of []*relay.Relay) string {
	for _, r := range of {
		r.Refuse(true)
	}
	return netCut(nil, of)
}

func netAbsorb(s *Stage, of []*relay.Relay) string {
	for _, r := range of {
		r.Absorb(true)
	}
	if s.odds(2) {
		return netCut(nil, of)
	}
	return "new connections only"
}
