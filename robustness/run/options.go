// Package run plays a run: rounds of work under faults, each followed by a recovery, an audit and a judgement.
//
// The guarantee: a run that passes has collected every client's history, read every register and acquired every
// resource, and found no violated guarantee. A run that could not check is an error.
package run

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/internal/mutants/table"
	"github.com/fencegate/fencegate/robustness/client"
)

// Options configure a run.
type Options struct {
	For       time.Duration // rounds begin within this time; at least one is played
	Round     time.Duration // how long the clients work under faults in a round; default 45s
	Seed      uint64
	Surfaces  []string // default: all
	Faults    []string // default: all
	Async     bool     // commits do not wait for the standby
	BlobS3    bool     // an S3 service keeps the blobs; default: files in a folder
	Balancer  bool     // HAProxy stands in front of the gateways
	Redis     int      // nodes: 1, 3 (default) or 5
	Gateways  int      // default 3
	Clients   int      // processes; default 12
	Workers   int      // per client; default 2
	Resources int      // per round; default 8
	MaxTTL    time.Duration

	PostgresLeases bool // leases come from PostgreSQL, and there are no Redis nodes

	Soak   bool // no faults; one gateway is restarted each minute, and sizes that must not grow are measured
	Mutant *table.Mutant
	Until  func(kinds []string) bool // with a mutant: reports that enough was found
	Root   string                    // the repository
	Keep   string                    // folder for the evidence of findings; "": none is kept
	Out    io.Writer
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

// guardedOnce returns how the rows are guarded: as a whole, with every second seed, or each for itself.
func (o *Options) guardedOnce() bool {
	if o.Mutant != nil {
		return o.Mutant.Run.GuardedOnce
	}
	return o.Seed%2 == 0
}

// mode names what commits wait for, and what grants the leases.
func (o *Options) mode() string {
	mode := "synchronous standby"
	if o.Async {
		mode = "asynchronous standby"
	}
	if o.PostgresLeases {
		mode += ", leases from PostgreSQL"
	} else {
		mode += fmt.Sprintf(", Redis nodes: %d", o.Redis)
	}
	if o.Balancer {
		mode += ", behind a balancer"
	}
	return mode
}
