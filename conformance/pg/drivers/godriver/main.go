// Command godriver writes with a Go driver, pgx or lib/pq, configured only by the environment.
package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
)

func main() {
	name := os.Args[1]
	module := map[string]string{"pgx": "github.com/jackc/pgx/v5", "postgres": "github.com/lib/pq"}[name]
	info, _ := debug.ReadBuildInfo()
	for _, m := range info.Deps {
		if m.Path == module {
			fmt.Printf("driver\t%s %s\n", map[string]string{"pgx": "pgx", "postgres": "lib/pq"}[name], m.Version)
		}
	}
	fmt.Printf("variables\t%s\n", write(name, ""))
	fmt.Printf("url\t%s\n", write(name, os.Getenv("DATABASE_URL")))
}

func write(driver, address string) string {
	db, err := sql.Open(driver, address)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = db.Close() }()
	_, err = db.Exec("INSERT INTO ledger VALUES ('go')")
	var ofPgx *pgconn.PgError
	var ofPq *pq.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &ofPgx):
		return ofPgx.Code
	case errors.As(err, &ofPq):
		return string(ofPq.Code)
	}
	return err.Error()
}
