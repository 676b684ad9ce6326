//go:build !linux

package lock_test

const asTortureClient = "FENCEGATE_TORTURE_CLIENT"

func playTortureClient(string) int { return 1 }
