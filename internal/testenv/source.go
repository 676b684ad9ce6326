//go:build unix

package testenv

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// openPostgres takes the first source that serves.
func openPostgres(ctx context.Context) (*cluster, error) {
	if address := os.Getenv("FENCEGATE_TEST_POSTGRES_URL"); address != "" {
		base, err := url.Parse(address)
		if err != nil || base.Scheme != "postgres" && base.Scheme != "postgresql" {
			return nil, fmt.Errorf("FENCEGATE_TEST_POSTGRES_URL is not a postgres://… address")
		}
		return &cluster{base: base}, nil
	}
	return localPostgres(ctx)
}

// givenRedis is what FENCEGATE_TEST_REDIS_ADDRS names.
func givenRedis() []string {
	return strings.FieldsFunc(os.Getenv("FENCEGATE_TEST_REDIS_ADDRS"), func(r rune) bool { return r == ',' || r == ' ' })
}
