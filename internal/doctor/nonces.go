package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Estimates the rows from the size: only the fence's owner may count them, and counting a million takes long.
const sqlNonces = `SELECT pg_total_relation_size('fence.nonces') / (1 << 20)`

const manyNonces = 1024 // MiB, about 4 million rows

// checkNonces examines the rows that leases from connection strings leave: one for each run of a process and each
// resource, which stays until the process is reported to have ended.
func checkNonces(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.nonces"
	var size int64
	if err := conn.QueryRow(ctx, sqlNonces).Scan(&size); err != nil {
		return unseen(check, err)
	}
	return judgeNonces(check, size)
}

func judgeNonces(check string, size int64) Finding {
	if size >= manyNonces {
		return warn(check, fmt.Sprintf("nonces of leases by connection strings take %d MiB", size),
			"As the owner: SELECT fence.forget_nonces('DATE'), with a date before which every process that still runs began.")
	}
	return ok(check, "nonces of leases by connection strings take %d MiB", size)
}
