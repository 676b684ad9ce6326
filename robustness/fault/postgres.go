package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/relay"
)

var postgresFaults = []Fault{
	{"pg-crash", "the primary crashes and recovers", 3, "", 20 * ms, 3 * sec, 5 * sec, pgCrash},
	{"pg-freeze", "the primary stands still", 3, "", 100 * ms, 4 * sec, sec, pgFreeze(World.Primary)},
	{"pg-standby-freeze", "the standby stands still: synchronous commits wait", 3, NeedsStandby, 200 * ms, 4 * sec, sec, pgFreeze(World.Standby)},
	{"pg-failover", "the primary is gone and the standby promoted, by the documented procedure", 2, NeedsStandby, 10 * ms, 500 * ms, 14 * sec, pgFailover},
	{"pg-terminate", "sessions are terminated or their statements cancelled, also while they commit", 5, "", 100 * ms, 3 * sec, sec, pgTerminate},
	{"rolling-pg", "the standby and then the primary are restarted", 2, NeedsStandby, 10 * ms, 10 * ms, 10 * sec, rollingPostgres},
}

// postgres claims both servers: each of their faults begins with two that run.
func (s *Stage) postgres(ctx context.Context, do func() error) error {
	return with(ctx, s, []bare{"postgres"}, "run", 1, func([]bare) error { return do() })
}

func pgCrash(ctx context.Context, s *Stage) error {
	return s.postgres(ctx, func() error {
		return during(ctx, []Postgres{s.Primary()}, s.For, Postgres.Kill, func(ctx context.Context, p Postgres) error { return p.Start(ctx) })
	})
}

func pgFreeze(which func(World) Postgres) func(context.Context, *Stage) error {
	return func(ctx context.Context, s *Stage) error {
		return s.postgres(ctx, func() error { return freeze(ctx, []Postgres{which(s.World)}, s.For) })
	}
}

func rollingPostgres(ctx context.Context, s *Stage) error {
	return s.postgres(ctx, func() error {
		restart := func(ctx context.Context, p Postgres) error {
			if err := p.Stop(); err != nil {
				return err
			}
			return p.Start(ctx)
		}
		caughtUp := func(_ Postgres, ctx context.Context) error { return s.CaughtUp(ctx) }
		return rolling(ctx, s, []Postgres{s.Standby(), s.Primary()}, ErrNotHealed, restart, caughtUp)
	})
}

// failoverPatience bounds a failover: the promotion, the raising of every fence, and a new standby.
const failoverPatience = 60 * time.Second

// pgFailover is not interrupted once it has begun: no operator heals half of a procedure.
func pgFailover(ctx context.Context, s *Stage) error {
	return s.postgres(ctx, func() error {
		how := cluster.Failover{InOrder: s.odds(3)}
		if s.odds(2) && !s.Async() { // otherwise the procedure fences the old primary off first
			how.OldUptime = s.between(100*ms, 3*sec)
		}
		s.logf("the old primary is stopped in order: %v, and comes back for %v", how.InOrder, how.OldUptime)
		if !wait(ctx, s.For) {
			return nil
		}
		if s.Async() && !how.InOrder && !s.odds(4) {
			defer s.lag(ctx)()
		}
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), failoverPatience)
		defer cancel()
		done, err := s.Failover(after, how)
		if errors.Is(err, cluster.ErrNoStandby) {
			return fmt.Errorf("%w: %w", ErrNotDone, err)
		}
		s.record.switched(done) // a failed one may have lost something, too
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotHealed, err)
		}
		s.logf("%s is the primary, on timeline %d from %s; %d effects are lost", done.Primary, done.Timeline, done.LSN, len(done.Effects))
		return nil
	})
}

// longestLag is below the ages at which blobs are swept: with more lag a failover loses bytes by design.
const longestLag = 2 * time.Second

// lag cuts off the standby for a while, so that the failover loses
// what was acknowledged after the cut. It lasts until end is called.
func (s *Stage) lag(ctx context.Context) (end func()) {
	var held []*relay.Relay
	for _, link := range s.Links() {
		if strings.HasPrefix(link.From, "postgres-") && link.Connections() > 0 { // not the next standby's
			held = append(held, link)
		}
	}
	hold := func(on bool) {
		for _, link := range held {
			link.Hold(relay.Requests, on)
			link.Hold(relay.Replies, on)
		}
	}
	hold(true)
	d := s.between(50*ms, longestLag)
	s.logf("the standby hears nothing for %v before", d)
	wait(ctx, d)
	return func() { hold(false) }
}

// A victim is a session of a client or gateway, never of the run itself, which logs in as a superuser. Committing
// sessions come first, then those in a transaction.
const victimSQL = `
SELECT CASE WHEN $1 THEN pg_terminate_backend(pid) ELSE pg_cancel_backend(pid) END
FROM (
  SELECT a.pid FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid
  WHERE a.backend_type = 'client backend' AND NOT r.rolsuper AND a.pid <> pg_backend_pid()
  ORDER BY $2 AND (a.wait_event = 'SyncRep' OR a.state = 'active' AND a.query ~* '^\s*commit') DESC,
    $2 AND a.state <> 'idle' DESC, random()
  LIMIT $3
) victims`

func pgTerminate(ctx context.Context, s *Stage) error {
	conn, err := s.Superuser(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("%w: %w", ErrNotDone, err)
	}
	defer func() {
		after, cancel := healing(ctx)
		defer cancel()
		_ = conn.Close(after)
	}()
	end := time.Now().Add(s.For)
	asked, met := 0, 0
	for {
		kill, busy, some := s.odds(2), !s.odds(4), 1+s.Rand.IntN(3)
		if s.odds(20) {
			some = 1000 // all
		}
		tag, err := conn.Exec(ctx, victimSQL, kill, busy, some)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && asked == 0:
			return fmt.Errorf("%w: %w", ErrNotDone, err)
		case err != nil: // the server went down by another fault
			return nil
		}
		asked, met = asked+1, met+int(tag.RowsAffected())
		if !wait(ctx, s.between(ms, 60*ms)) || time.Now().After(end) {
			s.logf("%d sessions in %d calls", met, asked)
			return nil
		}
	}
}
