package runner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// Environ adds to the inherited variables what a process needs to write through the gateway under the lease: the grant,
// the PostgreSQL port, and static S3 credentials, as far as the gateway has these ports.
func Environ(ctx context.Context, c *client.Client, lease client.Lease, inherited []string) ([]string, error) {
	env, _, err := provide(ctx, c, []client.Lease{lease}, needs{s3: S3Access{Kind: Static}, toolFolder: toolFolder{inherited: inherited}})
	return env, err
}

// PostgresEnviron is Environ for a gateway that has only a PostgreSQL port. urls names variables that hold the
// database's address, besides JDBC_URL.
func PostgresEnviron(inherited, urls []string, lease client.Lease, at wire.PostgresEndpoint) ([]string, error) {
	leases := []client.Lease{lease}
	all, err := addresses(inherited, urls, leases, at)
	if err != nil {
		return nil, err
	}
	return commandEnviron(inherited, leases, wire.Endpoints{Postgres: &at}, all, nil), nil
}

// needs says what a process should find in its environment.
type needs struct {
	toolFolder

	s3     S3Access
	pgURLs []string // variables that hold the database's address
}

// served refuses a gateway without a port that was explicitly asked for: the command would keep its own settings, which
// lead around the gateway.
func (n needs) served(at wire.Endpoints) error {
	switch {
	case at.Postgres == nil && len(n.pgURLs) > 0:
		return &fence.InvalidError{Field: "pg-url-env", Reason: "needs a PostgreSQL port, and the gateway has none: start it with --pg-listen, or leave the flag out"}
	case at.S3 == nil && n.s3.Required:
		return &fence.InvalidError{Field: "s3-credentials", Reason: "and the other --s3-… flags need an S3 port, and the gateway has none: start it with --s3-listen, or leave the flags out"}
	}
	return nil
}

// provide is Environ with the requested S3 credentials. They are bound to one lease; with several leases and no choice
// there are none. provider is nil without refreshing credentials; otherwise the caller must close it.
func provide(ctx context.Context, c *client.Client, leases []client.Lease, n needs) ([]string, *provider, error) {
	inherited, access := n.inherited, n.s3
	at, err := c.Endpoints(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := n.served(at); err != nil {
		return nil, nil, err
	}
	var urls map[string]string
	if at.Postgres != nil {
		if urls, err = addresses(inherited, n.pgURLs, leases, *at.Postgres); err != nil {
			return nil, nil, err
		}
	}
	lease, chosen := access.lease(leases)
	if at.S3 != nil && !chosen && goesAround(inherited) {
		n.say("no S3 credentials for the command, which keeps its AWS_… variables: credentials are of one resource, and it has %d; --s3-resource chooses one", len(leases))
	}
	if at.S3 == nil || !chosen {
		return commandEnviron(inherited, leases, at, urls, nil), nil, nil
	}
	got, err := issue(ctx, c, access.request(lease))
	if err != nil {
		return nil, nil, fmt.Errorf("S3 credentials of the lease: %w", err)
	}
	set := map[string]string{
		"AWS_ENDPOINT_URL_S3": got.EndpointURL, "AWS_REGION": got.Region, "AWS_DEFAULT_REGION": got.Region,
	}
	maps.Copy(set, rcloneRemote(got.Credentials))
	files := map[string]string{}
	if n.home != "" {
		if files, err = n.write(got.Credentials); err != nil {
			return nil, nil, err
		}
		if access.Kind == Static { // the command's own settings stay, and these variables take precedence
			delete(files, "AWS_CONFIG_FILE")
		}
	}
	var p *provider
	if access.Kind == Refreshing {
		if p, err = newProvider(c, lease, access.request(lease), got); err != nil {
			return nil, nil, err
		}
		maps.Copy(set, p.environ())
	} else {
		set["AWS_ACCESS_KEY_ID"], set["AWS_SECRET_ACCESS_KEY"], set["AWS_SESSION_TOKEN"] = got.AccessKeyID, got.SecretAccessKey, got.SessionToken
	}
	maps.Copy(set, files)
	return commandEnviron(inherited, leases, at, urls, set), p, nil
}

// Variables that take precedence over the gateway's address or the lease's
// credentials: with them the command would bypass the gateway.
var (
	aroundPostgres = []string{"PGHOSTADDR", "PGSERVICE"}
	aroundS3       = []string{
		"AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_CREDENTIAL_EXPIRATION",
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_CREDENTIAL_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
	}
)

// commandEnviron adds the grants, addresses of the database, and the variables for S3 to those that the command inherits. It
// replaces variables of the same names and removes those that bypass the gateway. PGOPTIONS is extended, because it may
// carry settings that the command needs.
func commandEnviron(inherited []string, leases []client.Lease, at wire.Endpoints, urls, s3 map[string]string) []string {
	set := map[string]string{}
	if len(leases) == 1 {
		set["FENCE_RESOURCE"], set["FENCE_TOKEN"] = leases[0].Resource, leases[0].Presented
	} else {
		set["FENCE_GRANTS"] = grantList(leases)
	}
	if at.Postgres != nil {
		set["PGHOST"] = at.Postgres.Host
		set["PGPORT"] = strconv.Itoa(at.Postgres.Port)
		set["PGOPTIONS"] = options(variable(inherited, "PGOPTIONS"), leases)
		if variable(inherited, "PGDATABASE") == "" {
			set["PGDATABASE"] = at.Postgres.Database
		}
	}
	maps.Copy(set, urls)
	maps.Copy(set, s3)
	env := make([]string, 0, len(inherited)+len(set))
	for _, kv := range inherited {
		name, _, _ := strings.Cut(kv, "=")
		if _, replaced := set[name]; replaced || slices.Contains(grantVariables, name) || at.Postgres != nil && slices.Contains(aroundPostgres, name) || s3 != nil && slices.Contains(aroundS3, name) {
			continue
		}
		env = append(env, kv)
	}
	for name, v := range set {
		env = append(env, name+"="+v)
	}
	return env
}

// grantVariables are the variables of the command's grants. An outer run's values are replaced.
var grantVariables = []string{"FENCE_RESOURCE", "FENCE_TOKEN", "FENCE_GRANTS"}

// goesAround reports whether an environment has settings with which S3 tools bypass the gateway.
func goesAround(environ []string) bool {
	return slices.ContainsFunc(environ, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(aroundS3, name)
	})
}
