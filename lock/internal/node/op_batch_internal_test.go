package node

import (
	"math/rand/v2"
	"strconv"
	"testing"
)

// Every queued op is sent: each resource's ops in their order, in calls that name no resource twice and are not too
// long.
func TestAnArrangementKeepsEachResourcesOrder(t *testing.T) {
	t.Parallel()
	var p plan
	for _, resources := range []int{1, 2, 7, 100, 3 * maxSegment} {
		random := rand.New(rand.NewPCG(uint64(resources), 0))
		ops, order := make([]*Op, 4*maxSegment), make(map[*Op]int)
		for i := range ops {
			ops[i] = &Op{Kind: Kind(random.IntN(int(opKinds))), Resource: strconv.Itoa(random.IntN(resources))}
			ops[i].Wakes = ops[i].Kind == OpRelease && random.IntN(2) == 0
			order[ops[i]] = i
		}
		p.arrange(ops)
		last, rest := make(map[string]int), ops
		for _, size := range p.sizes {
			call := make(map[string]bool)
			for i, o := range rest[:size] {
				if before, ok := last[o.Resource]; ok && before > order[o] || call[o.Resource] {
					t.Fatalf("%d resources: %q came too early, or twice in one call", resources, o.Resource)
				}
				last[o.Resource], call[o.Resource] = order[o], true
				if size > maxSegment || size > 1 && (o.part() == othersPart ||
					(o.part() == extendsPart) != (rest[0].part() == extendsPart) || i > 0 && rest[i-1].part() > o.part()) {
					t.Fatalf("%d resources: op %d, kind %d, is at the wrong place of a call of %d", resources, i, o.Kind, size)
				}
			}
			rest = rest[size:]
		}
		if len(rest) > 0 {
			t.Errorf("%d resources: %d ops are in no call", resources, len(rest))
		}
		for _, o := range ops {
			delete(order, o)
		}
		if len(order) > 0 {
			t.Errorf("%d resources: %d ops are lost", resources, len(order))
		}
	}
}
