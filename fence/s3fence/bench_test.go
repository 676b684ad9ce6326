//go:build unix

package s3fence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/fence/s3fence"
)

// BenchmarkPublish measures what publishing adds to a transaction with one guarded row.
func BenchmarkPublish(b *testing.B) {
	for _, publishes := range []bool{false, true} {
		b.Run(map[bool]string{false: "row", true: "row-and-file"}[publishes], func(b *testing.B) {
			w := setup(b)
			g := w.acquire(report, 1)
			staged := make([]s3fence.Staged, b.N)
			for i := range staged {
				staged[i] = w.record(g, name)
			}
			b.ResetTimer()
			for _, s := range staged {
				err := pgfence.InTx(b.Context(), w.writer, g, func(tx pgx.Tx) error {
					_, err := tx.Exec(b.Context(), "INSERT INTO rows VALUES ('x')")
					if err == nil && publishes {
						err = s3fence.Publish(b.Context(), tx, s)
					}
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
