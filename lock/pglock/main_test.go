package pglock_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.VerifyMain(m)
}
