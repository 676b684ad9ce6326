package scenario_test

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/testenv"
)

// asProgram lets the test binary be the program of a scenario instead.
const asProgram = "FENCEGATE_SCENARIO_PROGRAM"

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	if os.Getenv(asProgram) != "" {
		os.Exit(program(os.Stdin, os.Stdout))
	}
	testenv.VerifyMain(m)
}

// quiet keeps the driver's remarks on nodes that can't be reached out of the output.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
