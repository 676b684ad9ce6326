package kubelock_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(withKubernetes{testenv.Wrap(m)}) }
