package zklock_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/zklock"
)

func TestMain(m *testing.M) {
	torture.Main(tortured)
	testenv.VerifyMain(m)
}

const torturedTTL = 1500 * time.Millisecond

func tortured(_ []byte, addrs []string) (torture.Client, error) {
	s, err := zklock.New(zklock.Config{Servers: addrs, MaxTTL: 2 * torturedTTL})
	return torture.Client{Source: s}, err
}
