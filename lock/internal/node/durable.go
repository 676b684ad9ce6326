package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Lister is an [EpochStore] that also has the fences, as a pgfence.Fence does.
type Lister interface {
	List(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error)
}

// settings are the settings with which a server keeps everything that it acknowledged across a crash.
var settings = []struct{ name, value string }{
	{"appendonly", "yes"}, {"appendfsync", "always"}, {"no-appendfsync-on-rewrite", "no"},
}

// Durability says why a server may lose what it has acknowledged; nil: its settings are durable.
func (n *Node) Durability(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, StallTimeout)
	defer cancel()
	for _, s := range settings {
		is, err := n.client.ConfigGet(ctx, s.name).Result()
		if err != nil {
			return fmt.Errorf("read its %s: %w", s.name, ServerError(err))
		}
		if is[s.name] != s.value {
			return fmt.Errorf("its %s is %q, and must be %q", s.name, is[s.name], s.value)
		}
	}
	said, err := n.client.Info(ctx, "persistence").Result()
	if err != nil {
		return fmt.Errorf("read the state of its append-only file: %w", ServerError(err))
	}
	if !strings.Contains(said, "aof_last_write_status:ok") {
		return errors.New("its append-only file could not be written")
	}
	return nil
}

const (
	fencePage = 1000
	// fencesWithin bounds the reading of all fences. It is much shorter than a quarantine.
	fencesWithin = 10 * time.Second
)

// Above returns an error if a fence stands above the node's counter: the node was restored from an older copy.
func (n *Node) Above(ctx context.Context, store Lister, base int64) error {
	ctx, cancel := context.WithTimeout(ctx, fencesWithin)
	defer cancel()
	for after := ""; ; {
		page, err := store.List(ctx, "", after, fencePage)
		if err != nil || len(page) == 0 {
			return err
		}
		fields := make([]string, len(page))
		for i, record := range page {
			fields[i] = counterField(record.Resource)
		}
		counters, err := n.client.HMGet(ctx, n.keys.H, fields...).Result()
		switch {
		case err != nil:
			return ServerError(err)
		case len(counters) != len(page):
			return errMalformed
		}
		for i, record := range page {
			text, _ := counters[i].(string)
			if counted := max(number(text), base); int64(record.Token) > counted {
				return fmt.Errorf("its counter for %q is %d, below the fence's %d: it was restored from an older copy", record.Resource, counted, record.Token)
			}
		}
		after = page[len(page)-1].Resource
	}
}

// durableMark is the mark that admission sets on a node that is declared durable and has durable settings.
func (n *Node) durableMark(ctx context.Context) string {
	if n.Server.Durable && n.Durability(ctx) == nil {
		return "durable"
	}
	return ""
}

// Warning says what an operator should change about a node.
func (n *Node) Warning(ctx context.Context, st State) string {
	switch {
	case st.Err != nil:
	case st.Over != nil:
		return st.Over.Error()
	case n.Server.Watched && !st.Said.guarded:
		return unguarded
	case n.Server.Durable:
		if err := n.Durability(ctx); err != nil {
			return "it is declared durable, but " + err.Error()
		}
	}
	return ""
}

const unguarded = "its primary accepts writes while no replica is near: cut off from its Sentinels it would go on granting beside its successor; set min-replicas-to-write"
