package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	product "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/wire"
)

// operatorFaults are an operator's actions on a running system.
var operatorFaults = []Fault{
	{
		Name: "revoke", What: "an operator takes resources from their holders", Weight: 5,
		Shortest: 50 * time.Millisecond, Longest: 4 * time.Second, Tail: 10 * time.Second, Run: revoke,
	},
	{
		Name: "session-end", What: "an operator ends sessions of the PostgreSQL port", Weight: 3,
		Shortest: 50 * time.Millisecond, Longest: 3 * time.Second, Tail: 5 * time.Second, Run: endSessions,
	},
	{
		Name: "rules", What: "rules of prefixes and what the bucket keeps are changed, and changed back", Weight: 3,
		Shortest: 200 * time.Millisecond, Longest: 5 * time.Second, Tail: 5 * time.Second, Run: changeRules,
	},
	{
		Name: "sweep", What: "blobs are swept that are seconds old, from several places at once", Weight: 5,
		Shortest: time.Second, Longest: 10 * time.Second, Tail: 5 * time.Second, Run: sweep,
	},
	{
		Name: "verify", What: "the bytes of all objects are read again and compared", Weight: 2,
		Shortest: 10 * time.Millisecond, Longest: time.Second, Tail: 10 * time.Second, Run: verify,
	},
	{
		Name: "nodes-sweep", What: "the counters of resources are deleted from the nodes", Weight: 3,
		Shortest: 10 * time.Millisecond, Longest: time.Second, Tail: 5 * time.Second, Run: nodesSweep,
	},
}

// Operator is the operator's client number in a history.
const Operator = -1

func apiOf(g Gateway) (*product.Client, error) {
	url, token := g.API()
	return product.New(product.Config{URL: url, Token: token})
}

// damage matches a [cluster.ToolError] if bytes are missing or wrong. Any other failure is due to an unavailable part,
// and so is UNREADABLE: the blob store failed.
var damage = regexp.MustCompile(`(?m)^(MISSING|SIZE|CONTENT)\t|blobs that versions list have no row`)

// repeat repeats an action within the fault's time, and records if
// it could not be done: the operator's gateway may be unavailable.
func (s *Stage) repeat(ctx context.Context, pause time.Duration, do func() error) error {
	end := time.Now().Add(s.For)
	done := 0
	var last error
	for {
		switch err := do(); {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			done++
		case damage.MatchString(err.Error()):
			return fmt.Errorf("%w: %w", ErrWrong, err)
		default:
			last = err
		}
		if !wait(ctx, s.between(0, pause)) || time.Now().After(end) {
			break
		}
	}
	s.logf("done %d times", done)
	if done == 0 && last != nil {
		return fmt.Errorf("%w: %w", ErrNotDone, last)
	}
	return nil
}

func revoke(ctx context.Context, s *Stage) error {
	if len(s.Scene.Resources) == 0 {
		return fmt.Errorf("%w: the round has no resources", ErrNotDone)
	}
	calls := 0
	return s.repeat(ctx, 800*time.Millisecond, func() error {
		calls++
		return s.revokeOne(ctx, fmt.Sprintf("o%d.%x-%d", s.Scene.Round, s.Event.Seed, calls))
	})
}

// revokeOne revokes one resource's lease. Each try is a separate call in the history, since it may have been done.
func (s *Stage) revokeOne(ctx context.Context, id string) error {
	resource := s.Scene.Resources[s.Rand.IntN(len(s.Scene.Resources))]
	tries := 0
	return anyGateway(ctx, s, func(ctx context.Context, g Gateway) error {
		tries++
		op := history.Op{
			ID: fmt.Sprintf("%s.%d", id, tries), Client: Operator, Round: s.Scene.Round, Surface: "operator",
			Action: history.Revoke, Outcome: history.Begun, Resource: resource, Begin: history.Now(),
		}
		if deadline, ok := ctx.Deadline(); ok {
			op.Limit = op.Begin + int64(time.Until(deadline))
		}
		s.put(op)
		token, err := revokeAt(ctx, g, resource)
		op.End, op.Token, op.Outcome = history.Now(), token, outcomeOf(err)
		if err != nil {
			op.Error = err.Error()
		}
		s.put(op)
		if op.Outcome == history.Refused { // for example a resource that was never held
			return nil
		}
		return err
	})
}

func (s *Stage) put(op history.Op) {
	if s.Scene.Operator != nil {
		s.Scene.Operator.Put(op)
	}
}

func revokeAt(ctx context.Context, g Gateway, resource string) (int64, error) {
	api, err := apiOf(g)
	if err != nil {
		return 0, err
	}
	revoked, err := api.Revoke(ctx, resource, "the operator of the run")
	return int64(revoked.Token), err
}

// outcomeOf accepts a refusal as such. A server's failure leaves the outcome unknown.
func outcomeOf(err error) history.Outcome {
	var problem *product.Problem
	switch {
	case err == nil:
		return history.Done
	case errors.As(err, &problem) && problem.Status < http.StatusInternalServerError:
		return history.Refused
	default:
		return history.Unknown
	}
}

