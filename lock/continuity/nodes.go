// Package continuity lets the Redis nodes remember which PostgreSQL they serve, so
// that one that may have forgotten fences is noticed: a standby that was
// promoted while it lagged, or a restored backup.
//
// The guarantee: once a quorum of nodes has recorded a history of PostgreSQL,
// [Nodes.Look] fails with a [*ForgottenError] for any other one (another
// server, timeline or schema, or the same set back to an earlier point), until
// all fences have been invalidated there; and with an [*OtherDatabaseError] where
// the keys are those of another database. What it can't notice is a loss of
// only what came after the last look, where system, timeline and schema stay and
// the server has by then written as much again; and the loss of the nodes' data
// at the same time.
//
// A Go program without a gateway has an [Armer] for its locker, which arms nowhere
// else. Gateways and programs that name the same nodes and key prefix share what is
// remembered:
//
//	armer, err := continuity.Open(ctx, continuity.Config{Pool: poolConfig, Nodes: nodes, KeyPrefix: prefix})
//	locker, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: prefix, Armer: armer, Epochs: armer})
//
// prefix is the database's own, from [pgfence.KeyPrefix], as gateways have it.
//
// On each node it is one plain key, PREFIX:postgresql, that holds JSON.
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

// Seen is what PostgreSQL says about itself: fence.identity().
type Seen struct {
	Identity      string   `json:"identity"`      // system identifier/timeline/oid
	Written       uint64   `json:"written"`       // how far the server has come, as an LSN
	Beats         int64    `json:"beats"`         // how often those that raised fences have looked
	Invalidations []string `json:"invalidations"` // ids: in a record all that are known, from PostgreSQL those of this identity

	// Group is the database's own, which its copies keep; Database is its oid, which a copy in the same cluster has not.
	// "" and 0 in records of programs that did not know them.
	Group    string `json:"group,omitempty"`
	Database uint32 `json:"database,omitempty"`
}

// Nodes asks and tells the nodes. It is safe for concurrent use.
type Nodes struct {
	prefix  string
	key     string
	names   []string
	clients []*redis.Client
}

const stallTimeout = time.Second

// New makes the Nodes of a group's nodes and the prefix of its keys. It connects
// when it is used.
func New(nodes []lock.Node, prefix string) (*Nodes, error) {
	if len(nodes) == 0 {
		return nil, &fence.InvalidError{Field: "nodes", Reason: "are missing"}
	}
	if prefix == "" {
		prefix = lock.DefaultKeyPrefix
	}
	w := &Nodes{prefix: prefix, key: prefix + ":postgresql"}
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

// Close ends the connections.
func (w *Nodes) Close() error {
	errs := make([]error, len(w.clients))
	for i, c := range w.clients {
		errs[i] = c.Close()
	}
	return errors.Join(errs...)
}

// attempts bounds how often a look begins again because another gateway told
// the nodes something in between.
const attempts = 5

// Look compares what PostgreSQL says with what the nodes remember, and lets them
// remember it. The nodes are asked before PostgreSQL, so that what another
// gateway saw later is never taken for the past. It returns nil, a
// [*ForgottenError] or [*OtherDatabaseError], after which the nodes remember what
// they did, seen's error, or what kept a quorum from answering.
func (w *Nodes) Look(ctx context.Context, seen func(context.Context) (Seen, error)) error {
	var err error
	for range attempts {
		var again bool
		if again, err = w.look(ctx, seen); !again {
			return err
		}
	}
	return err
}

func (w *Nodes) look(ctx context.Context, ask func(context.Context) (Seen, error)) (again bool, err error) {
	told, err := w.recall(ctx)
	if err != nil {
		return false, err
	}
	seen, err := ask(ctx)
	if err != nil {
		return false, err
	}
	for _, t := range told {
		if elsewhere(t.seen, seen) {
			return false, &OtherDatabaseError{Was: t.seen, Is: seen, KeyPrefix: w.prefix}
		}
	}
	next := seen
	next.Invalidations = slices.Clone(seen.Invalidations)
	var news bool // more than that PostgreSQL has gone on
	for _, t := range told {
		switch {
		case t.err != nil:
			continue
		case t.text == "":
			news = true
			continue
		}
		if forgotten(t.seen, seen) {
			return false, &ForgottenError{Was: t.seen, Is: seen}
		}
		news = news || t.seen.Identity != seen.Identity || t.seen.Group != seen.Group || t.seen.Database != seen.Database ||
			t.seen.Beats != seen.Beats || missing(t.seen.Invalidations, seen.Invalidations)
		for _, id := range t.seen.Invalidations {
			if !slices.Contains(next.Invalidations, id) {
				next.Invalidations = append(next.Invalidations, id)
			}
		}
	}
	slices.Sort(next.Invalidations)
	kept, failed := w.remember(ctx, told, next)
	if kept < w.quorum() && news {
		return true, fmt.Errorf("%d of %d Redis nodes could be told which PostgreSQL this is: %w", kept, len(w.clients), failed)
	}
	return false, nil
}

// forgotten is the rule. What is recorded must be this history's past, or all
// fences were raised since: under this very identity, by an invalidation that
// nobody had seen when the record was made.
func forgotten(was, is Seen) bool {
	if is.sameServer(was) && was.Written <= is.Written && was.Beats <= is.Beats {
		return false
	}
	return !missing(was.Invalidations, is.Invalidations)
}

// elsewhere reports whether the record is of a database that this one is neither, nor a copy of.
func elsewhere(was, is Seen) bool { return was.Group != "" && is.Group != "" && was.Group != is.Group }

// sameServer reports whether both are of one history of one database, as far as they say.
func (s Seen) sameServer(other Seen) bool {
	return s.Identity == other.Identity && (s.Database == other.Database || s.Database == 0 || other.Database == 0)
}

// missing reports whether `all` has an id that `known` has not.
func missing(known, all []string) bool {
	return slices.ContainsFunc(all, func(id string) bool { return !slices.Contains(known, id) })
}

// record is what one node remembers; text is "" where that is nothing.
type record struct {
	text string
	seen Seen
	err  error
}

func (w *Nodes) quorum() int { return len(w.clients)/2 + 1 }

// recall asks all nodes; an error says that fewer than a quorum answered.
func (w *Nodes) recall(ctx context.Context) ([]record, error) {
	records := make([]record, len(w.clients))
	w.each(func(i int, c *redis.Client) {
		r := &records[i]
		r.text, r.err = c.Get(ctx, w.key).Result()
		if errors.Is(r.err, redis.Nil) {
			r.err = nil
			return
		}
		if r.err == nil {
			r.err = json.Unmarshal([]byte(r.text), &r.seen)
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
		return nil, fmt.Errorf("%d of %d Redis nodes tell which PostgreSQL they served: %w", answered, len(w.clients), errors.Join(errs...))
	}
	return records, nil
}

// replace sets the key where nothing has changed it since it was read.
//
// KEYS[1] the key; ARGV[1] what was read, "" for nothing; ARGV[2] the new value.
const replace = `if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1`

var errChanged = errors.New("another program told it something in between")

// remember tells the nodes that answered, and counts those that took it.
func (w *Nodes) remember(ctx context.Context, told []record, next Seen) (kept int, err error) {
	text, err := json.Marshal(next)
	if err != nil {
		return 0, err
	}
	errs := make([]error, len(w.clients))
	w.each(func(i int, c *redis.Client) {
		if errs[i] = told[i].err; errs[i] != nil {
			return
		}
		done, err := c.Eval(ctx, replace, []string{w.key}, told[i].text, text).Int()
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
