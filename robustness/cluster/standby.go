package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Primary is the current primary, whether it runs or not.
func (c *Cluster) Primary() *Postgres {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pg[c.primary]
}

// Standby is the other one.
func (c *Cluster) Standby() *Postgres {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pg[1-c.primary]
}

// Servers returns both, sorted by name.
func (c *Cluster) Servers() []*Postgres { return c.pg[:] }

// repair completes a failover that failed. The old primary's data is then unknown.
func (c *Cluster) repair(ctx context.Context) error {
	primary := c.Primary()
	standing, err := says[bool](ctx, primary, "SELECT NOT pg_is_in_recovery() OR pg_promote(true, 60)")
	if err != nil || !standing {
		return errors.Join(err, fmt.Errorf("%s is not promoted", primary.Name))
	}
	if _, err := c.Tool(ctx, "fence", "invalidate-all", "--yes"); err != nil {
		return err
	}
	if err := errors.Join(c.Standby().Kill(), c.attach(ctx)); err != nil {
		return err
	}
	c.attached = true
	return nil
}

var primaryPort = regexp.MustCompile(`port=\d+`)

// attach makes a new standby of the primary in the other server's folder, whatever that held. It returns when the
// standby streams and commits wait for it.
func (c *Cluster) attach(ctx context.Context) error {
	primary, standby := c.Primary(), c.Standby()
	if err := os.RemoveAll(standby.cfg.Dir); err != nil {
		return err
	}
	if err := primary.server.CopyTo(ctx, standby.cfg.Dir, true); err != nil {
		return err
	}
	link, err := c.Net.Between(standby.Name, primary.Name, primary.Addr)
	if err != nil {
		return err
	}
	if err := redirect(filepath.Join(standby.cfg.Dir, "data", "postgresql.auto.conf"), portOf(link.Addr())); err != nil {
		return err
	}
	if err := standby.start(ctx); err != nil {
		return err
	}
	if err := c.CaughtUp(ctx); err != nil {
		return err
	}
	if c.opts.Async {
		return nil
	}
	return c.waitForStandby(ctx, true)
}

// redirect points a standby's configuration to its primary through a relay. The file's owner is unchanged.
func redirect(file, port string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !primaryPort.Match(text) {
		return fmt.Errorf("%s: no primary_conninfo", file)
	}
	text = primaryPort.ReplaceAll(text, []byte("port="+port))
	return os.WriteFile(file, text, 0o600) //nolint:gosec // below the cluster's own folder
}

const (
	standbyState = `SELECT coalesce(min(sync_state), 'gone') FROM pg_stat_replication WHERE application_name = $1`
	hasReached   = `SELECT coalesce(least(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) >= $1::text::pg_lsn, false)`
)

// waitForStandby makes commits on the primary wait for the standby, or not, and returns when that applies.
func (c *Cluster) waitForStandby(ctx context.Context, wait bool) error {
	primary, name := c.Primary(), ""
	if wait {
		name = `"` + c.Standby().Name + `"`
	}
	err := primary.exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = '"+name+"'", "SELECT pg_reload_conf()")
	if err != nil || !wait {
		return err
	}
	err = until(ctx, 50*time.Millisecond, "commits wait for the standby", func() error {
		state, err := says[string](ctx, primary, standbyState, c.Standby().Name)
		if err == nil && state != "sync" {
			err = errors.New(state)
		}
		return err
	})
	if err != nil {
		return err
	}
	// Sessions that had not read the setting may have committed without waiting.
	return c.CaughtUp(ctx)
}

// CaughtUp waits until the standby has everything that the primary has written so far.
func (c *Cluster) CaughtUp(ctx context.Context) error {
	position, err := says[string](ctx, c.Primary(), "SELECT pg_current_wal_flush_lsn()::text")
	if err != nil {
		return err
	}
	return until(ctx, 50*time.Millisecond, "the standby catches up", func() error {
		there, err := says[bool](ctx, c.Standby(), hasReached, position)
		if err == nil && !there {
			err = errors.New("it is behind")
		}
		return err
	})
}
