package lock_test

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) {
	logging.Disable() // these tests kill nodes; go-redis would log each
	if config := os.Getenv(asTortureClient); config != "" {
		os.Exit(playTortureClient(config))
	}
	testenv.VerifyMain(m)
}
