package activity

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// Event is an event in the form of the API.
type Event = wire.Event

// maxText bounds a text of an event other than a resource's name, in bytes.
const maxText = 128

// Refused returns the event of a refusal by the fence. about holds what err does not contain. It returns false if err
// is not a refusal.
func Refused(err error, about Event) (Event, bool) {
	code, ok := fence.CodeOf(err)
	if !ok {
		return Event{}, false
	}
	about.Kind, about.Code = wire.EventRefused, code.SQLState
	if e, ok := errors.AsType[*fence.StaleError](err); ok {
		about.Resource, about.Presented, about.Recorded = e.Resource, e.Presented, e.Recorded
	}
	if e, ok := errors.AsType[*fence.NeverIssuedError](err); ok {
		about.Resource, about.Presented, about.Recorded = e.Resource, e.Presented, e.Recorded
	}
	if e, ok := errors.AsType[*fence.WrongResourceError](err); ok {
		about.Resource, about.Needed = e.Resource, e.Needed
	}
	if e, ok := errors.AsType[*fence.UndrainedError](err); ok {
		about.Resource, about.Recorded = e.Resource, e.Token
	}
	if e, ok := errors.AsType[*fence.NoGrantError](err); ok {
		about.Needed = e.Needed
	}
	return Cleaned(about), true
}

// RefusedByPostgres is [Refused] for an error of PostgreSQL, by its SQLSTATE and DETAIL. Any role can raise such an
// error, so anything that the fence would not write is dropped.
func RefusedByPostgres(sqlState, detail string, about Event) (Event, bool) {
	var d struct{ Relation, Operation string }
	_ = json.Unmarshal([]byte(detail), &d) // missing fields stay empty
	if slices.Contains([]string{"INSERT", "UPDATE", "DELETE", "TRUNCATE"}, d.Operation) {
		about.Statement = d.Operation
	}
	about.Table = d.Relation
	return Refused(fence.Refusal(sqlState, detail), about)
}

// Cleaned drops invalid resource names, texts that are too long, and control characters.
func Cleaned(e Event) Event {
	for _, name := range []*string{&e.Resource, &e.Needed} {
		if fence.ValidateResource(strings.TrimSuffix(*name, "*")) != nil {
			*name = ""
		}
	}
	for _, text := range []*string{&e.Login, &e.Client, &e.App, &e.Statement, &e.Table, &e.Holder, &e.Node} {
		*text = plain(*text)
	}
	return e
}

func plain(text string) string {
	if len(text) > maxText {
		text = text[:maxText]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, text)
}
