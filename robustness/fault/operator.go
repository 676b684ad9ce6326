package fault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	product "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/wire"
)

// operatorFaults are an operator's actions on a running system.
var operatorFaults = []Fault{
	{"revoke", "an operator takes resources from their holders", 5, "", 50 * ms, 4 * sec, 10 * sec, revoke},
	{"session-end", "an operator ends sessions of the PostgreSQL port", 3, "", 50 * ms, 3 * sec, 5 * sec, endSessions},
	{"rules", "rules of prefixes and what the bucket keeps are changed, and changed back", 3, "", 200 * ms, 5 * sec, 5 * sec, changeRules},
	{"sweep", "blobs are swept that are seconds old, from several places at once", 5, "", sec, 10 * sec, 5 * sec, sweep},
	{"verify", "the bytes of all objects are read again and compared", 2, "", 10 * ms, sec, 10 * sec, verify},
	{"nodes-sweep", "the counters of resources are deleted from the nodes", 3, NeedsRedis, 10 * ms, sec, 5 * sec, nodesSweep},
}

// Operator is the operator's client number in a history.
const Operator = -1

// anyGateway asks one gateway as an operator, and the others if it is unavailable.
func anyGateway(ctx context.Context, s *Stage, ask func(ctx context.Context, api *product.Client) error) error {
	of := slices.Clone(s.Gateways())
	s.Rand.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	var failed []error
	for _, g := range of {
		api, err := product.New(product.Config{URL: g.URL(), Token: cluster.Token})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err = ask(ctx, api)
		cancel()
		if err == nil {
			return nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", g.ID(), err))
	}
	return errors.Join(failed...)
}

// damage matches the output of a command if bytes are missing or wrong. Any other failure is due to an unavailable part,
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
	return s.repeat(ctx, 800*ms, func() error {
		calls++
		return s.revokeOne(ctx, fmt.Sprintf("o%d.%x-%d", s.Scene.Round, s.Event.Seed, calls))
	})
}

// revokeOne revokes one resource's lease. Each try is a separate call in the history, since it may have been done.
func (s *Stage) revokeOne(ctx context.Context, id string) error {
	resource := s.Scene.Resources[s.Rand.IntN(len(s.Scene.Resources))]
	tries := 0
	return anyGateway(ctx, s, func(ctx context.Context, api *product.Client) error {
		tries++
		op := history.Op{
			ID: fmt.Sprintf("%s.%d", id, tries), Client: Operator, Round: s.Scene.Round, Surface: "operator",
			Action: history.Revoke, Outcome: history.Begun, Resource: resource, Begin: history.Now(),
		}
		if deadline, ok := ctx.Deadline(); ok {
			op.Limit = op.Begin + int64(time.Until(deadline))
		}
		s.put(op)
		revoked, err := api.Revoke(ctx, resource, "the operator of the run")
		op.End, op.Token, op.Outcome = history.Now(), int64(revoked.Token), outcomeOf(err)
		if err != nil {
			op.Error = err.Error()
		}
		s.put(op)
		return unlessRefused(err) // for example a resource that was never held
	})
}

func (s *Stage) put(op history.Op) {
	if s.Scene.Operator != nil {
		s.Scene.Operator.Put(op)
	}
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

func unlessRefused(err error) error {
	if outcomeOf(err) == history.Refused {
		return nil
	}
	return err
}

func endSessions(ctx context.Context, s *Stage) error {
	return s.repeat(ctx, 300*ms, func() error {
		return anyGateway(ctx, s, func(ctx context.Context, api *product.Client) error {
			raw, err := api.Sessions(ctx)
			if err != nil {
				return err
			}
			var found wire.Sessions
			if err := json.Unmarshal(raw, &found); err != nil || len(found.Sessions) == 0 {
				return err
			}
			one := found.Sessions[s.Rand.IntN(len(found.Sessions))]
			return unlessRefused(api.EndSession(ctx, one.ID, "the operator of the run")) // it has ended
		})
	})
}

// changeRules gives prefixes rules that no lease of the run satisfies, or that all satisfy, and changes how many
// versions are kept. None of them accepts a writer whom the bucket's own rule refuses.
func changeRules(ctx context.Context, s *Stage) error {
	return with(ctx, s, []bare{cluster.Bucket}, "rules", 1, func([]bare) error {
		rule := []string{"bucket", "key", "prefix:2", "prefix:1"}[s.Rand.IntN(4)]
		keep := []string{"none", "1", "3", "all", "2s"}[s.Rand.IntN(5)]
		prefixes := []string{fmt.Sprintf("aside%x/", s.Event.Seed)} // no object is below it
		if len(s.Scene.Resources) > 0 {
			resource := s.Scene.Resources[s.Rand.IntN(len(s.Scene.Resources))]
			prefixes = append(prefixes, strings.TrimPrefix(resource, cluster.Bucket+"/")+"/")
		}
		s.logf("%v %s, keep %s", prefixes, rule, keep)
		err := s.setRules(ctx, prefixes, keep, func(ctx context.Context, api *product.Client, prefix string) error {
			_, err := api.SetPrefixRule(ctx, cluster.Bucket, prefix, rule)
			return err
		})
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrNotDone, err)
		} else {
			err = nil
		}
		wait(ctx, s.For)
		after, cancel := healing(ctx)
		defer cancel()
		again := until(after, func(ctx context.Context) error {
			return s.setRules(ctx, prefixes, "none", func(ctx context.Context, api *product.Client, prefix string) error {
				_, err := api.DropPrefixRule(ctx, cluster.Bucket, prefix)
				return err
			})
		})
		if again != nil {
			return errors.Join(err, fmt.Errorf("%w: the bucket's rules: %w", ErrNotHealed, again))
		}
		return err
	})
}

// setRules changes the rule of each prefix and what the bucket keeps. A refusal means that an object is below the
// prefix, or was written under its rule: then all leases of the run satisfy that rule.
func (s *Stage) setRules(
	ctx context.Context, prefixes []string, keep string, change func(ctx context.Context, api *product.Client, prefix string) error,
) error {
	return anyGateway(ctx, s, func(ctx context.Context, api *product.Client) error {
		var failed []error
		for _, prefix := range prefixes {
			failed = append(failed, unlessRefused(change(ctx, api, prefix)))
		}
		_, err := api.SetBucket(ctx, cluster.Bucket, wire.BucketRequest{Keep: keep})
		return errors.Join(append(failed, err)...)
	})
}

// sweep runs up to three concurrent sweeps, repeatedly.
func sweep(ctx context.Context, s *Stage) error {
	ages := make([]bare, 1+s.Rand.IntN(3))
	for i := range ages {
		ages[i] = bare(s.between(500*ms, 5*sec).String())
	}
	return s.repeat(ctx, 300*ms, func() error {
		return each(ages, ErrNotDone, func(age bare) error {
			return s.tool(ctx, "objects", "sweep",
				"--pending-age", age.ID(), "--superseded-age", age.ID(), "--shorten-grace", "--unknown", "--unknown-age", age.ID())
		})
	})
}

func verify(ctx context.Context, s *Stage) error {
	args := []string{"objects", "verify"} // in every bucket
	if s.odds(2) {
		args = append(args, "--kept")
	}
	return s.repeat(ctx, sec, func() error { return s.tool(ctx, args...) })
}

func nodesSweep(ctx context.Context, s *Stage) error {
	return s.repeat(ctx, 500*ms, func() error { return s.tool(ctx, "nodes", "sweep") })
}

func (s *Stage) tool(ctx context.Context, args ...string) error {
	_, err := s.Tool(ctx, args...)
	return err
}
