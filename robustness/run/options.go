// Package run plays a run: rounds of work under faults, each followed by a
// recovery, an audit and a judgement.
//
// The guarantee: a run that passes has asked every client what it was told,
// every register what it holds and every resource whether it is free, and has
// found no promise of the product broken. A run that could not look is an
// error.
package run

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/mutants"
)

// Options say what is run.
type Options struct {
	For       time.Duration // rounds begin until it is over; at least one is played
	Round     time.Duration // how long the clients work under faults in each; default 45s
	Seed      uint64
	Surfaces  []string // default: all
	Faults    []string // default: all
	Async     bool     // the standby does not hold up commits
	BlobS3    bool     // the blobs are kept by an S3 service; default: they are files in a folder
	Redis     int      // nodes: 3 (default) or 5
	Gateways  int      // default 3
	Clients   int      // processes; default 12
	Workers   int      // of each client; default 2
	Resources int      // of each round; default 8
	MaxTTL    time.Duration
	Soak      bool // no faults, but one gateway is restarted each minute: what must stay flat is measured
	Mutant    *mutants.Mutant
	Until     func(kinds []string) bool // with a mutant: enough was found
	Root      string                    // the repository
	Keep      string                    // folder that the evidence goes to where something was found; "": none is kept
	Out       io.Writer
}

func (o *Options) fill() error {
	set := func(n *int, to int) {
		if *n == 0 {
			*n = to
		}
	}
	set(&o.Redis, 3)
	set(&o.Gateways, 3)
	set(&o.Clients, 12)
	set(&o.Workers, 2)
	set(&o.Resources, 8)
	if o.Soak {
		o.Round = soakRound
	}
	if o.Round == 0 {
		o.Round = 45 * time.Second
	}
	if o.MaxTTL == 0 {
		o.MaxTTL = 3 * time.Second
	}
	if len(o.Surfaces) == 0 {
		o.Surfaces = client.Surfaces
	}
	for _, name := range o.Surfaces {
		if !slices.Contains(client.Surfaces, name) {
			return fmt.Errorf("no surface is called %q; there are %s", name, strings.Join(client.Surfaces, ", "))
		}
	}
	return nil
}

// guardedOnce says how the rows are guarded: as a whole, with every second seed, or each for itself.
func (o *Options) guardedOnce() bool {
	if o.Mutant != nil {
		return o.Mutant.GuardedOnce
	}
	return o.Seed%2 == 0
}

// mode is the name of what commits wait for.
func (o *Options) mode() string {
	if o.Async {
		return "asynchronous standby"
	}
	return "synchronous standby"
}
