package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/fencegate/fencegate/internal/terminal"
	"github.com/fencegate/fencegate/wire"
)

func oneLine(s string) string { return terminal.Line(s) }

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printLine prints a line of JSON.
func printLine(out io.Writer, v any) error { return outputError(json.NewEncoder(out).Encode(v)) }

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

// printList prints a list as JSON, or as a table with a row for each; tabs separate the cells.
func printList[T any](w io.Writer, asJSON bool, list []T, header string, row func(T) string) error {
	if asJSON {
		return printJSON(w, append([]T{}, list...))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, header)
	for _, one := range list {
		fmt.Fprintln(t, row(one))
	}
	return t.Flush()
}
