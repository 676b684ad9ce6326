//go:build noembedded

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
)

// The build tag noembedded leaves out the servers that dev embeds, for programs that only serve.

var errNoEmbedded = withHint(errors.New("this build of fencegate has no embedded servers"), exitUsage,
	"build it without the tag noembedded: go install ./cmd/fencegate")

func newDev(env) *cobra.Command {
	return &cobra.Command{
		Use:                "dev [flags] [-- COMMAND [ARG…]]",
		Short:              "Run everything in one process, with no set-up (not in this build)",
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return errNoEmbedded },
	}
}

// noStack is the stack that this build does not have. demo --gateway needs none.
type noStack interface {
	PostgreSQL() string
	GatewayURL() string
	AdminURL() string
	DatabaseURL() string
	Close() error
}

func startDemoStack(context.Context, bool, func(string)) (noStack, error) { return nil, errNoEmbedded }
