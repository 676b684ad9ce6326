//go:build unix

package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/redisserver"
)

// openPostgres takes the first source that is available.
func openPostgres(ctx context.Context) (*cluster, error) {
	if address := os.Getenv("FENCEGATE_TEST_POSTGRES_URL"); address != "" {
		base, err := url.Parse(address)
		if err != nil || base.Scheme != "postgres" && base.Scheme != "postgresql" {
			return nil, errors.New("FENCEGATE_TEST_POSTGRES_URL is not a postgres://… address") // not quoted: it holds a password
		}
		return &cluster{base: base}, nil
	}
	engine, noContainer := containersFor(ctx, postgresImage())
	if noContainer == nil {
		return containerPostgres(ctx, engine)
	}
	noLocal := localAllowed()
	if noLocal == nil {
		_, noLocal = pgserver.Find()
	}
	if noLocal != nil {
		return nil, nothing("PostgreSQL", "FENCEGATE_TEST_POSTGRES_URL", noContainer, noLocal)
	}
	return localPostgres(ctx)
}

// startRedis takes the first source that can start a node.
func startRedis(ctx context.Context, cfg redisserver.Config) (*redisserver.Server, error) {
	engine, noContainer := containersFor(ctx, redisImage())
	if noContainer == nil {
		return containerRedis(ctx, engine, cfg)
	}
	noLocal := localAllowed()
	if noLocal == nil {
		_, noLocal = redisserver.Find()
	}
	if noLocal != nil {
		return nil, nothing("Redis", "FENCEGATE_TEST_REDIS_ADDRS", noContainer, noLocal)
	}
	return redisserver.Start(ctx, cfg)
}

// nothing is an error of one line: what is missing and what to do.
func nothing(what, variable string, noContainer, noLocal error) error {
	line := fmt.Sprintf("no %s for this test: %s is not set; Docker: %v; local: %v. `make test` installs what is missing",
		what, variable, noContainer, noLocal)
	return errors.New(strings.ReplaceAll(line, "\n", ": "))
}

// givenRedis returns the addresses in FENCEGATE_TEST_REDIS_ADDRS.
func givenRedis() []string {
	return strings.FieldsFunc(os.Getenv("FENCEGATE_TEST_REDIS_ADDRS"), func(r rune) bool { return r == ',' || r == ' ' })
}
