package lock_test

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) {
	logging.Disable() // these tests kill nodes; go-redis would tell of each
	goleak.VerifyTestMain(testenv.Wrap(m))
}
