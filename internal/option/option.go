// Package option declares options in tables, one row for each, beside the struct whose field a row sets: its default, its
// check, and how the command line, the file and the pages name it.
//
//	func (o *Options) Table() option.Table {
//		return option.Table{
//			{Field: "MaxUploads", At: &o.MaxUploads, Default: 256, Check: option.Positive, Flag: "s3-max-uploads", Help: "how many …"},
//		}
//	}
//
// A program fills the struct, and its constructor calls [Table.Faults] and [Table.SetDefaults]: a zero value stands for the
// default. A command line begins with the defaults and calls [Table.FlagFaults]: a zero value is what somebody wrote.
package option

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Row declares an option.
type Row struct {
	Field    string           // name in refusals
	At       any              // pointer to the field; nil: a command line keeps the option in another form, see [Table.Bind]
	Default  any              // what the zero value stands for; nil: itself
	Check    func(any) string // returns why a value is refused, or ""; a number or a duration is also refused if a flag says a negative one
	Required bool
	With     string   // the field that is needed together with this one
	Needs    []string // fields that are needed if this one is given

	// Aliases are the other names by which packages refuse the field, with the words that follow the flag's name then.
	Aliases map[string]string

	Flag   string // "": programs only
	Key    string // key in the file, if it is not the flag's name; "-": not in the file
	Preset any    // what the flag begins with, if it is not Default
	Split  bool   // commas split a list
	Help   string
	Common bool   // --help shows it; --help=all shows the others, too
	Secret bool   // a secret, a certificate or a right, or its file: an unset shell variable must not clear it
	Reload string // SIGHUP applies a change: [Applies], or on the condition [WithPrincipals]; "": only a start does
}

// Values of [Row.Reload].
const (
	Applies        = "counts"
	WithPrincipals = "with principals, before and after" // a running gateway can't switch principals on or off
)

// Table holds the rows of a struct and of those that it nests.
type Table []Row

func (r *Row) field() reflect.Value { return reflect.ValueOf(r.At).Elem() }

// Given reports whether the field has a value: a list that is not empty, or another value than zero.
func (r *Row) Given() bool {
	if v := r.field(); v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
		return v.Len() > 0
	}
	return !r.field().IsZero()
}

// reason returns why the field's value is refused, or "". In Go a negative value may have a meaning of its own.
func (r *Row) reason(flag bool) string {
	if r.Check != nil {
		if reason := r.Check(r.field().Interface()); reason != "" || !flag {
			return reason
		}
	}
	if v := r.field(); v.CanInt() && v.Int() < 0 {
		return "is negative"
	}
	return ""
}

// Positive is a [Row.Check] of a number or a duration.
func Positive(value any) string {
	switch v := value.(type) {
	case int:
		if v < 1 {
			return "must be 1 or more"
		}
	case time.Duration:
		if v <= 0 {
			return "must be more than 0"
		}
	}
	return ""
}

// OneOf returns a [Row.Check] of a text.
func OneOf(values ...string) func(any) string {
	last := len(values) - 1
	return func(value any) string {
		if slices.Contains(values, fmt.Sprint(value)) {
			return ""
		}
		return fmt.Sprintf("%q: it must be %s or %s", value, strings.Join(values[:last], ", "), values[last])
	}
}

// Within returns the rows as those of a nested struct: the struct's name and a dot precede the names of fields.
func (t Table) Within(name string) Table {
	for i := range t {
		r := &t[i]
		r.Field = name + "." + r.Field
		if r.With != "" {
			r.With = name + "." + r.With
		}
	}
	return t
}

// Bind sets where a command line keeps options, by field, that have another form in the struct.
func (t Table) Bind(at map[string]any) {
	for field, p := range at {
		t.of(field).At = p
	}
}

// Need adds to rows a field that they need.
func (t Table) Need(needs string, fields ...string) {
	for _, field := range fields {
		r := t.of(field)
		r.Needs = append(r.Needs, needs)
	}
}

// of returns the row of a field. It panics if there is none.
func (t Table) of(field string) *Row {
	return &t[slices.IndexFunc(t, func(r Row) bool { return r.Field == field })]
}

// SetDefaults sets the fields that are zero to their defaults.
func (t Table) SetDefaults() {
	for i := range t {
		if r := &t[i]; r.At != nil && r.Default != nil && !r.Given() {
			r.field().Set(reflect.ValueOf(r.Default))
		}
	}
}

// SetPresets sets the fields to what flags begin with.
func (t Table) SetPresets() {
	t.SetDefaults()
	for i := range t {
		if r := &t[i]; r.Preset != nil {
			r.field().Set(reflect.ValueOf(r.Preset))
		}
	}
}

// Faults returns what is wrong with the fields, each a [*fence.InvalidError] that names the field.
func (t Table) Faults() []error {
	return t.faults(false, func(r *Row) string { return r.Field }, func(*Row) string { return "is missing" })
}

// FlagFaults returns what is wrong with the values of the flags of a table without other rows, each a
// [*fence.InvalidError] that names the flag. variable returns the name of a flag's variable.
func (t Table) FlagFaults(variable func(flag string) string) []error {
	return t.faults(true, func(r *Row) string { return "--" + r.Flag }, func(r *Row) string { return "is missing (or " + variable(r.Flag) + ")" })
}

func (t Table) faults(flags bool, name, missing func(*Row) string) (all []error) {
	for i := range t {
		r := &t[i]
		if r.At == nil {
			continue
		}
		refuse := func(reason string) { all = append(all, &fence.InvalidError{Field: name(r), Reason: reason}) }
		if r.Required && !r.Given() {
			refuse(missing(r))
		} else if reason := r.reason(flags); reason != "" && (flags || r.Given()) {
			refuse(reason)
		}
		if other := r.With; other != "" && r.Given() != t.of(other).Given() {
			refuse("and " + name(t.of(other)) + " are needed together")
		}
		for _, other := range r.Needs {
			if r.Given() && !t.of(other).Given() {
				refuse("needs " + name(t.of(other)))
			}
		}
	}
	return all
}

// Validate returns the first of [Table.Faults].
func (t Table) Validate() error {
	if all := t.Faults(); len(all) > 0 {
		return all[0]
	}
	return nil
}

// Flags returns the rows with a flag.
func (t Table) Flags() Table {
	return slices.DeleteFunc(slices.Clone(t), func(r Row) bool { return r.Flag == "" })
}

// Flag returns the flag that sets the field with this name or alias, with the words that follow it; "" if there is none.
func (t Table) Flag(field string) string {
	for _, r := range t.Flags() {
		words, alias := r.Aliases[field]
		if alias || r.Field == field {
			return "--" + r.Flag + words
		}
	}
	return ""
}
