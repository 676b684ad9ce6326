//go:build unix

package fencedsql_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// The answer is written after COMMIT, so values that it cannot contain must be found before. A value of 10000 levels
// can be encoded by itself, but not inside another.
func TestWhatIsCommittedCanBeAnswered(t *testing.T) {
	t.Parallel()
	w := setup(t)
	deep := func(levels int) wire.Statement {
		return st(fmt.Sprintf("SELECT (repeat('[', %d) || repeat(']', %[1]d))::json", levels))
	}
	results := w.ok(st("INSERT INTO items (id) VALUES (1)"), deep(9995))
	answer, err := json.Marshal(map[string]any{"results": results})
	if err != nil || !json.Valid(answer) {
		t.Errorf("an answer with 9995 levels of JSON: %v", err)
	}
	var failed *api.StatementError
	if err := w.fails(st("INSERT INTO items (id) VALUES (2)"), deep(9996)); !errors.As(err, &failed) || failed.Index != 1 || failed.SQLState != "22021" {
		t.Errorf("9996 levels: %v, want 22021 of statement 1", err)
	}
	if n := w.count(); n != 1 {
		t.Errorf("%d rows committed, want 1", n)
	}
}

func TestWhatTheProtocolCantCarryIsInvalidInput(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, sql := range []string{"SELECT 1\x00", "SELECT 1\x00\x00\x01a", "\x00"} {
		if err := w.fails(st(sql)); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%q: %v", sql, err)
		}
	}
	many := make([]json.RawMessage, 65536)
	for i := range many {
		many[i] = json.RawMessage("1")
	}
	if err := w.fails(wire.Statement{SQL: "SELECT 1", Args: many}); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("65536 arguments: %v", err)
	}
}
