package activity_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
)

func TestEachRefusalHasItsFacts(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		`{"kind":"refused","code":"ZF001","resource":"r","presented":"3","recorded":"4"}`: &fence.StaleError{Resource: "r", Presented: 3, Recorded: 4},
		`{"kind":"refused","code":"ZF002","needed":"orders/*"}`:                           &fence.NoGrantError{Needed: "orders/*"},
		`{"kind":"refused","code":"ZF003","resource":"r","presented":"9"}`:                &fence.NeverIssuedError{Resource: "r", Presented: 9},
		`{"kind":"refused","code":"ZF004","resource":"r","needed":"s"}`:                   &fence.WrongResourceError{Resource: "r", Needed: "s"},
		`{"kind":"refused","code":"ZF005","resource":"r","recorded":"4"}`:                 &fence.UndrainedError{Resource: "r", Token: 4},
	} {
		e, ok := activity.Refused(fmt.Errorf("while: %w", err), activity.Event{})
		text, _ := json.Marshal(e)
		if got := strings.Replace(string(text), `"time":"0001-01-01T00:00:00Z",`, "", 1); !ok || got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	if _, ok := activity.Refused(errors.New("deadlock"), activity.Event{}); ok {
		t.Error("an error that is no refusal makes an event")
	}
}

// Any role can raise an error with the fence's SQLSTATEs and arbitrary content.
func TestNoSealAndNoValueIsTold(t *testing.T) {
	t.Parallel()
	seal := fence.NewSeal().Reveal()
	e, ok := activity.RefusedByPostgres("ZF001", `{"resource":"34.`+seal+`","needed":"a\u0007b","presented":"x","relation":"o\nrders","operation":"the value 42"}`,
		activity.Event{App: strings.Repeat("x", 1000)})
	if text := fmt.Sprintf("%+v", e); !ok || strings.Contains(text, seal) || strings.ContainsAny(text, "\a\n") || strings.Contains(text, "42") || len(text) > 500 {
		t.Errorf("%s", text)
	}
	if _, ok := activity.RefusedByPostgres("ZF0zz", "{}", activity.Event{}); ok {
		t.Error("a code that is none of the fence's makes an event")
	}
	if e, ok := activity.RefusedByPostgres("ZF002", "not JSON", activity.Event{}); !ok || e.Code != "ZF002" {
		t.Errorf("without facts: %v %+v", ok, e)
	}
}
