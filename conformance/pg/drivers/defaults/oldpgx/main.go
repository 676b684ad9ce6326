// Command oldpgx writes with the last pgx that ignores PGOPTIONS, configured only by the environment. It is a separate
// module, so that no other code gets that version.
package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"
)

func main() {
	info, _ := debug.ReadBuildInfo()
	for _, m := range info.Deps {
		if m.Path == "github.com/jackc/pgx/v5" {
			fmt.Printf("driver\tpgx %s\n", m.Version)
		}
	}
	fmt.Printf("variables\t%s\n", write(""))
	fmt.Printf("url\t%s\n", write(os.Getenv("DATABASE_URL")))
}

func write(address string) string {
	db, err := sql.Open("pgx", address)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = db.Close() }()
	_, err = db.Exec("INSERT INTO ledger VALUES ('go')")
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &refused):
		return refused.Code
	}
	return err.Error()
}
