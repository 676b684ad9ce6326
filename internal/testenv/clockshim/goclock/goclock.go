// Package goclock gives the Go program that imports it a wall clock that can be set while it runs, as clockshim's shim
// does for servers in C. The monotonic clock is unchanged.
//
// The guarantee: if FENCEGATE_CLOCK names a file, every reading of the wall clock is shifted by the nanoseconds in that
// file, an int64. Without the variable nothing changes.
//
//	import _ "github.com/fencegate/fencegate/internal/testenv/clockshim/goclock"
//
// The Go runtime reads the clocks through a function of the kernel, whose address it keeps in a variable. The package
// puts its own function there. So nothing but the program's own package main is built again for it.
package goclock

import "syscall"

func init() { //nolint:gochecknoinits // the import is the switch
	path, ok := syscall.Getenv("FENCEGATE_CLOCK")
	if !ok {
		return
	}
	if err := attach(path); err != nil {
		panic("FENCEGATE_CLOCK=" + path + ": " + err.Error())
	}
}
