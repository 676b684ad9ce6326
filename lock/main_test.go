package lock_test

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) {
	logging.Disable() // these tests kill nodes; go-redis would log each
	torture.Main(tortured)
	testenv.VerifyMain(m)
}
