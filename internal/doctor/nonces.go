package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// From the size: nobody but the fence's owner may count the rows, and counting a million takes its time.
const sqlNonces = `SELECT pg_total_relation_size('fence.nonces') / (1 << 20)`

const manyNonces = 1024 // MiB, some 4 million rows

// checkNonces looks at what leases by connection strings leave behind: a row for each run of a process and each
// resource, which stays until somebody says that the process has ended.
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
