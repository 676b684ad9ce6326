package scenario_test

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/testenv"
)

// asProgram makes the test binary act as the program of a scenario.
const asProgram = "FENCEGATE_SCENARIO_PROGRAM"

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	if os.Getenv(asProgram) != "" {
		os.Exit(program(os.Stdin, os.Stdout))
	}
	testenv.VerifyMain(m)
}

// quiet discards the driver's messages about unreachable nodes.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
