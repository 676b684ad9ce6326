package main

import (
	"encoding/json"
	"io"
	"time"

	"github.com/fencegate/fencegate/wire"
)

// leftOf returns how long a lease lasts without renewal.
func leftOf(one wire.Listed) string {
	switch {
	case one.State != wire.StateLive:
		return "-"
	case one.LeftMS == nil:
		return "never ends"
	}
	return (time.Duration(*one.LeftMS) * time.Millisecond).Round(100 * time.Millisecond).String()
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printLine prints a line of JSON.
func printLine(out io.Writer, v any) error { return outputError(json.NewEncoder(out).Encode(v)) }
