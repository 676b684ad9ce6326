package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// player plays a scenario. Its methods panic with a failure, which [play] returns.
type player struct {
	ctx      context.Context
	w        *world
	t        *transcript
	vars     map[string]string // keys NAME are NAME.name, NAME.access, NAME.secret and NAME.session
	defines  map[string]*step
	sessions []*session // open ones; steps are about the last
	cells    []string   // of the row in progress
	loops    string     // values of the loops around the step
}

// directive is what the first word of a step does with the rest.
type directive struct {
	do    func(p *player, s *step, text string)
	block bool // steps are indented under it
	text  bool // lines of its text are
}

// directives are all that is no request: a request begins with api or a signer's name.
func directives() map[string]directive {
	return map[string]directive{
		"#":           {do: func(p *player, _ *step, title string) { p.t.part(title) }},
		"first":       {do: func(*player, *step, string) {}}, // see load
		"last":        {do: func(*player, *step, string) {}},
		"let":         {do: func(p *player, _ *step, text string) { name, value := halves(text, " = "); p.vars[name] = value }},
		"define":      {block: true}, // see step and call
		"each":        {do: (*player).each, block: true},
		"if":          {do: (*player).when, block: true},
		"line":        {do: func(p *player, _ *step, text string) { p.t.linef("%s", text) }},
		"row":         {do: (*player).row, block: true},
		"cell":        {do: (*player).cell},
		"setup":       {do: (*player).setup},
		"quiet":       {do: func(p *player, s *step, text string) { p.quiet(s, text) }},
		"await":       {do: (*player).await},
		"keys":        {do: (*player).derive},
		"raw":         {do: (*player).raw},
		"sql":         {do: func(p *player, _ *step, sql string) { must(p.w.admin.Exec(p.ctx, sql)) }, text: true},
		"rows":        {do: (*player).rows, text: true},
		"help":        {do: func(p *player, _ *step, _ string) { p.help(nil) }},
		"metrics":     {do: (*player).metrics},
		"login":       {do: (*player).login},
		"connect":     {do: (*player).connect},
		"logout":      {do: (*player).logout},
		"query":       {do: onSession((*session).query), text: true},
		"bytes":       {do: onSession((*session).bytes)},
		"ready":       {do: onSession((*session).ready)},
		"closed":      {do: onSession((*session).untilClosed)},
		"send":        {do: (*player).sendMessages},
		"packet":      {do: (*player).packet},
		"undisturbed": {do: (*player).undisturbed, block: true},
	}
}

// failure is what the player panics with.
type failure struct {
	step string
	err  error
}

func (f *failure) Error() string { return f.step + ": " + f.err.Error() }

func try(err error) {
	if err != nil {
		panic(&failure{err: err})
	}
}

func must[T any](value T, err error) T {
	try(err)
	return value
}

func failf(format string, args ...any) { try(fmt.Errorf(format, args...)) }

// recovered returns the failure that a function panics with.
func recovered(do func()) (err error) {
	defer func() {
		r := recover()
		if f, is := r.(*failure); is {
			err = f
		} else if r != nil {
			panic(r)
		}
	}()
	do()
	return nil
}

func newPlayer(ctx context.Context, w *world) *player {
	p := &player{ctx: ctx, w: w, t: newTranscript(w), vars: map[string]string{}, defines: map[string]*step{}}
	p.setKeys("root", keys{name: "root", access: rootAccess, secret: rootSecret})
	p.setKeys("anonymous", keys{name: "anonymous"})
	return p
}

// play plays the steps that all scenarios share, and those of one.
func play(ctx context.Context, w *world, shared, steps []*step) (*transcript, error) {
	p, last := newPlayer(ctx, w), steps[len(steps)-1]
	err := recovered(func() {
		p.play(shared)
		p.play(steps)
	})
	for _, s := range p.sessions {
		err = errors.Join(err, last.failf("a session is open at the end: logout"), s.conn.Close())
	}
	if err == nil && len(p.t.lines) == 0 {
		err = last.failf("the scenario records nothing")
	}
	return p.t, err
}

// play plays steps. A failure names the step.
func (p *player) play(steps []*step) {
	for _, s := range steps {
		p.t.step = s.String() + p.loops
		p.step(s)
	}
}

func (p *player) step(s *step) {
	defer func() {
		if r := recover(); r != nil {
			if f, is := r.(*failure); is && f.step == "" {
				f.step = s.String() + p.loops
			}
			panic(r)
		}
	}()
	word, text, _ := strings.Cut(s.text, " ")
	d, found := directives()[word]
	switch {
	case word == "define":
		name, _, _ := strings.Cut(text, " ")
		p.defines[name] = s
	case d.text:
		d.do(p, s, p.expand(strings.TrimSpace(strings.TrimPrefix(s.block(), word))))
	case found:
		d.do(p, s, p.expand(text))
	case p.defines[word] != nil:
		p.call(p.defines[word], p.expand(text))
	default:
		p.record(s, p.expand(s.text))
	}
	try(p.ctx.Err())
}

