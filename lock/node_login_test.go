package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// A changed password is used from the next connection on, also for the checks of the nodes.
func TestCredentialsAreAskedForAtEachLogin(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	operator := client(t, servers[0].Addr)
	user := func(password string) {
		must(t, operator.Do(t.Context(), "ACL", "SETUSER", "lockers", "reset", "on", ">"+password, "~*", "&*", "+@all").Err())
	}
	var password atomic.Value
	password.Store("first")
	user("first")
	cfg.Holder = "worker a:1"
	cfg.Nodes[0].Credentials = func() (string, string, error) { return "lockers", password.Load().(string), nil }
	l := started(t, cfg)
	release(t, acquire(t, l, "r"))
	clients, err := operator.ClientList(t.Context()).Result()
	if err != nil || !strings.Contains(clients, "name=fencegate:worker_a:1 ") || !strings.Contains(clients, "user=lockers") {
		t.Errorf("%v:\n%s", err, clients)
	}
	user("second")
	must(t, operator.Do(t.Context(), "CLIENT", "KILL", "USER", "lockers").Err())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := locker(t, cfg).Acquire(ctx, "r"); !errors.Is(err, lock.ErrNoQuorum) || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("with the first password: %v", err)
	}
	password.Store("second")
	release(t, acquire(t, l, "r"))
	eventually(t, time.Minute, "the state of the node is read with the second password, too", func() bool {
		st := admin.Of(l).Status(t.Context())[0]
		return st.Err == nil && st.Admitted
	})
	broken := errors.New("no such file")
	cfg.Nodes[0].Credentials = func() (string, string, error) { return "", "", broken }
	if _, err := locker(t, cfg).TryAcquire(t.Context(), "r"); !errors.Is(err, broken) {
		t.Errorf("without a password: %v", err)
	}
}

// A Redis refuses HELLO without a password by one error, and a script's many arguments by another.
func TestANodeThatNeedsAPasswordIsSaidSo(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	must(t, client(t, servers[0].Addr).ConfigSet(t.Context(), "requirepass", "secret").Err())
	l := locker(t, cfg)
	eventually(t, time.Minute, "the node's state says so", func() bool { return errors.Is(admin.Of(l).Status(t.Context())[0].Err, lock.ErrNoPassword) })
	if err := admin.Of(l).Init(t.Context()); !errors.Is(err, lock.ErrNoPassword) || !strings.Contains(err.Error(), "--redis-password-file") {
		t.Errorf("init: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := l.Acquire(ctx, "r"); !errors.Is(err, lock.ErrNoQuorum) || !errors.Is(err, lock.ErrNoPassword) || ctx.Err() != nil {
		t.Errorf("acquire: %v", err)
	}
}
