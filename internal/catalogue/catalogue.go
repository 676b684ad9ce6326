// Package catalogue describes fencegate's objects in a database: schemas, tables, views, functions, and who owns and
// may use them. The text is stable: two databases with the same text behave alike.
//
//	text, err := catalogue.Text(ctx, conn) // the content of migrations/schema.sql
//
// A function's body is represented by its hash.
package catalogue

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed catalogue.sql
var query string

// Text describes fencegate's part of the database of conn. conn must not be in a transaction.
func Text(ctx context.Context, conn *pgx.Conn) (string, error) {
	var text strings.Builder
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// With an empty search_path, PostgreSQL qualifies all names.
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = ''`); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, query) // rows returns the error again
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, line := range lines {
			if text.Len() > 0 && !strings.HasPrefix(line, " ") {
				text.WriteByte('\n')
			}
			text.WriteString(line)
			text.WriteByte('\n')
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the catalogue: %w", err)
	}
	return text.String(), nil
}