// expand replaces each ${…}, innermost first. The value of a variable may contain variables.
func (p *player) expand(text string) string {
	before, rest, found := strings.Cut(text, "${")
	if !found {
		return text
	}
	end, depth := 0, 1
	for ; end < len(rest) && depth > 0; end++ {
		switch rest[end] {
		case '{':
			depth++
		case '}':
			depth--
		}
	}
	if depth > 0 {
		failf("${ without its }")
	}
	return before + p.value(p.expand(rest[:end-1])) + p.expand(rest[end:])
}

// value returns what ${NAME} is: a variable; as ${NAME?} nothing if it is not set; or a function of the text after NAME.
func (p *player) value(name string) string {
	if value, set := p.vars[strings.TrimSuffix(name, "?")]; set {
		return p.expand(value)
	}
	function, text, _ := strings.Cut(name, " ")
	argument, rest, _ := strings.Cut(text, " ")
	number := func() int { return must(strconv.Atoi(argument)) }
	switch function {
	case "md5":
		return md5Of(text)
	case "digest":
		return digestOf(text)
	case "sha256":
		return sha256Of(text)
	case "string":
		return must(unquoted(text))
	case "before":
		rest, _, _ = strings.Cut(rest, argument)
		return rest
	case "repeat":
		return strings.Repeat(rest, max(0, number()))
	case "pad":
		return fmt.Sprintf("%-*s", number(), rest)
	case "replace":
		with, in, _ := strings.Cut(rest, " ")
		return strings.ReplaceAll(in, argument, with)
	case "after":
		_, rest, _ = strings.Cut(rest, argument)
		return rest
	case "chop":
		return rest[:max(0, len(rest)-number())]
	}
	if !strings.HasSuffix(name, "?") {
		failf("variable %q is not set", name)
	}
	return ""
}

// parts are the parts of a step: those of its line, which " | " separates, and the lines under it.
func (p *player) parts(s *step, text string) []string {
	parts := strings.Split(text, " | ")
	for _, u := range s.under {
		parts = append(parts, p.expand(u.text))
	}
	for i, part := range parts {
		parts[i] = strings.TrimSpace(part)
	}
	return parts
}

// halves are the texts before and after a separator.
func halves(text, separator string) (before, after string) {
	before, after, found := strings.Cut(text+" ", separator)
	if !found {
		failf("it has no %q", separator)
	}
	return strings.TrimSpace(before), strings.TrimSpace(after)
}

// call plays what is defined as NAME PARAMETERS. A parameter is a variable, or a word that reads well; the last one may
// contain blanks.
func (p *player) call(s *step, text string) {
	parameters := strings.Fields(s.text)[2:]
	arguments := strings.SplitN(text, " ", len(parameters))
	for i, name := range parameters {
		variable, is := strings.CutPrefix(name, "${")
		if i >= len(arguments) || !is && name != arguments[i] {
			failf("write: %s", strings.TrimPrefix(s.text, "define "))
		}
		p.vars[strings.TrimSuffix(variable, "}")] = arguments[i]
	}
	p.play(s.under)
}

// each plays the step after the arrow, or those under it, for each word after in, or for each row of its table.
func (p *player) each(s *step, text string) {
	head, words, list := strings.Cut(text+" ", " in ")
	rows := s.rows
	if list {
		rows = strings.Fields(words + " " + p.expand(strings.Join(rows, " ")))
	}
	if len(rows) == 0 {
		failf("no rows: write each NAME in WORDS, or rows under it that begin with a dash")
	}
	names, outer := strings.Split(strings.TrimSpace(head), " | "), p.loops
	secret := list && strings.Contains(s.text+strings.Join(s.rows, ""), "${") // a word may be a grant
	for n, row := range rows {
		values := strings.SplitN(row+" ", " | ", len(names))
		if len(values) != len(names) {
			failf("the row %q has fewer columns than %q", row, head)
		}
		for i, name := range names {
			p.vars[name] = strings.TrimSpace(values[i])
			if list && p.vars[name] == `""` {
				p.vars[name] = ""
			}
		}
		if p.loops = fmt.Sprintf("%s (%s=%s)", outer, names[0], strings.TrimSpace(values[0])); secret {
			p.loops = fmt.Sprintf("%s (%s %d)", outer, names[0], n+1)
		}
		p.play(s.under)
	}
	p.loops = outer
}

// when plays the steps under it if the texts are equal, or not equal.
func (p *player) when(s *step, text string) {
	separator := " == "
	if strings.Contains(text, " !=") {
		separator = " != "
	}
	if a, b := halves(text, separator); (a == b) == (separator == " == ") {
		p.play(s.under)
	}
}

// row writes one line: its label, and the cells that the steps under it make.
func (p *player) row(s *step, label string) {
	p.cells = nil
	p.play(s.under)
	p.t.step = s.String() + p.loops
	if len(p.cells) == 0 {
		failf("the row has no cells")
	}
	p.t.linef("%s %s", label, strings.Join(p.cells, ", "))
}

func (p *player) cell(s *step, text string) {
	name, request := halves(text, ": ")
	p.cells = append(p.cells, name+": "+p.quiet(s, request).brief())
}
