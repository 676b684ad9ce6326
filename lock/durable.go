package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// lister is an [EpochStore] that also has the fences, as a pgfence.Fence does.
type lister interface {
	List(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error)
}

// settings are the settings with which a server keeps everything that it acknowledged across a crash.
var settings = []struct{ name, value string }{
	{"appendonly", "yes"}, {"appendfsync", "always"}, {"no-appendfsync-on-rewrite", "no"},
}

// durability says why a server may lose what it has acknowledged; nil: its settings are durable.
func (n *node) durability(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	for _, s := range settings {
		is, err := n.client.ConfigGet(ctx, s.name).Result()
		if err != nil {
			return fmt.Errorf("read its %s: %w", s.name, serverError(err))
		}
		if is[s.name] != s.value {
			return fmt.Errorf("its %s is %q, and must be %q", s.name, is[s.name], s.value)
		}
	}
	said, err := n.client.Info(ctx, "persistence").Result()
	if err != nil {
		return fmt.Errorf("read the state of its append-only file: %w", serverError(err))
	}
	if !strings.Contains(said, "aof_last_write_status:ok") {
		return errors.New("its append-only file could not be written")
	}
	return nil
}

// unbroken reports whether a node whose admission has begun still has everything that it ever granted: it is durable,
// its server only restarted, and the epoch that was raised after the admission began is the one after the node's. The
// server of a reign that is over has evicted keys or was promoted; one that was promoted while it had no scripts says
// so itself.
func (l *Locker) unbroken(ctx context.Context, n *node, st nodeState, a admission) bool {
	if !st.durable || !n.cfg.Durable || st.over != nil || st.said.promoted || l.cfg.Epochs == nil || a.base>>epochShift != st.base>>epochShift+1 {
		return false
	}
	return l.keeps(ctx, n, st)
}

// keeps reports whether a node that is declared durable still has everything that it granted: its settings were
// durable when it was admitted and are so now, and no fence stands above its counters.
func (l *Locker) keeps(ctx context.Context, n *node, st nodeState) bool {
	err := n.durability(ctx)
	if store, ok := l.cfg.Epochs.(lister); ok && err == nil {
		err = n.above(ctx, store, st.base)
	}
	if err != nil {
		l.cfg.Logger.WarnContext(ctx, "node is declared durable but is quarantined", "node", n.name, "error", err)
	}
	return err == nil
}

const (
	fencePage = 1000
	// fencesWithin bounds the reading of all fences. It is much shorter than a quarantine.
	fencesWithin = 10 * time.Second
)

// above returns an error if a fence stands above the node's counter: the node was restored from an older copy.
func (n *node) above(ctx context.Context, store lister, base int64) error {
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
		counters, err := n.client.HMGet(ctx, n.keys.h, fields...).Result()
		switch {
		case err != nil:
			return serverError(err)
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
func (n *node) durableMark(ctx context.Context) string {
	if n.cfg.Durable && n.durability(ctx) == nil {
		return "durable"
	}
	return ""
}

// warning says what an operator should change about a node.
func (n *node) warning(ctx context.Context, st nodeState) string {
	switch {
	case st.err != nil:
	case st.over != nil:
		return st.over.Error()
	case n.cfg.watched() && !st.said.guarded:
		return unguarded
	case n.cfg.Durable:
		if err := n.durability(ctx); err != nil {
			return "it is declared durable, but " + err.Error()
		}
	}
	return ""
}
