package main

import (
	"context"
	"errors"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/internal/stack"
)

// world is a PostgreSQL, a Redis and a gateway before them.
type world struct {
	*stack.Stack

	pg      *stack.Postgres
	redis   stack.Redis
	gateway *stack.GatewayProcess
	admin   *pgxpool.Pool // the superuser's, on the guarded database
}

const (
	sessionsOfUser = 12 // an ended session frees its slot a moment later

	bearer      = "golden-bearer-token"
	rootAccess  = "golden-root"
	rootSecret  = "golden-root-secret"
	masterKey   = "4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f"
	masterKeyID = "golden"
	s3Domain    = "s3.golden.test"
	password    = "golden-password"
)

// database has logins that can log in with the password, and those whose name ends in _trust also without one.
func database() stack.Database {
	login := func(name string, roles ...string) stack.Login {
		return stack.Login{Name: name, Password: password, Roles: roles}
	}
	return stack.Database{
		Name: "golden",
		Logins: []stack.Login{
			login("app", "fence_writer"), login("app_md5"), login("app_clear"),
			login("app_trust", "fence_writer"), login("reader_trust", "fence_writer"), login("strict_trust", "fence_writer"),
			login("few_trust", "fence_writer"), login("stranger_trust"),
			login("golden_gateway", "fence_gateway"), login("golden_sql", "fence_writer"),
		},
		Then: []string{
			"ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO fence_writer",
			"SET password_encryption = 'md5'", "ALTER ROLE app_md5 PASSWORD '" + password + "'",
		},
	}
}

const hba = `host all app_md5 127.0.0.1/32 md5
host all app_clear 127.0.0.1/32 password
host all app_trust,reader_trust,strict_trust,stranger_trust,few_trust 127.0.0.1/32 trust
`

func start(ctx context.Context) (w *world, err error) {
	w = new(world)
	if w.Stack, err = stack.New(""); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	w.pg, err = w.Postgres(ctx, stack.PostgresConfig{
		Database: database(), HBA: hba,
		Settings: map[string]string{"timezone": "UTC", "log_timezone": "UTC", "max_prepared_transactions": "4"},
	})
	if err != nil {
		return w, err
	}
	if w.admin, err = w.pg.Pool(ctx); err != nil {
		return w, err
	}
	if w.redis, err = w.Redis(ctx, 1); err != nil {
		return w, err
	}
	w.gateway, err = w.Serve(ctx, stack.GatewayConfig{
		URL: w.pg.As("golden_gateway"), SQLURL: w.pg.As("golden_sql"), Redis: w.redis.Addrs(),
		MasterKey: masterKeyID + ":" + masterKey, Token: bearer, S3Access: rootAccess, S3Secret: rootSecret, Env: []string{"TZ=UTC"},
		Flags: []string{
			"--pg-policy", "reader_trust=read-only,strict_trust=grant-required,*=open", "--pg-max-user-connections", strconv.Itoa(sessionsOfUser),
			"--s3-domain", s3Domain, "--advertise-host", "gateway.golden.test",
			"--max-ttl", "1h", "--drain-timeout", "1s",
		},
	})
	return w, err
}

// names are the fixed parts of the mask: value, name, value, name …
func (w *world) names() []string {
	_, s3Port, _ := net.SplitHostPort(w.gateway.S3)
	_, pgPort, _ := net.SplitHostPort(w.gateway.PG)
	return []string{
		w.gateway.API, "<api>", w.gateway.S3, "<s3>", pgPort, "<pg>", w.redis[0].Addr, "<redis>", w.pg.Addr(), "<postgresql>", w.Dir, "<dir>",
		":" + s3Port, ":<s3 port>", `"port": ` + pgPort, `"port": <pg port>`, `"port":` + pgPort, `"port":<pg port>`,
	}
}
