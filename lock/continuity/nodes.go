// Package continuity records on the Redis nodes which PostgreSQL they serve. It detects a PostgreSQL that may have
// forgotten fences: a standby that was promoted while it lagged, or a restored backup.
//
// The guarantee: once a quorum of nodes has recorded a history of PostgreSQL, [Nodes.Look] fails with a
// [*ForgottenError] for any other one (another server, timeline or schema, or the same set back to an earlier point)
// until all fences have been invalidated there. It fails with an [*OtherDatabaseError] if the keys belong to another
// database. Two losses are not detected: that of only what came after the last look, if system, timeline and schema are
// the same and the server has by then written as much again; and that of the nodes' data at the same time.
//
// A Go program without a gateway uses an [Armer] for its locker, which arms nowhere else. Gateways and programs with
// the same nodes and key prefix share the record:
//
//	armer, err := continuity.Open(ctx, continuity.Config{Pool: poolConfig, Nodes: nodes, KeyPrefix: pgfence.KeyPrefix(pool)})
//	locker, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: pgfence.KeyPrefix(pool), Armer: armer, Epochs: armer})
//
// The record is one plain key on each node, PREFIX:postgresql, that holds JSON.
package continuity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

// State is what PostgreSQL reports about itself: fence.identity().
type State struct {
	Identity      string   `json:"identity"`      // system identifier/timeline/oid
	Written       uint64   `json:"written"`       // the server's LSN
	Beats         int64    `json:"beats"`         // how many checks have followed raised fences
	Invalidations []string `json:"invalidations"` // ids: all known ones in a record, those of this identity from PostgreSQL

	// Group identifies the database; its copies keep it. Database is its oid, in which a copy in the same cluster
	// differs. They are "" and 0 in records of older programs.
	Group    string `json:"group,omitempty"`
	Database uint32 `json:"database,omitempty"`
}

// Nodes reads and writes the record on the Redis nodes. It is safe for concurrent use.
type Nodes struct {
	ask     func(context.Context) (string, error)
	names   []string
	clients []*redis.Client

	mu     sync.Mutex
	prefix string // ""; not known yet
}

const stallTimeout = time.Second

// New returns the Nodes for a group's nodes and a key prefix, which is asked for until it is known; nil is the default of
// [lock.Config]. It connects on first use.
func New(nodes []lock.Node, prefix func(context.Context) (string, error)) (*Nodes, error) {
	if len(nodes) == 0 {
		return nil, &fence.InvalidError{Field: "nodes", Reason: "are missing"}
	}
	if prefix == nil {
		prefix = lock.Prefix("")
	}
	w := &Nodes{ask: prefix}
	for _, n := range nodes {
		w.names = append(w.names, cmp.Or(n.Addr, n.MasterName))
		w.clients = append(w.clients, redis.NewClient(&redis.Options{
			Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) { return n.Dial(ctx) },
			Addr:   cmp.Or(n.Addr, n.MasterName), DB: n.DB,

			CredentialsProviderContext: func(context.Context) (string, string, error) { return n.Login() },
			Protocol:                   2, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, PoolSize: 2,
			DialTimeout: stallTimeout, ReadTimeout: stallTimeout, WriteTimeout: stallTimeout, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		}))
	}
	return w, nil
}

// Close closes the connections.
func (w *Nodes) Close() error {
	errs := make([]error, len(w.clients))
	for i, c := range w.clients {
		errs[i] = c.Close()
	}
	return errors.Join(errs...)
}

// attempts bounds how often a look starts again because another gateway changed the record.
const attempts = 5

// Look compares what PostgreSQL reports with the nodes' record, and updates the record.
// It asks the nodes before PostgreSQL, so that a state which another gateway saw later is
// never taken for the past. It returns nil; a [*ForgottenError] or [*OtherDatabaseError],
// which leave the record as it was; seen's error; or the reason why no quorum answered.
func (w *Nodes) Look(ctx context.Context, seen func(context.Context) (State, error)) error {
	var err error
	for range attempts {
		var again bool
		if again, err = w.look(ctx, seen); !again {
			return err
		}
	}
	return err
}

// keyPrefix is the prefix of the group's keys.
func (w *Nodes) keyPrefix(ctx context.Context) (string, error) {
	w.mu.Lock()
	known := w.prefix
	w.mu.Unlock()
	if known != "" {
		return known, nil
	}
	prefix, err := w.ask(ctx)
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prefix = prefix
	return prefix, nil
}

