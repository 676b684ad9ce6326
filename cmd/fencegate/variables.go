package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/internal/optionfile"
)

// Variables that are secrets, and so have no flag.
const (
	tokenVariable         = envPrefix + "TOKEN"
	redisPasswordVariable = envPrefix + "REDIS_PASSWORD"
)

// unknownVariables says which variables of the environment are nobody's, though their names begin as ours do. Their
// values are not shown.
func (e env) unknownVariables(root *cobra.Command) []string {
	if e.environ == nil {
		return nil
	}
	known := variables(root)
	var said []string
	for _, variable := range e.environ() {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, envPrefix) || slices.Contains(known, name) || ofAService(name, value) || strings.HasPrefix(name, envPrefix+"TEST_") {
			continue
		}
		text := "variable " + name + " is no option's"
		if near := optionfile.Nearest(name, known); near != "" {
			text += "; did you mean " + near + "?"
		}
		said = append(said, text)
	}
	slices.Sort(said)
	return said
}

// variables are all that any command reads.
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
	servicePort = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

// ofAService reports whether Kubernetes has made a variable: for a service that is named fencegate it puts
// FENCEGATE_PORT and others into each container.
func ofAService(name, value string) bool {
	return serviceHost.MatchString(name) || strings.HasSuffix(name, "_PORT") && servicePort.MatchString(value)
}

// warnings are what serve says of its options and goes on.
func (o *serveFlags) warnings(e env, root *cobra.Command) []string {
	return append(e.unknownVariables(root), o.options.exposed()...)
}

// exposed says which passwords of the file everybody may read.
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
