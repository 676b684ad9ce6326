// Package catalogue writes down what a database holds of fencegate's: schemas,
// tables, views, functions, and who owns and may use them. The text is stable:
// two databases with the same text behave alike.
//
//	text, err := catalogue.Text(ctx, conn) // what migrations/schema.sql holds
//
// A function's body is shown by its hash.
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

// Text describes fencegate's part of the database that conn is connected to.
// conn must be in no transaction.
func Text(ctx context.Context, conn *pgx.Conn) (string, error) {
	var text strings.Builder
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// Names are qualified only where the search_path does not find them.
		if _, err := tx.Exec(ctx, `SET LOCAL search_path = ''`); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, query) // the error comes again from rows
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
