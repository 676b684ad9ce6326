//go:build unix

package s3_test

import (
	"io"
	"strings"
)

func body(s string) io.Reader { return strings.NewReader(s) }
