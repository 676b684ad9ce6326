package activity

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
)

// maxText bounds a text of an event that is no resource's name, in bytes.
const maxText = 128

// Refused is the event of a refusal by the fence: about tells what err does not. It is
// false where err is none.
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
	if e, ok := errors.AsType[*fence.SpentError](err); ok {
		about.Resource, about.Presented, about.Recorded = e.Resource, e.Armed, e.Recorded
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

// RefusedByPostgres is [Refused] of an error of PostgreSQL's, by its SQLSTATE and its DETAIL. Anybody
// can raise such an error: what is not as the fence says it is left out.
func RefusedByPostgres(sqlState, detail string, about Event) (Event, bool) {
	var d struct{ Relation, Operation string }
	_ = json.Unmarshal([]byte(detail), &d) // what is missing stays empty
	if slices.Contains([]string{"INSERT", "UPDATE", "DELETE", "TRUNCATE"}, d.Operation) {
		about.Statement = d.Operation
	}
	about.Table = d.Relation
	return Refused(fence.Refusal(sqlState, detail), about)
}

// Cleaned leaves out what names no resource, what is too long, and control characters.
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
