package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/optionfile"
)

// Variables that are secrets, and therefore have no flag.
const (
	tokenVariable         = envPrefix + "TOKEN"
	redisPasswordVariable = envPrefix + "REDIS_PASSWORD"
)

// unknownVariables returns a message for each variable with our prefix that nothing reads, without its value.
func (e env) unknownVariables(root *cobra.Command) (all []string) {
	known := variables(root)
	for _, name := range e.unknown(known) {
		text := "variable " + name + " belongs to no option"
		if near := optionfile.Nearest(name, known); near != "" {
			text += "; did you mean " + near + "?"
		}
		all = append(all, text)
	}
	return all
}

// misspelt returns those that look like a typing error in an option's
// name. Others may belong to the program that runs the command.
func (e env) misspelt(root *cobra.Command) (all []string) {
	known := variables(root)
	short := make([]string, len(known))
	for i, name := range known {
		short[i] = strings.TrimPrefix(name, envPrefix)
	}
	for _, name := range e.unknown(known) {
		if near := optionfile.Nearest(strings.TrimPrefix(name, envPrefix), short); near != "" && !ofCompose.MatchString(name) {
			all = append(all, "variable "+name+" belongs to no option; did you mean "+envPrefix+near+"?")
		}
	}
	return all
}

// unknown returns the unknown variables with our prefix, sorted by name.
func (e env) unknown(known []string) (names []string) {
	if e.environ == nil {
		return nil
	}
	for _, variable := range e.environ() {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, envPrefix) && !slices.Contains(known, name) && !ofAService(name, value) && !strings.HasPrefix(name, envPrefix+"TEST_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// says annotates commands that report misspelled variables themselves.
const says = "tells of misspelt variables itself"

// prepare sets the flags from their variables, and warns of misspelled ones.
func (e env) prepare(cmd *cobra.Command) error {
	if _, itself := cmd.Annotations[says]; !itself {
		for _, warning := range e.misspelt(cmd.Root()) {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "fencegate: warning:", oneLine(warning))
		}
	}
	return e.fromEnvironment(cmd)
}

// byVariable annotates flags that a variable has set.
const byVariable = "set by a variable"

// withVariables adds to a refusal the variables that set the flags that it concerns.
func withVariables(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	code, hint := classify(err)
	if code != exitUsage {
		return err
	}
	text := err.Error()
	flags := namedFlags.FindAllStringSubmatch(text, -1)
	if invalid, ok := errors.AsType[*fence.InvalidError](err); ok {
		flags = append(flags, []string{"", invalid.Field})
	}
	var by []string
	for _, flag := range flags {
		f := cmd.Flags().Lookup(flag[1])
		if f == nil || f.Annotations[byVariable] == nil || strings.Contains(text, envName(f.Name)) || slices.Contains(by, envName(f.Name)) {
			continue
		}
		by = append(by, envName(f.Name))
	}
	if len(by) == 0 {
		return err
	}
	return withHint(fmt.Errorf("%w (variable %s)", err, strings.Join(by, ", ")), code, hint)
}

// variables returns the variables that any command reads.
func variables(root *cobra.Command) []string {
	known := []string{tokenVariable, redisPasswordVariable}
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Annotations[typedOnly] == nil {
				known = append(known, envName(f.Name))
			}
		})
		for _, sub := range cmd.Commands() {
			add(sub)
		}
	}
	add(root)
	slices.Sort(known)
	return slices.Compact(known)
}

var (
	serviceHost = regexp.MustCompile(`_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$`)
	// ofCompose matches the variables of docker-compose.yml.
	ofCompose   = regexp.MustCompile(`_(IMAGE|PORT|SECRETS)$`)
	servicePort = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

// ofAService reports whether Kubernetes made a variable: for a service named fencegate it sets FENCEGATE_PORT and
// others in each container.
func ofAService(name, value string) bool {
	return serviceHost.MatchString(name) || strings.HasSuffix(name, "_PORT") && servicePort.MatchString(value)
}

// warnings returns the warnings about serve's options.
func (o *serveFlags) warnings(e env, root *cobra.Command) []string {
	return append(e.unknownVariables(root), o.options.exposed()...)
}

// exposed returns warnings about passwords in the file that everyone may read.
func (o *options) exposed() []string {
	if o.file == nil || !o.file.AnyReads {
		return nil
	}
	var said []string
	o.flags.VisitAll(func(f *pflag.Flag) {
		values, there := o.file.Values[keyOf(f)]
		if there && !slices.Equal(maskedAll(values.Texts), values.Texts) {
			said = append(said, fmt.Sprintf("%s:%d: %s has a password in it, and every user of this machine may read the file: chmod o-r, or put it into the variable %s",
				o.path, values.Line, keyOf(f), envName(f.Name)))
		}
	})
	return said
}
