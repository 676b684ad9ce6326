package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// pgx reports each try to connect on a line of its own, first that without which it goes on.
func TestAFailedConnectionToPostgreSQLIsLoggedInOneLine(t *testing.T) {
	t.Parallel()
	_, err := pgx.Connect(t.Context(), "postgres://u@127.0.0.1:1/d")
	if err == nil {
		t.Fatal("there is a connection")
	}
	for _, format := range []string{"text", "json"} {
		var o logFlags
		o.level, o.format = "info", format
		var logged bytes.Buffer
		log, wrong := o.open(&logged)
		if wrong != nil {
			t.Fatal(wrong)
		}
		log.Warn("a request failed", "error", fmt.Errorf("list the fences: %w", err))
		text := logged.String()
		if !strings.Contains(text, "list the fences: no connection to PostgreSQL as user") || !strings.Contains(text, "127.0.0.1:1: connection refused") || strings.Count(text, "refused") != 1 {
			t.Errorf("%s: %s", format, text)
		}
	}
}
