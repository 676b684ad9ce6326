package etcdlock_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// refused checks that nothing is granted, and that the error is one line that contains want.
func refused(t *testing.T, s *etcdlock.Source, want string) {
	t.Helper()
	_, err := s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl})
	_, notReady := s.Ready(t.Context())
	for what, err := range map[string]error{"acquire": err, "ready": notReady} {
		if !errors.Is(err, leasing.ErrUnavailable) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %q; want one line of ErrUnavailable with %q", what, err, want)
		}
	}
}

func TestWhatCannotServeIsSaidInALine(t *testing.T) {
	t.Parallel()
	c := cluster(t, 1, "")
	admin := client(t, c.Endpoints()...)
	for _, step := range []func() error{
		func() error { return second(admin.UserAdd(t.Context(), "root", "secret-of-root")) },
		func() error { return second(admin.UserGrantRole(t.Context(), "root", "root")) },
		func() error { return second(admin.UserAdd(t.Context(), "locker", "secret")) },
		func() error { return second(admin.RoleAdd(t.Context(), "locker")) },
		func() error {
			return second(admin.RoleGrantPermission(t.Context(), "locker", "allowed/", clientv3.GetPrefixRangeEnd("allowed/"), clientv3.PermissionType(clientv3.PermReadWrite)))
		},
		func() error { return second(admin.UserGrantRole(t.Context(), "locker", "locker")) },
		func() error { return second(admin.AuthEnable(t.Context())) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	locker := clientv3.Config{Endpoints: c.Endpoints(), Username: "locker", Password: "secret"}
	take(t, source(t, etcdlock.Config{Client: clientOf(t, locker), Prefix: "allowed"}), "r", ttl) // it works
	for name, one := range map[string]struct {
		client clientv3.Config
		want   string
	}{
		"away":                      {clientv3.Config{Endpoints: []string{testenv.DeadAddr(t)}}, "no connection to 127.0.0.1:"},
		"another kind of server":    {clientv3.Config{Endpoints: []string{mute(t)}}, "no connection to 127.0.0.1:"},
		"too old":                   {clientv3.Config{Endpoints: []string{older(t)}}, "etcd 3.4 or later is needed"},
		"no login":                  {clientv3.Config{Endpoints: c.Endpoints()}, "check the user name and the password"},
		"no right to another group": {locker, "grant the user readwrite on the prefix"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, source(t, etcdlock.Config{Client: clientOf(t, one.client)}), one.want)
		})
	}
	wrong := locker
	wrong.Password, wrong.Logger = "wrong-secret", zap.NewNop()
	if _, err := clientv3.New(wrong); err == nil || strings.Contains(err.Error(), "wrong-secret") {
		t.Errorf("a wrong password: %v; want the client's refusal, without it", err)
	}
}

// older is a server that implements none of the calls, like an older etcd.
func older(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, done := grpc.NewServer(), make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// mute is a server that does not speak the protocol of etcd.
func mute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "-ERR unknown command\r\n")
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}
