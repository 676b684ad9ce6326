//go:build unix

package maintenance

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Wrap(m)) }
