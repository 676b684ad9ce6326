// Command withrun writes with sqlx or GORM over pgx, using only the environment of `fencegate run`: neither the program
// nor its settings contain a grant. `make conformance-pg` runs it under each.
//
//	fencegate run --resource orders/1001 -- go run -C examples/orm ./withrun gorm
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // used by sqlx
	"github.com/jmoiron/sqlx"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

var mappers = map[string]struct {
	module string
	write  func(address, note string) error
}{
	"gorm": {"gorm.io/gorm", byGORM},
	"sqlx": {"github.com/jmoiron/sqlx", bySqlx},
}

func main() {
	if len(os.Args) != 2 || mappers[os.Args[1]].write == nil {
		log.Fatal("withrun gorm or withrun sqlx")
	}
	name := os.Args[1]
	m := mappers[name]
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if dep.Path == m.module {
			fmt.Printf("driver\t%s %s\n", name, dep.Version)
		}
	}
	// With an empty address, the driver reads PGHOST, PGOPTIONS and the other variables.
	fmt.Printf("variables\t%s\n", outcome(m.write("", "variables")))
	fmt.Printf("url\t%s\n", outcome(m.write(os.Getenv("DATABASE_URL"), "url")))
}

func bySqlx(address, note string) error {
	db, err := sqlx.Connect("pgx", address)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.NamedExec("INSERT INTO ledger VALUES (:note)", map[string]any{"note": note})
	return err
}

// Ledger is a row of the guarded table ledger.
type Ledger struct{ Note string }

// TableName implements GORM's Tabler.
func (Ledger) TableName() string { return "ledger" }

func byGORM(address, note string) error {
	orm, err := gorm.Open(postgres.Open(address), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return err
	}
	db, err := orm.DB()
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	return orm.Create(&Ledger{Note: note}).Error
}

// outcome is "ok", the SQLSTATE, or the error's text.
func outcome(err error) string {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused.Code
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}
