package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/wire"
)

func newSessions(e env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "Look at the sessions on a gateway's PostgreSQL port, and end one",
		Long: `Look at the sessions on a gateway's PostgreSQL port, and end one. Each gateway knows its
own: behind a balancer, name the replica with --gateway.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSessionsLs(e), newSessionsEnd(e))
	return cmd
}

func newSessionsLs(e env) *cobra.Command {
	var g gatewayFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the open sessions, the oldest first",
		Example: `  fencegate sessions ls
  fencegate sessions ls --json | jq -r '.sessions[] | select(.state == "idle in transaction") | .id'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			open, err := c.Sessions(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), open)
			}
			return printSessions(cmd.OutOrStdout(), open)
		},
	}
	g.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printSessions(out io.Writer, answer json.RawMessage) error {
	var open wire.Sessions
	if err := json.Unmarshal(answer, &open); err != nil {
		return fmt.Errorf("the gateway's list of sessions: %w", err)
	}
	return printList(out, false, open.Sessions, "ID\tPID\tUSER\tDATABASE\tRESOURCE\tTOKEN\tSTATE\tSINCE\tCLIENT\tAPPLICATION", func(s wire.Session) string {
		pid, resource, token := "-", "-", "-"
		if s.PID != nil {
			pid = strconv.FormatInt(*s.PID, 10)
		}
		if s.Resource != nil {
			resource = oneLine(*s.Resource)
		}
		if s.Token != nil {
			token = s.Token.String()
		}
		return strings.Join([]string{
			oneLine(s.ID), pid, oneLine(s.User), oneLine(s.Database), resource, token, oneLine(s.State), s.Since.UTC().Format(time.RFC3339), oneLine(s.Client), oneLine(s.App),
		}, "\t")
	})
}

func newSessionsEnd(e env) *cobra.Command {
	var g gatewayFlags
	var by string
	cmd := &cobra.Command{
		Use:   "end ID",
		Short: "End a session, also inside a transaction",
		Long: `End a session, also inside a transaction: its client gets FATAL 57P01, and its transaction is
rolled back. Its grant, if it brought one, stays current: see "fencegate revoke".`,
		Example: `  fencegate sessions end 3QX7KJ2M5V --by "ops: idle since noon"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return usage(errors.New("the session's id is empty"))
			}
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			return c.EndSession(cmd.Context(), args[0], by)
		},
	}
	g.register(cmd)
	cmd.Flags().StringVar(&by, "by", "", "who asks and why, for the gateway's log")
	return cmd
}
