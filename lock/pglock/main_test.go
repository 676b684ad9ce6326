package pglock_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/pglock"
)

func TestMain(m *testing.M) {
	torture.Main(tortured)
	if os.Getenv(asWorker) != "" {
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.VerifyMain(m)
}

// tortured is a process's source, through addrs, on the server at a URL.
func tortured(setup []byte, addrs []string) (torture.Client, error) {
	var text string
	if err := json.Unmarshal(setup, &text); err != nil {
		return torture.Client{}, err
	}
	address, err := url.Parse(text)
	if err != nil {
		return torture.Client{}, err
	}
	address.Host = addrs[0]
	config, err := pgxpool.ParseConfig(address.String())
	if err != nil {
		return torture.Client{}, err
	}
	config.MaxConns = 4
	pgfence.Configure(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return torture.Client{}, err
	}
	s, err := pglock.New(pglock.Config{Pool: pool})
	return torture.Client{Source: s, After: pool.Close}, err
}
