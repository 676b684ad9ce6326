//go:build unix

package blob_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/internal/testenv/s3posix"
)

func TestMain(m *testing.M) {
	s3posix.RunIfAsked()
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/fencegate/fencegate/internal/child.(*Process).run"))
}
