package etcdlock_test

import (
	"testing"

	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) {
	torture.Main(tortured)
	testenv.VerifyMain(m)
}