func endSessions(ctx context.Context, s *Stage) error {
	return s.repeat(ctx, 300*time.Millisecond, func() error {
		return anyGateway(ctx, s, func(ctx context.Context, g Gateway) error { return s.endSession(ctx, g) })
	})
}

func (s *Stage) endSession(ctx context.Context, g Gateway) error {
	api, err := apiOf(g)
	if err != nil {
		return err
	}
	raw, err := api.Sessions(ctx)
	if err != nil {
		return err
	}
	var found wire.Sessions
	if err := json.Unmarshal(raw, &found); err != nil || len(found.Sessions) == 0 {
		return err
	}
	err = api.EndSession(ctx, found.Sessions[s.Rand.IntN(len(found.Sessions))].ID, "the operator of the run")
	if outcomeOf(err) == history.Refused { // it has ended
		return nil
	}
	return err
}

// changeRules gives prefixes rules that no lease of the run satisfies, or that all satisfy, and changes how many
// versions are kept. None of them accepts a writer whom the bucket's own rule refuses.
func changeRules(ctx context.Context, s *Stage) error {
	release, ok := s.one(ctx, "rules")
	if !ok {
		return nil
	}
	defer release()
	rule := []string{"bucket", "key", "prefix:2", "prefix:1"}[s.Rand.IntN(4)]
	keep := []string{"none", "1", "3", "all", "2s"}[s.Rand.IntN(5)]
	prefixes := []string{fmt.Sprintf("aside%x/", s.Event.Seed)} // no object is below it
	if len(s.Scene.Resources) > 0 {
		resource := s.Scene.Resources[s.Rand.IntN(len(s.Scene.Resources))]
		prefixes = append(prefixes, strings.TrimPrefix(resource, s.Bucket().Name+"/")+"/")
	}
	s.logf("%v %s, keep %s", prefixes, rule, keep)
	err := s.setRules(ctx, prefixes, rule, keep)
	wait(ctx, s.For)
	after, cancel := healing(ctx)
	defer cancel()
	if again := until(after, func(ctx context.Context) error { return s.dropRules(ctx, prefixes) }); again != nil {
		return errors.Join(err, fmt.Errorf("%w: the bucket's rules: %w", ErrNotHealed, again))
	}
	return err
}

func (s *Stage) setRules(ctx context.Context, prefixes []string, rule, keep string) error {
	err := anyGateway(ctx, s, func(ctx context.Context, g Gateway) error {
		api, err := apiOf(g)
		if err != nil {
			return err
		}
		for _, prefix := range prefixes {
			_, err := api.SetPrefixRule(ctx, s.Bucket().Name, prefix, rule)
			if err != nil && outcomeOf(err) != history.Refused { // an object is below it
				return err
			}
		}
		_, err = api.SetBucket(ctx, s.Bucket().Name, wire.BucketRequest{Keep: keep})
		return err
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrNotDone, err)
	}
	return nil
}

// dropRules restores the bucket. A rule stays if an object was written under it: all leases of the run
// satisfy that rule.
func (s *Stage) dropRules(ctx context.Context, prefixes []string) error {
	return anyGateway(ctx, s, func(ctx context.Context, g Gateway) error {
		api, err := apiOf(g)
		if err != nil {
			return err
		}
		var failed []error
		for _, prefix := range prefixes {
			_, err := api.DropPrefixRule(ctx, s.Bucket().Name, prefix)
			if err != nil && outcomeOf(err) != history.Refused {
				failed = append(failed, fmt.Errorf("%s: %w", prefix, err))
			}
		}
		_, err = api.SetBucket(ctx, s.Bucket().Name, wire.BucketRequest{Keep: s.Bucket().Keep})
		return errors.Join(append(failed, err)...)
	})
}

// sweep runs up to three concurrent sweeps, repeatedly.
func sweep(ctx context.Context, s *Stage) error {
	n := 1 + s.Rand.IntN(3)
	ages := make([]time.Duration, n)
	for i := range ages {
		ages[i] = s.between(500*time.Millisecond, 5*time.Second)
	}
	return s.repeat(ctx, 300*time.Millisecond, func() error {
		var all errgroup.Group
		for _, age := range ages {
			all.Go(func() error {
				age := age.String()
				return s.Tool(ctx, "objects", "sweep",
					"--pending-age", age, "--superseded-age", age, "--shorten-grace", "--unknown", "--unknown-age", age)
			})
		}
		return all.Wait()
	})
}

func verify(ctx context.Context, s *Stage) error {
	args := []string{"objects", "verify", s.Bucket().Name}
	if s.odds(2) {
		args = append(args, "--kept")
	}
	return s.repeat(ctx, time.Second, func() error { return s.Tool(ctx, args...) })
}

func nodesSweep(ctx context.Context, s *Stage) error {
	return s.repeat(ctx, 500*time.Millisecond, func() error { return s.Tool(ctx, "nodes", "sweep") })
}
