package zklock_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/zklock"
)

func TestWhatCannotServeIsSaidInALine(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 1)
	// it works
	take(t, source(t, zklock.Config{Servers: e.Addrs(), Prefix: "/own", Digest: "locker:secret"}), "r", ttl)
	for name, one := range map[string]struct {
		cfg  zklock.Config
		want string
	}{
		"away":                   {zklock.Config{Servers: []string{testenv.DeadAddr(t)}}, "could not connect to a server: 127.0.0.1:"},
		"another kind of server": {zklock.Config{Servers: testenv.Redis(t, 1).Addrs}, "no connection to 127.0.0.1:"},
		"too old":                {zklock.Config{Servers: []string{older(t)}}, "ZooKeeper 3.5 or later is needed"},
		"wrong password":         {zklock.Config{Servers: e.Addrs(), Prefix: "/own", Digest: "locker:wrong-secret"}, "check the digest's user and password"},
		"short sessions":         {zklock.Config{Servers: e.Addrs(), MaxTTL: time.Hour}, "raise maxSessionTimeout, or lower MaxTTL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := source(t, one.cfg)
			_, err := s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: 10 * time.Second})
			_, notReady := s.Ready(t.Context())
			for what, err := range map[string]error{"acquire": err, "ready": notReady} {
				if !errors.Is(err, leasing.ErrUnavailable) || !strings.Contains(err.Error(), one.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s: %q; want one line of ErrUnavailable with %q", what, err, one.want)
				}
			}
		})
	}
}

// older is a server that answers each request as a ZooKeeper that does not know it.
func older(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				greeting := make([]byte, 36) // protocol, time-out, session, its password
				binary.BigEndian.PutUint32(greeting[4:], 300_000)
				binary.BigEndian.PutUint64(greeting[8:], 1)
				binary.BigEndian.PutUint32(greeting[16:], 16)
				for answer := greeting; ; {
					request, err := frame(conn)
					if err != nil {
						return
					}
					if answer == nil {
						answer = make([]byte, 16) // the request's number, a zxid, an error
						copy(answer, request[:4])
						binary.BigEndian.PutUint32(answer[12:], ^uint32(5)) // -6
					}
					if _, err := conn.Write(framed(answer)); err != nil {
						return
					}
					answer = nil
				}
			})
		}
	})
	return l.Addr().String()
}

// framed is a message with its length before it.
func framed(text []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

// frame reads a message that has its length before it.
func frame(from io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	text := make([]byte, binary.BigEndian.Uint32(length[:]))
	_, err := io.ReadFull(from, text)
	return text, err
}
