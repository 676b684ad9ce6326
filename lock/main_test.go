package lock_test

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) {
	logging.Disable() // these tests kill nodes; go-redis would tell of each
	if config := os.Getenv(asTortureClient); config != "" {
		os.Exit(playTortureClient(config))
	}
	goleak.VerifyTestMain(testenv.Wrap(m),
		// Of a pool whose node is away: it looks once a second whether the pool is closed.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
	)
}