func (w *Nodes) look(ctx context.Context, ask func(context.Context) (State, error)) (again bool, err error) {
	prefix, err := w.keyPrefix(ctx)
	if err != nil {
		return false, err
	}
	key := prefix + ":postgresql"
	records, err := w.recall(ctx, key)
	if err != nil {
		return false, err
	}
	seen, err := ask(ctx)
	if err != nil {
		return false, err
	}
	for _, t := range records {
		if elsewhere(t.state, seen) {
			return false, &OtherDatabaseError{Was: t.state, Is: seen, KeyPrefix: prefix}
		}
	}
	next := seen
	next.Invalidations = slices.Clone(seen.Invalidations)
	var news bool // something changed besides PostgreSQL's progress
	for _, t := range records {
		switch {
		case t.err != nil:
			continue
		case t.text == "":
			news = true
			continue
		}
		if forgotten(t.state, seen) {
			return false, &ForgottenError{Was: t.state, Is: seen}
		}
		news = news || t.state.Identity != seen.Identity || t.state.Group != seen.Group || t.state.Database != seen.Database ||
			t.state.Beats != seen.Beats || missing(t.state.Invalidations, seen.Invalidations)
		for _, id := range t.state.Invalidations {
			if !slices.Contains(next.Invalidations, id) {
				next.Invalidations = append(next.Invalidations, id)
			}
		}
	}
	slices.Sort(next.Invalidations)
	kept, failed := w.remember(ctx, key, records, next)
	if kept < w.quorum() && news {
		return true, fmt.Errorf("only %d of %d Redis nodes recorded this PostgreSQL: %w", kept, len(w.clients), failed)
	}
	return false, nil
}

// forgotten is the rule. Nothing is forgotten if the record is in this history's past, or if all fences were raised
// since: under this identity, by an invalidation that the record does not list.
func forgotten(was, is State) bool {
	if is.sameServer(was) && was.Written <= is.Written && was.Beats <= is.Beats {
		return false
	}
	return !missing(was.Invalidations, is.Invalidations)
}

// elsewhere reports whether the record belongs to a different database, of which this one is no copy.
func elsewhere(was, is State) bool { return was.Group != "" && is.Group != "" && was.Group != is.Group }

// sameServer reports whether both belong to one history of one database, as far as they tell.
func (s State) sameServer(other State) bool {
	return s.Identity == other.Identity && (s.Database == other.Database || s.Database == 0 || other.Database == 0)
}

// missing reports whether all has an id that known lacks.
func missing(known, all []string) bool {
	return slices.ContainsFunc(all, func(id string) bool { return !slices.Contains(known, id) })
}

// record is one node's record; text is "" if it has none.
type record struct {
	text  string
	state State
	err   error
}

func (w *Nodes) quorum() int { return len(w.clients)/2 + 1 }

// recall asks all nodes. It fails if fewer than a quorum answered.
func (w *Nodes) recall(ctx context.Context, key string) ([]record, error) {
	records := make([]record, len(w.clients))
	w.each(func(i int, c *redis.Client) {
		r := &records[i]
		r.text, r.err = c.Get(ctx, key).Result()
		if errors.Is(r.err, redis.Nil) {
			r.err = nil
			return
		}
		if r.err == nil {
			r.err = json.Unmarshal([]byte(r.text), &r.state)
		}
	})
	answered := 0
	var errs []error
	for i, r := range records {
		if r.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", w.names[i], r.err))
			continue
		}
		answered++
	}
	if answered < w.quorum() {
		return nil, fmt.Errorf("only %d of %d Redis nodes returned their record of PostgreSQL: %w", answered, len(w.clients), errors.Join(errs...))
	}
	return records, nil
}

// replace sets the key if it is unchanged since it was read.
//
// KEYS[1] the key; ARGV[1] the value that was read, "" for none; ARGV[2] the new value.
const replace = `if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`

var errChanged = errors.New("another program changed the record at the same time")

// remember writes to the nodes that answered, and counts those that accepted.
func (w *Nodes) remember(ctx context.Context, key string, records []record, next State) (kept int, err error) {
	text, err := json.Marshal(next)
	if err != nil {
		return 0, err
	}
	errs := make([]error, len(w.clients))
	w.each(func(i int, c *redis.Client) {
		if errs[i] = records[i].err; errs[i] != nil {
			return
		}
		done, err := c.Eval(ctx, replace, []string{key}, records[i].text, text).Int()
		if err == nil && done == 0 {
			err = errChanged
		}
		errs[i] = err
	})
	for _, err := range errs {
		if err == nil {
			kept++
		}
	}
	return kept, errors.Join(errs...)
}

func (w *Nodes) each(do func(int, *redis.Client)) {
	var calls sync.WaitGroup
	for i, c := range w.clients {
		calls.Go(func() { do(i, c) })
	}
	calls.Wait()
}
