package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/robustness/judge"
)

// Failover says how a failover goes.
type Failover struct {
	// InOrder stops the old primary as a service manager does. Otherwise it is killed if it still runs.
	InOrder bool
	// OldUptime is how long the old primary runs again, as a primary that clients can reach,
	// after the standby was promoted and its fences were raised. Its commits wait for a
	// standby that will not come, so no write there is acknowledged; reads there are
	// outdated. With Async it must be 0: the procedure then fences the old primary off first.
	OldUptime time.Duration
}

// Switch describes a completed failover.
type Switch struct {
	judge.Loss

	// Returned is when the old primary ran again, and could be read; zero if it did not.
	Returned history.Span

	Primary  string // its name
	LSN      string // the start of the new timeline
	Timeline int
}

// ErrNoStandby reports that there has been no new standby since the last failover.
var ErrNoStandby = errors.New("there is no standby to promote")

const failoverPatience = 3 * time.Minute

// Failover promotes the standby by the procedure of docs/operations.md: the old primary is fenced off, the standby is
// promoted, `fence invalidate-all` raises every fence, and a new standby replaces the old primary. Before that, the
// data that only the old primary has is read from it. Failover continues after ctx has ended.
func (c *Cluster) Failover(ctx context.Context, how Failover) (Switch, error) {
	// Once begun, the failover is completed: there is no way back to the old primary.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), failoverPatience)
	defer cancel()
	if how.OldUptime > 0 && c.opts.Async {
		return Switch{}, errors.New("an asynchronous primary must not come back as one: it would acknowledge what is lost")
	}
	c.failing.Lock()
	defer c.failing.Unlock()
	if !c.attached {
		return Switch{}, ErrNoStandby
	}
	old, next := c.Primary(), c.Standby()
	if err := next.heal(ctx); err != nil {
		return Switch{}, err
	}
	c.attached = false
	s := Switch{Primary: next.Name}
	after, err := c.promote(ctx, how, &s)
	if err != nil {
		return s, fmt.Errorf("failover to %s: %w", next.Name, err)
	}
	if how.OldUptime > 0 {
		from := history.Now()
		err := c.comesBack(ctx, old, how.OldUptime)
		s.Returned = history.Span{Client: -1, What: "old primary", From: from, To: history.Now()}
		if err != nil {
			return s, fmt.Errorf("failover to %s: %w", next.Name, err)
		}
	}
	before, err := evidenceOf(ctx, old)
	if err != nil {
		return s, fmt.Errorf("what %s had: %w", old.Name, err)
	}
	s.Effects, s.Fences = missing(before.effects, after.effects), fallen(before.fences, after.fences)
	if err := c.attach(ctx); err != nil {
		return s, fmt.Errorf("new standby: %w", err)
	}
	c.attached = true
	return s, nil
}

// promote fences off the old primary, promotes the other server, and returns the old primary's data.
func (c *Cluster) promote(ctx context.Context, how Failover, s *Switch) (had evidence, err error) {
	old, next := c.Primary(), c.Standby()
	// If fences may have been lost, stale grants look current. So clients may connect only after the fences are raised.
	// With a synchronous standby nothing is lost.
	links := c.Net.Find("", next.Name)
	if c.opts.Async {
		for _, link := range links {
			link.Bar(true)
		}
		defer func() {
			for _, link := range links {
				link.Bar(false)
			}
		}()
	}
	if how.InOrder {
		err = old.Stop()
	}
	if err = errors.Join(err, old.Kill()); err != nil { // a frozen process handles no other signal
		return had, err
	}
	s.From = history.Now()
	c.mu.Lock()
	c.primary = 1 - c.primary
	c.mu.Unlock()
	if done, err := says[bool](ctx, next, "SELECT pg_promote(true, 60)"); err != nil || !done {
		return had, errors.Join(err, errors.New("promotion"))
	}
	s.To = history.Now()
	if had, err = read(ctx, next); err != nil {
		return had, err
	}
	if err := c.timeline(ctx, next, s); err != nil {
		return had, err
	}
	_, err = c.Tool(ctx, "fence", "invalidate-all", "--yes")
	return had, err
}

const (
	readHistory = `SELECT pg_read_file('pg_wal/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '.history')`
	readFences  = "SELECT coalesce(jsonb_object_agg(resource, token), '{}') FROM fence.resources"
)

// timeline reads where the new primary's timeline began.
func (c *Cluster) timeline(ctx context.Context, p *Postgres, s *Switch) error {
	text, err := says[string](ctx, p, readHistory)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if _, err := fmt.Sscan(lines[len(lines)-1], &s.Timeline, &s.LSN); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	s.Timeline++
	return nil
}

// comesBack runs the old primary as a primary again, for a while.
func (c *Cluster) comesBack(ctx context.Context, old *Postgres, d time.Duration) error {
	if err := old.Start(ctx); err != nil {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return old.Kill()
}

// evidence is a server's data that a failover may take back.
type evidence struct {
	effects []judge.Effect
	fences  map[string]int64
}

func read(ctx context.Context, p *Postgres) (e evidence, err error) {
	if e.effects, err = effectsOf(ctx, p, 0); err != nil {
		return e, err
	}
	e.fences, err = says[map[string]int64](ctx, p, readFences)
	return e, err
}

// evidenceOf starts a stopped server on its data at an unused address, and reads it.
func evidenceOf(ctx context.Context, p *Postgres) (e evidence, err error) {
	cfg := p.cfg
	if cfg.Port, err = child.FreePort(); err != nil {
		return e, err
	}
	server, err := pgserver.Start(ctx, cfg)
	if err != nil {
		return e, err
	}
	alone := &Postgres{Name: p.Name, server: server, url: server.URL(Database)}
	e, err = read(ctx, alone)
	return e, errors.Join(err, alone.Kill())
}

// fallen returns the fences that are lower than before.
func fallen(was, is map[string]int64) []judge.Fence {
	var fell []judge.Fence
	for resource, token := range was {
		if is[resource] < token {
			fell = append(fell, judge.Fence{Resource: resource, Token: is[resource], Was: token})
		}
	}
	return fell
}
