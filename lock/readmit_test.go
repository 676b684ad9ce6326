package lock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// An error that passes does not cost a whole quarantine: the admission that was begun goes on.
func TestAnAdmissionGoesOnAfterAnError(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(cancel context.CancelFunc) error{
		"the epoch is not raised": func(context.CancelFunc) error { return errors.New("PostgreSQL is away") },
		"the caller gives up":     func(cancel context.CancelFunc) error { cancel(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, servers := own(t, 3, redisserver.Config{})
			kept := &epochs{}
			cfg.Epochs = kept
			before := acquire(t, started(t, cfg), "r")
			release(t, before)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			failed := false
			cfg.Epochs = epochStore(func(ctx context.Context, above int64) (int64, error) {
				if !failed {
					failed = true
					if err := fail(cancel); err != nil {
						return 0, err
					}
				}
				return kept.RaiseEpoch(ctx, above)
			})
			l := locker(t, cfg)
			restart(t, servers[1], nil)
			if err := l.Readmit(ctx, "node-2"); err == nil || !failed {
				t.Fatalf("readmit: %v", err)
			}
			pending := func() string {
				return client(t, servers[1].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@pending").Val()
			}
			begun := pending()
			readmit(t, l, "node-2")
			if is := client(t, servers[1].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@incarnation").Val(); is != begun || begun == "" {
				t.Errorf("begun as %q, admitted as %q", begun, is)
			}
			after := acquire(t, l, "r")
			if token(t, after) <= before.Ref().Token {
				t.Errorf("token %d after %d", token(t, after), before.Ref().Token)
			}
			release(t, after)
		})
	}
}

// What was begun before the node lost its run again is not gone on with.
func TestAnAdmissionThatAnErrorStoppedIsVoidAfterARestart(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{AppendOnly: redisserver.Always})
	cfg.Epochs = &epochs{}
	started(t, cfg)
	cfg.Epochs = epochStore(func(context.Context, int64) (int64, error) { return 0, errors.New("PostgreSQL is away") })
	l := locker(t, cfg)
	restart(t, servers[1], nil)
	var begun [2]string
	for i := range begun {
		if _, err := l.AdmitBegin(t.Context(), "node-2"); err == nil || errors.Is(err, lock.ErrQuarantined) {
			t.Errorf("begin %d: %v", i+1, err)
		}
		begun[i] = client(t, servers[1].Addr).HGet(t.Context(), cfg.KeyPrefix+":h", "@pending").Val()
		restart(t, servers[1], nil)
	}
	if begun[0] == begun[1] {
		t.Error("the same admission in two runs")
	}
}
