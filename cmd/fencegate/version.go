package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/migrations"
)

// versionInfo are the versions of the program, and of a gateway.
type versionInfo struct {
	Version string `json:"version"`
	Program int    `json:"program"` // its generation: a database's schema may require one
	Go      string `json:"go"`
	Gateway string `json:"gateway,omitempty"`
}

func newVersion(e env) *cobra.Command {
	var g gatewayFlags
	var ask, asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print this program's version, and with --of-gateway a gateway's, too",
		Example: `  fencegate version
  fencegate version --of-gateway --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionInfo{Version: version(), Program: migrations.Program, Go: runtime.Version()}
			if ask {
				c, err := g.client(cmd.Context(), e)
				if err != nil {
					return err
				}
				ports, err := c.Endpoints(cmd.Context())
				if err != nil {
					return err
				}
				v.Gateway = ports.Version
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), v)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "fencegate %s, generation %d, %s\n", v.Version, v.Program, v.Go)
			if err == nil && ask {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "gateway %s\n", oneLine(v.Gateway))
			}
			return err
		},
	}
	g.register(cmd)
	cmd.Flags().BoolVar(&ask, "of-gateway", false, "ask the gateway for its version, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
