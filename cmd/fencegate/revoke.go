package main

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/wire"
)

// revocation holds the flags of revoke, which goes through a gateway or to PostgreSQL.
type revocation struct {
	gateway gatewayFlags
	db      databaseFlags
	by      string
}

func newRevoke(e env) *cobra.Command {
	var r revocation
	cmd := &cobra.Command{
		Use:   "revoke RESOURCE",
		Short: "Take a resource from its holder, whose writes are refused from then on",
		Long: `Take a resource from its holder: the fence is raised past it, to a token that nobody has, so
that its writes are refused from then on, and transactions that already passed the check are ended.
A gateway also frees the lock, and ends the holder's sessions on its ports.

With --postgres-url it needs no gateway. Then no lock on Redis is freed: it stays until the holder's
next renewal, or its end. If FENCEGATE_GATEWAY and FENCEGATE_POSTGRES_URL are both set, give one of
the two flags.`,
		Example: `  fencegate revoke orders/1001 --by "ops: stuck since noon"
  fencegate revoke orders/1001 --postgres-url postgres://fencegate@db/app`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			byPostgres, err := r.byPostgres(cmd)
			if err != nil {
				return err
			}
			if byPostgres {
				return r.inPostgres(cmd, args[0])
			}
			return r.atGateway(cmd, e, args[0])
		},
	}
	r.gateway.register(cmd)
	r.db.register(cmd, asGateway)
	cmd.Flags().StringVar(&r.by, "by", "", "who asks and why, shown to people who inspect the resource")
	return cmd
}

// byPostgres reports whether the command goes to PostgreSQL. A typed flag counts more than a variable.
func (r *revocation) byPostgres(cmd *cobra.Command) (bool, error) {
	given := func(flag string) (typed, byVar bool) {
		f := cmd.Flags().Lookup(flag)
		_, byVar = f.Annotations[byVariable]
		return f.Changed && !byVar, byVar
	}
	postgres, postgresVar := given("postgres-url")
	gateway, gatewayVar := given("gateway")
	switch {
	case postgres && gateway:
		return false, usage(errors.New("--gateway and --postgres-url exclude each other"))
	case postgres || gateway:
		return postgres, nil
	case postgresVar && gatewayVar:
		return false, usage(fmt.Errorf("%s and %s are both set: give --gateway or --postgres-url", envName("gateway"), envName("postgres-url")))
	}
	return postgresVar, nil
}

func (r *revocation) atGateway(cmd *cobra.Command, e env, resource string) error {
	c, err := r.gateway.client(cmd.Context(), e)
	if err != nil {
		return err
	}
	revoked, err := c.Revoke(cmd.Context(), resource, r.by)
	if err != nil {
		return err
	}
	return r.print(cmd, revoked)
}

func (r *revocation) inPostgres(cmd *cobra.Command, resource string) error {
	return r.db.with(cmd.Context(), func(pool *pgxpool.Pool) error {
		token, err := pgfence.New(pool).Revoke(cmd.Context(), resource, r.by)
		if errors.Is(err, fence.ErrNotRaised) {
			err = nil // another has raised it further: the holder is fenced off too
		}
		if err != nil {
			return err
		}
		if err := r.print(cmd, wire.Revoked{Resource: resource, Token: token}); err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.ErrOrStderr(), "no lock on Redis was freed: it stays until the holder's next renewal, or its end")
		return err
	})
}

func (r *revocation) print(cmd *cobra.Command, revoked wire.Revoked) error {
	if r.db.json {
		return printJSON(cmd.OutOrStdout(), revoked)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: the fence stands at %s; its former holder is refused\n", oneLine(revoked.Resource), revoked.Token)
	return err
}
