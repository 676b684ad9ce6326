//nolint:testableexamples // they need a database
package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/fencegate/fencegate/migrate"
)

const database = "postgres://admin@db/app"

// A program with its own migrations applies the fence before them.
func ExampleUp() {
	ctx := context.Background()
	var newer *migrate.NewerError
	switch err := migrate.Up(ctx, database, migrate.Fence); {
	case errors.As(err, &newer):
		fmt.Println("a newer program was here; it is left alone:", newer.Status)
	case err != nil:
		log.Fatal(err)
	}
}

func ExampleLook() {
	status, err := migrate.Look(context.Background(), database, migrate.All)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(status) // fence state 2, code 3; objects state 2, code 4: up to date
	for _, name := range status.Outside {
		fmt.Println("not of this version, and in our schemas:", name)
	}
}

// The example writes the SQL that a DBA applies with psql.
func ExampleWriteSQL() {
	if err := migrate.WriteSQL(os.Stdout, migrate.Fence, 0); err != nil {
		log.Fatal(err)
	}
}
