//go:build !noembedded

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/demo"
	"github.com/fencegate/fencegate/internal/devstack"
)

// demoAlone runs the demo on its own stack.
func demoAlone(ctx context.Context, cmd *cobra.Command, cfg demo.Config, postgres bool) (err error) {
	stack, err := devstack.Start(ctx, devstack.Config{
		Ephemeral: true, PostgresLeases: postgres,
		Progress: func(line string) { cfg.Screen.Step("set-up", line) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Stop()) }()
	leases := "3 Redis nodes"
	if postgres {
		leases = "no Redis"
	}
	cfg.Screen.Step("set-up", "ready: "+stack.PostgreSQL()+", "+leases+", gateway")
	if cfg.Client, err = client.New(client.Config{URL: stack.GatewayURL()}); err != nil {
		return err
	}
	cfg.AdminURL = stack.AdminURL()
	if err := configureWorkers(&cfg, stack.GatewayURL(), "", stack.DatabaseURL()); err != nil {
		return err
	}
	return runDemo(ctx, cfg)
}
