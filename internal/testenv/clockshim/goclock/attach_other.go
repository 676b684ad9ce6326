//go:build !linux || (!amd64 && !arm64)

package goclock

import "errors"

func attach(string) error { return errors.New("the clock can be set on Linux on amd64 and arm64 only") }
