//go:build unix

package redisserver_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/redisserver"
)

func setup(t *testing.T, cfg redisserver.Config) (*redisserver.Server, *redis.Client) {
	t.Helper()
	srv, err := redisserver.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	// With fsync always, an answer may wait long for the disk.
	cl := redis.NewClient(&redis.Options{Addr: srv.Addr, MaxRetries: -1, ReadTimeout: 20 * time.Second})
	t.Cleanup(func() {
		if err := errors.Join(cl.Close(), srv.Close(), srv.Close()); err != nil {
			t.Error(err)
		}
	})
	return srv, cl
}

func TestWhatIsOnDiskOutlivesAKill(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		persistence redisserver.Persistence
		want        string
	}{{redisserver.None, ""}, {redisserver.Always, "v"}} {
		t.Run("persistence "+string(c.persistence), func(t *testing.T) {
			t.Parallel()
			srv, cl := setup(t, redisserver.Config{AppendOnly: c.persistence})
			if err := cl.Set(t.Context(), "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			addr, pid := srv.Addr, srv.Pid()
			if err := srv.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := cl.Ping(t.Context()).Err(); err == nil {
				t.Fatal("a killed node answers")
			}
			if err := srv.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if srv.Addr != addr || srv.Pid() == pid {
				t.Errorf("address %s → %s, pid %d → %d", addr, srv.Addr, pid, srv.Pid())
			}
			if got := cl.Get(t.Context(), "k").Val(); got != c.want {
				t.Errorf("after the restart the key holds %q, want %q", got, c.want)
			}
		})
	}
}

func TestAFrozenNodeIsSilentAndKeepsItsState(t *testing.T) {
	t.Parallel()
	srv, cl := setup(t, redisserver.Config{})
	if err := cl.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := srv.Freeze(); err != nil {
		t.Fatal(err)
	}
	var timeout net.Error
	if err := cl.WithTimeout(300 * time.Millisecond).Ping(t.Context()).Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("a frozen node: %v, want a timeout", err)
	}
	if err := srv.Thaw(); err != nil {
		t.Fatal(err)
	}
	if got := cl.Get(t.Context(), "k").Val(); got != "v" {
		t.Fatalf("after thawing the key holds %q", got)
	}
}

func TestATakenAddressIsAnError(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if srv, err := redisserver.Start(ctx, redisserver.Config{Addr: l.Addr().String()}); err == nil {
		t.Fatal(srv.Close(), "started on a taken address")
	}
}

func TestTheTemporaryFolderGoes(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	srv, _ := setup(t, redisserver.Config{AppendOnly: redisserver.EverySec})
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) > 0 {
		t.Fatal(strconv.Itoa(len(left))+" left", err)
	}
}
