package leases

import (
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }
