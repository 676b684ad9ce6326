package lock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// If it admitted the only node, there were no others, and the record is too low.
func TestARecordCountsNoLongerOnceANodeWasAdmittedWithoutIt(t *testing.T) {
	t.Parallel()
	cfg, servers, kept := brief(t, 1, redisserver.Config{})
	started(t, cfg)
	ignorant := cfg
	ignorant.Armer, ignorant.Epochs = nil, &kept.epochs
	other := locker(t, ignorant)
	eventually(t, 20*time.Second, "the node is admitted without the record", func() bool {
		must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err()) // again, if the record's process was faster
		begun, err := admitBegin(t, other, "node-1")
		if err == nil {
			err = errors.Join(other.EndQuarantine(t.Context(), "node-1"), admitEnd(t, other, begun))
		}
		return err == nil && maxTTLs(t, other)[0] == lock.DefaultMaxTTL
	})
	eventually(t, 20*time.Second, "the record counts no longer", func() bool { return !kept.counts() })
}

// A node's admission reads the record before another process raises it, and ends after that process has updated the
// nodes.
func TestANodeThatIsAdmittedWhileTheRecordRisesHearsOfIt(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 2*time.Second, func(time.Duration) error {
		cfg, servers, _ := brief(t, 3, redisserver.Config{})
		cfg.Armer = nil
		l := started(t, cfg)
		must(t, client(t, servers[1].Addr).FlushAll(t.Context()).Err())
		begun, err := admitBegin(t, l, "node-2")
		must(t, err)
		must(t, l.EndQuarantine(t.Context(), "node-2"))
		lease := acquireLonger(t, locker(t, cfg), "r", 6*time.Second)
		must(t, admitEnd(t, l, begun))
		if all := maxTTLs(t, l); all[1] != 10*time.Second {
			return fmt.Errorf("the nodes grant %v", all) // it may have been late
		}
		release(t, lease)
		return nil
	})
}

// Leases that were allowed earlier, or by another process, may still be held. A record that began anew may be too low,
// but what it has counts.
func TestAQuarantineLastsTheLongestTTLInUseThoughLessIsAllowedNow(t *testing.T) {
	t.Parallel()
	for name, anew := range map[string]bool{"a record that counts": false, "a record that began anew": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, servers, kept := brief(t, 1, redisserver.Config{})
			l := started(t, cfg)
			if anew {
				kept.anew()
			}
			first := acquireLonger(t, l, "r", 8*time.Second)
			must(t, l.Close())
			if anew && kept.counts() {
				t.Fatal("the new record counts: this test shows nothing")
			}
			must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
			cfg.MaxTTL = 3 * time.Second
			release(t, alone(t, locker(t, cfg), first))
		})
	}
}

// A PostgreSQL with a lower record than the nodes has lost the higher one.
func TestARecordThatTheNodesContradictCountsForNothing(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(r *records){
		"its TTL fell":    func(r *records) { r.is.TTL = 2 * time.Second },
		"its number fell": func(r *records) { r.is.Record-- },
		"it began anew":   func(r *records) { r.is.Record++ },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Paced(t, 2*time.Second, func(time.Duration) error {
				cfg, servers, kept := brief(t, 3, redisserver.Config{AppendOnly: redisserver.Always})
				cfg.Armer = nil
				kept.is.Record = 7
				l := started(t, cfg)
				release(t, acquireLonger(t, l, "r", 6*time.Second))
				if !kept.counts() {
					return errors.New("the record does not count: this test shows nothing") // a node may have been late
				}
				kept.mu.Lock()
				forget(kept)
				kept.mu.Unlock()
				for _, s := range servers[:2] { // leaves no majority that could answer
					restart(t, s, nil)
				}
				begun := longQuarantine(t, l)
				// A longer lease is still granted, and the record is then at least as high as on the nodes.
				must(t, l.EndQuarantine(t.Context(), "node-1"))
				must(t, admitEnd(t, l, begun))
				admit(t, l, "node-2")
				release(t, acquireLonger(t, l, "r", 15*time.Second))
				for i, most := range maxTTLs(t, l) {
					if most > kept.is.TTL {
						t.Errorf("%s grants %v, and %v is recorded", cfg.Nodes[i].Name, most, kept.is.TTL)
					}
					if most < 15*time.Second { // it may have been late
						return fmt.Errorf("%s grants %v", cfg.Nodes[i].Name, most)
					}
				}
				return nil
			})
		})
	}
}
