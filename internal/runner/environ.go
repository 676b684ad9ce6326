package runner

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
)

// Environ adds what a process needs to write under the lease through the
// gateway to the variables that it inherits: the grant, the PostgreSQL port, and
// S3 credentials, as far as the gateway has these ports.
func Environ(ctx context.Context, c *client.Client, lease client.Lease, inherited []string) ([]string, error) {
	at, err := c.Endpoints(ctx)
	if err != nil {
		return nil, err
	}
	var creds *wire.Credentials
	if at.S3 != nil {
		issued, err := c.Credentials(ctx, lease.Handle)
		if err != nil {
			return nil, fmt.Errorf("S3 credentials of the lease: %w", err)
		}
		creds = &issued
	}
	return environ(inherited, lease, at, creds), nil
}

// Variables that take precedence over the gateway's address or the lease's
// credentials: with them the command would write past the gateway.
var (
	aroundPostgres = []string{"PGHOSTADDR", "PGSERVICE"}
	aroundS3       = []string{"AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"}
)

// environ adds the grant to the variables that the command inherits. Variables
// of the same names are replaced and those that lead past the gateway left out,
// but PGOPTIONS is extended: it may carry settings that the command needs.
func environ(inherited []string, lease client.Lease, at wire.Endpoints, creds *wire.Credentials) []string {
	set := map[string]string{
		"FENCE_RESOURCE": lease.Resource,
		"FENCE_TOKEN":    lease.Presented,
	}
	if at.Postgres != nil {
		set["PGHOST"] = at.Postgres.Host
		set["PGPORT"] = strconv.Itoa(at.Postgres.Port)
		set["PGOPTIONS"] = strings.TrimSpace(value(inherited, "PGOPTIONS") + " " +
			"-c fence.resource=" + fence.EscapeResource(lease.Resource) + " -c fence.token=" + lease.Presented)
		if value(inherited, "PGDATABASE") == "" {
			set["PGDATABASE"] = at.Postgres.Database
		}
	}
	if creds != nil {
		set["AWS_ACCESS_KEY_ID"] = creds.AccessKeyID
		set["AWS_SECRET_ACCESS_KEY"] = creds.SecretAccessKey
		set["AWS_SESSION_TOKEN"] = creds.SessionToken
		set["AWS_ENDPOINT_URL_S3"] = creds.EndpointURL
		set["AWS_REGION"] = creds.Region
	}
	env := make([]string, 0, len(inherited)+len(set))
	for _, kv := range inherited {
		name, _, _ := strings.Cut(kv, "=")
		if _, replaced := set[name]; replaced || at.Postgres != nil && slices.Contains(aroundPostgres, name) || creds != nil && slices.Contains(aroundS3, name) {
			continue
		}
		env = append(env, kv)
	}
	for name, v := range set {
		env = append(env, name+"="+v)
	}
	return env
}

func value(env []string, name string) string {
	for _, kv := range env {
		if n, v, ok := strings.Cut(kv, "="); ok && n == name {
			return v
		}
	}
	return ""
}
