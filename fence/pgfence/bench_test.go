package pgfence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// BenchmarkArm compares raise and drain with a plain upsert that records a token.
func BenchmarkArm(b *testing.B) {
	w := setup(b)
	b.Run("arm", func(b *testing.B) {
		token := value[fence.Token](b, w, `SELECT coalesce(max(token), 0) FROM fence.resources`)
		for b.Loop() {
			token++
			w.acquire(b, orders, token)
		}
	})
	b.Run("upsert", func(b *testing.B) {
		w.exec(b, `CREATE TABLE IF NOT EXISTS plain (resource text PRIMARY KEY, token bigint)`)
		for b.Loop() {
			w.exec(b, `INSERT INTO plain VALUES ($1, 1) ON CONFLICT (resource) DO UPDATE SET token = plain.token + 1`, orders)
		}
	})
}

// BenchmarkInTx inserts one row per transaction, all under one grant.
func BenchmarkInTx(b *testing.B) {
	w := setup(b)
	w.exec(b, `CREATE TABLE open (LIKE work INCLUDING ALL); GRANT ALL ON open TO PUBLIC`)
	g := w.acquire(b, orders, 1)
	byOptions := poolWith(b, w.pg.WriterURL, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["fence.resource"] = fence.EscapeResource(g.Resource)
		c.ConnConfig.RuntimeParams["fence.token"] = g.Presented()
	})
	for _, c := range []struct {
		name string
		run  func(pb *testing.PB)
	}{
		{"unfenced", func(pb *testing.PB) {
			for pb.Next() {
				if err := pgx.BeginFunc(b.Context(), w.writer, func(tx pgx.Tx) error { return insert(b, tx, "open") }); err != nil {
					b.Error(err)
				}
			}
		}},
		{"guarded, by settings of the connection", func(pb *testing.PB) {
			for pb.Next() {
				if err := pgx.BeginFunc(b.Context(), byOptions, func(tx pgx.Tx) error { return insert(b, tx, "work") }); err != nil {
					b.Error(err)
				}
			}
		}},
		{"unguarded, InTx", func(pb *testing.PB) {
			for pb.Next() {
				if err := pgfence.InTx(b.Context(), w.writer, g, func(tx pgx.Tx) error { return insert(b, tx, "open") }); err != nil {
					b.Error(err)
				}
			}
		}},
		{"guarded, InTx", func(pb *testing.PB) {
			for pb.Next() {
				if err := pgfence.InTx(b.Context(), w.writer, g, func(tx pgx.Tx) error { return insert(b, tx, "work") }); err != nil {
					b.Error(err)
				}
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetParallelism(4)
			b.RunParallel(c.run)
		})
	}
}

func insert(b *testing.B, tx pgx.Tx, table string) error {
	_, err := tx.Exec(b.Context(), `INSERT INTO `+table+` (token) VALUES (1)`)
	return err
}
