//go:build unix

package objects

import (
	"testing"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/internal/testenv/s3posix"
)

func TestMain(m *testing.M) {
	s3posix.RunIfAsked()
	testenv.VerifyMain(m)
}
