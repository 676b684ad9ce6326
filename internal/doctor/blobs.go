package doctor

import (
	"context"
	"errors"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

const sqlListsBlobs = `SELECT EXISTS (SELECT FROM objects.blobs WHERE state = 'live')`

// examineBlobs writes a file as the gateway's blob store does, and removes it.
func examineBlobs(ctx context.Context, location string) []Finding {
	const check = "blobs.writable"
	dir := blob.FolderOf(location)
	if dir == "" {
		store, err := blob.OpenAt(ctx, location)
		if err == nil {
			err = blob.Probe(ctx, store)
		}
		if err != nil {
			return []Finding{fail(check, err.Error(), "See whether endpoint, bucket and credentials are right, and may read, write, list and delete.")}
		}
		return []Finding{ok(check, "the S3 service stores, lists and deletes at once")}
	}
	f, err := os.CreateTemp(dir, ".fencegate-doctor-*")
	if err != nil {
		return []Finding{fail(check, err.Error(), "Make the folder, and let the gateway's user write in it.")}
	}
	_, err = f.WriteString("fencegate doctor\n")
	err = errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
	if err != nil {
		return []Finding{fail(check, err.Error(), "See whether the disk is full or read-only.")}
	}
	return []Finding{ok(check, "%s takes files as this user", dir)}
}

// examineOwner checks whether a blob store belongs to the database, and still has its blobs.
func examineOwner(ctx context.Context, url, location string) []Finding {
	const check = "blobs.owner"
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil // examinePostgres reports it
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return []Finding{unseen(check, err)}
	}
	defer pool.Close()
	var lists bool
	if err := pool.QueryRow(ctx, sqlListsBlobs).Scan(&lists); err != nil {
		return []Finding{unseen(check, err)}
	}
	store, err := blob.OpenExisting(ctx, location)
	switch {
	case err != nil && lists:
		return []Finding{fail(check, "the database lists blobs, but "+err.Error(), "Mount the disk, or name the folder or bucket that the gateways have as --blobs.")}
	case err != nil: // no gateway has started yet
		return []Finding{ok(check, "no gateway has stored anything yet")}
	}
	if err := maintenance.New(objects.NewDatabase(pool, 0), store).Belongs(ctx); err != nil {
		if foreign, ok := errors.AsType[*maintenance.StoreOwnerError](err); ok {
			return []Finding{fail(check, foreign.Error(), "Check --blobs and --postgres-url first; then see fencegate objects claim --help.")}
		}
		return []Finding{unseen(check, err)}
	}
	return []Finding{ok(check, "the blob store is this database's")}
}
