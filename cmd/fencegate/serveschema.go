package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/migrate"
)

const (
	schemaPatience = 30 * time.Second // for a migration that is running, or about to start
	schemaLook     = time.Second
	schemaAnswer   = 5 * time.Second
)

// awaitSchema waits until the database is migrated as far as this program needs, at most for patience: a gateway calls
// functions that an older schema lacks. which is the set that the gateway's ports need. An unreachable server is left
// to the gateway's own retries. A newer schema serves older programs unless it says otherwise.
func awaitSchema(ctx context.Context, url string, which migrate.Set, patience time.Duration, log *slog.Logger) error {
	begun, warned := time.Now(), false
	for again := time.NewTicker(schemaLook); ; {
		look, cancel := context.WithTimeout(ctx, schemaAnswer)
		state, err := migrate.Look(look, url, which)
		cancel()
		switch {
		case err != nil && isAway(err), err == nil && state.Serves():
			again.Stop()
			return nil
		case isForeign(err):
			again.Stop()
			return withHint(fmt.Errorf("the database's schema: %w", err), exitFailed, "fencegate migrate status says more")
		case err != nil && time.Since(begun) >= patience:
			again.Stop()
			return withHint(fmt.Errorf("the database's schema: %w", err), exitFailed, "fencegate migrate status, as this login, must answer; migrate up publishes what it reads")
		case err != nil && !warned:
			log.Warn("failed to read the schema's version: waiting", "error", err, "at most", patience)
			warned = true
		case err != nil:
		case state.NeedsNewerProgram():
			again.Stop()
			return withHint(fmt.Errorf("the database's schema: %s", state), exitFailed, "start a program as new as the schema")
		case state.Other() != nil, state.Gone(): // waiting does not help
			again.Stop()
			return withHint(fmt.Errorf("the database's schema: %s", state), exitFailed, "fencegate migrate status says more")
		case time.Since(begun) >= patience:
			again.Stop()
			return withHint(fmt.Errorf("the database's schema: %s", state), exitFailed, "fencegate migrate up, as a login that may make roles and schemas")
		case !warned:
			log.Warn("the database's schema is older than this program: waiting for a migration", "schema", state.String(), "at most", patience)
			warned = true
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil // like a process that is stopped during its start
		}
	}
}

// isForeign reports whether a look found a record or a schema that is not fencegate's.
func isForeign(err error) bool {
	_, record := errors.AsType[*migrate.ForeignRecordError](err)
	_, schema := errors.AsType[*migrate.ForeignSchemaError](err)
	return record || schema
}

// isAway reports whether a look failed because the server can't be reached or does not answer. The gateway itself waits
// for such a server.
func isAway(err error) bool {
	if isForeign(err) {
		return false
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return !ok || strings.HasPrefix(refused.Code, "08") || strings.HasPrefix(refused.Code, "57P") || strings.HasPrefix(refused.Code, "53")
}
