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
	{
		Name: "pg-crash", What: "the primary crashes and recovers", Weight: 3,
		Shortest: 20 * time.Millisecond, Longest: 3 * time.Second, Tail: 5 * time.Second, Run: pgCrash,
	},
	{
		Name: "pg-freeze", What: "the primary stands still", Weight: 3,
		Shortest: 100 * time.Millisecond, Longest: 4 * time.Second, Tail: time.Second, Run: pgFreeze,
	},
	{
		Name: "pg-failover", What: "the primary is gone and the standby promoted, by the documented procedure", Weight: 2,
		Needs: NeedsStandby, Run: pgFailover,
		Shortest: 10 * time.Millisecond, Longest: 500 * time.Millisecond, Tail: 14 * time.Second,
	},
	{
		Name: "pg-standby-freeze", What: "the standby stands still: synchronous commits wait", Weight: 3,
		Needs: NeedsStandby, Run: pgStandbyFreeze,
		Shortest: 200 * time.Millisecond, Longest: 4 * time.Second, Tail: time.Second,
	},
	{
		Name: "pg-terminate", Weight: 5,
		What:     "sessions are terminated or their statements cancelled, also while they commit",
		Shortest: 100 * time.Millisecond, Longest: 3 * time.Second, Tail: time.Second, Run: pgTerminate,
	},
}

func pgCrash(ctx context.Context, s *Stage) error {
	release, ok := s.one(ctx, "postgres/run")
	if !ok {
		return nil
	}
	defer release()
	pg := s.Postgres()
	err := pg.Kill()
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotDone, err)
	}
	wait(ctx, s.For)
	after, cancel := healing(ctx)
	defer cancel()
	if again := pg.Start(after); again != nil {
		return errors.Join(err, fmt.Errorf("%w: the primary: %w", ErrNotHealed, again))
	}
	return err
}

func pgFreeze(ctx context.Context, s *Stage) error {
	pg := s.Postgres()
	return s.standStill(ctx, pg.Freeze, pg.Thaw)
}

func pgStandbyFreeze(ctx context.Context, s *Stage) error {
	pg := s.Postgres()
	return s.standStill(ctx, pg.FreezeStandby, pg.ThawStandby)
}

func (s *Stage) standStill(ctx context.Context, stop, thaw func() error) error {
	release, ok := s.one(ctx, "postgres/run")
	if !ok {
		return nil
	}
	defer release()
	err := stop()
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotDone, err)
	}
	wait(ctx, s.For)
	if again := thaw(); again != nil {
		return errors.Join(err, fmt.Errorf("%w: %w", ErrNotHealed, again))
	}
	return err
}

// failoverPatience bounds a failover: the promotion, the raising of every fence, and a new standby.
const failoverPatience = 60 * time.Second

// pgFailover is not interrupted once it has begun: no operator heals half of a procedure.
func pgFailover(ctx context.Context, s *Stage) error {
	release, ok := s.one(ctx, "postgres/run")
	if !ok {
		return nil
	}
	defer release()
	how := cluster.Failover{InOrder: s.odds(3)}
	if s.odds(2) && !s.Async() { // otherwise the procedure fences the old primary off first
		how.OldUptime = s.between(100*time.Millisecond, 3*time.Second)
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
	done, err := s.Postgres().Failover(after, how)
	if !errors.Is(err, cluster.ErrNoStandby) { // a failed one may have lost something, too
		s.record.switched(done)
	}
	switch {
	case err == nil:
		s.logf("%s is the primary, on timeline %d from %s; %d effects are lost",
			done.Primary, done.Timeline, done.LSN, len(done.Effects))
		return nil
	case errors.Is(err, cluster.ErrNoStandby):
		return fmt.Errorf("%w: %w", ErrNotDone, err)
	default:
		return fmt.Errorf("%w: %w", ErrNotHealed, err)
	}
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
	d := s.between(50*time.Millisecond, longestLag)
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
	conn, err := s.Postgres().Superuser(ctx)
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
		if !wait(ctx, s.between(time.Millisecond, 60*time.Millisecond)) || time.Now().After(end) {
			s.logf("%d sessions in %d calls", met, asked)
			return nil
		}
	}
}
