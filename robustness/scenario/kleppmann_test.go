//go:build linux

package scenario_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/robustness/relay"
)

// "Client 1 acquires the lease, and is paused by its garbage collector after it has checked that the lease is
// good. The lease runs out, client 2 acquires it and writes. Client 1 comes back, and writes."
func TestKleppmannAClientIsPausedAfterItGotTheLock(t *testing.T) {
	besides(t, options{}, func(t *testing.T, w *world) {
		first, second := w.process(w.addrs, ""), w.client(w.addrs)
		first.send(order{Do: "acquire"})
		if a := first.answer(); a.Error != "" || a.Left <= 0 {
			t.Fatalf("the first client's lease: %+v", a) // it checked: there is time left
		}
		first.freeze()
		first.send(order{Do: "write", Value: "old"}) // its next step
		must(t, second.acquire(w.bounded()))
		must(t, second.write(t.Context(), "new"))
		first.thaw()
		w.wantStaleAnswer(first.answer())
	})
}

// "The write request may be delayed in the network before it reaches the storage service": packets were once delayed
// for 90 seconds.
func TestKleppmannAWriteIsDelayedInTheNetwork(t *testing.T) {
	besides(t, options{}, func(t *testing.T, w *world) {
		network, writer := w.relayedWriter()
		first, second := w.process(w.addrs, writer), w.client(w.addrs)
		first.do(order{Do: "acquire"})
		network.Hold(relay.Requests, true)
		first.send(order{Do: "write", Value: "old"})
		first.awaitSent()
		must(t, second.acquire(w.bounded()))
		must(t, second.write(t.Context(), "new"))
		network.Hold(relay.Requests, false)
		w.wantStaleAnswer(first.answer())
	})
}

// "Client 1 acquires the lock on A, B and C; because of the network, D and E can't be reached. The clock on C jumps
// forward, and the lock expires. Client 2 acquires it on C, D and E; A and B can't be reached. Both believe that they
// hold the lock." With fencegate both do, too: its guarantee concerns what they write.
func TestKleppmannAClockJumpsAndTwoClientsHoldMajorities(t *testing.T) {
	besides(t, options{ttl: long, clock: true}, func(t *testing.T, w *world) {
		first, second := w.client(w.only("ABC")), w.client(w.only("CDE"))
		must(t, first.acquire(w.bounded()))
		if err := w.client(w.only("CDE")).try(t.Context()); err == nil {
			t.Fatal("the lock was free before the clock jumped")
		}
		must(t, w.clocks[2].Set(time.Minute))
		must(t, second.acquire(w.bounded()))
		if first.left() <= 0 || second.left() <= 0 {
			t.Errorf("they have %v and %v left; want two holders", first.left(), second.left())
		}
		must(t, second.write(t.Context(), "new"))
		w.wantStaleWrite(first.write(t.Context(), "old"))
	})
}

// "While the responses to client 1 are in flight, client 1 goes into a pause. The locks expire on all nodes. Client 2
// acquires. Client 1 finishes, and receives the responses, which were held in its kernel's buffers." An acquisition
// that checks the clock after its replies notices, also in the plain library.
func TestKleppmannRepliesToAnAcquisitionAreReadAfterAPause(t *testing.T) {
	besides(t, options{}, func(t *testing.T, w *world) {
		network, addrs := w.relayed()
		first, second := w.process(addrs, ""), w.client(w.addrs)
		first.do(order{Do: "acquire"}) // afterwards it is connected
		first.do(order{Do: "release"})
		hold(network, true)
		first.send(order{Do: "try"})
		w.until("the first client has the lock of a majority", func() bool { return w.holders() >= 3 })
		first.freeze()
		hold(network, false)
		must(t, second.acquire(w.bounded()))
		must(t, second.write(t.Context(), "new"))
		first.thaw()
		if a := first.answer(); a.Error == "" {
			t.Errorf("the first client believes in its lock: %+v", a)
		}
		if value := w.value(); value != "new" {
			t.Errorf("the row is %q", value)
		}
	})
}

// The same replies reach a client that checks, right before it writes, whether it still holds the lock: the plain
// library confirms it. A lease of fencegate has ended by its own clock, and a client that writes anyway is refused.
func TestKleppmannRepliesToACheckAreReadAfterAPause(t *testing.T) {
	besides(t, options{}, func(t *testing.T, w *world) {
		network, addrs := w.relayed()
		first, second := w.process(addrs, ""), w.client(w.addrs)
		first.do(order{Do: "acquire"})
		before := carried(network)
		hold(network, true)
		first.send(order{Do: "check"})
		w.until("the question is with all nodes", func() bool {
			for i, n := range carried(network) {
				if n == before[i] {
					return false
				}
			}
			return true
		})
		first.freeze()
		hold(network, false)
		must(t, second.acquire(w.bounded()))
		must(t, second.write(t.Context(), "new"))
		first.thaw()
		if a := first.answer(); (a.Error == "") == w.fenced {
			t.Errorf("whether it still holds the lock: %+v", a)
		}
		first.send(order{Do: "write", Value: "old"})
		w.wantStaleAnswer(first.answer())
	})
}

func hold(network []*relay.Relay, on bool) {
	for _, r := range network {
		r.Hold(relay.Replies, on)
	}
}

func carried(network []*relay.Relay) []int64 {
	var bytes []int64
	for _, r := range network {
		bytes = append(bytes, r.Carried(relay.Requests))
	}
	return bytes
}
