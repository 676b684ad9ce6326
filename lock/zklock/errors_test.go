package zklock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/zklock"
)

func TestWhatCannotServeIsSaidInALine(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 1)
	take(t, source(t, zklock.Config{Servers: e.Addrs(), Prefix: "/own", Digest: "locker:secret"}), "r", ttl) // it can serve
	for name, one := range map[string]struct {
		cfg  zklock.Config
		want string
	}{
		"away":                   {zklock.Config{Servers: []string{testenv.DeadAddr(t)}}, "ZooKeeper"},
		"another kind of server": {zklock.Config{Servers: testenv.Redis(t, 1).Addrs}, "ZooKeeper"},
		"wrong password":         {zklock.Config{Servers: e.Addrs(), Prefix: "/own", Digest: "locker:wrong-secret"}, "check the digest's user and password"},
		"short sessions":         {zklock.Config{Servers: e.Addrs(), MaxTTL: time.Hour}, "raise maxSessionTimeout, or lower MaxTTL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := source(t, one.cfg)
			_, err := s.TryAcquire(t.Context(), leasing.Request{Resource: "r", TTL: 10 * time.Second})
			for what, err := range map[string]error{"acquire": err, "ready": s.Ready(t.Context())} {
				if !errors.Is(err, leasing.ErrUnavailable) || !strings.Contains(err.Error(), one.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s: %q; want one line of ErrUnavailable with %q", what, err, one.want)
				}
			}
		})
	}
}
