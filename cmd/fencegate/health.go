package main

import "github.com/spf13/cobra"

func newHealth(e env) *cobra.Command {
	var g gatewayFlags
	var ready bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask whether a gateway answers, or is ready; for containers' health checks",
		Long: `Ask whether a gateway's process answers. With --ready ask whether it can serve: PostgreSQL
and a quorum of the Redis nodes answer, and PostgreSQL is the server that the gateway knows. The
exit code is 69 if not. Restart a gateway whose process does not answer. Take one that is not
ready out of a balancer: it becomes ready by itself.`,
		Example: `  fencegate health
  fencegate health --ready --gateway https://fencegate.example.com`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			ask := c.Health
			if ready {
				ask = c.Ready
			}
			answer, err := ask(cmd.Context())
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), answer)
		},
	}
	g.register(cmd)
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether it can serve")
	return cmd
}
