#!/bin/sh
# The story of common.py with psql, which connects again where it is told to, by \c.
export PGHOST="$HOST" PGPORT="$PORT" PGDATABASE="$DATABASE" PGUSER="$LOGIN" PGPASSWORD="$PASSWORD" PGOPTIONS="-c fence.lease=$LEASE"
printf 'driver\tpsql %s, `\\c`\n' "$(psql --version | sed 's/[^0-9]*\([0-9.]*\).*/\1/')"
script=$(mktemp)
trap 'rm -f "$script"' EXIT
cat >"$script" <<'SQL'
\set VERBOSITY verbose
SELECT balance, balance + 1 AS more FROM orders \gset
\echo read	:balance
\prompt '' go
SQL
for _ in 1 2 3 4 5 6 7 8; do
  cat <<'SQL'
\c
UPDATE orders SET balance = :more RETURNING 'write' || chr(9) || 'ok' AS done \gset
\if :{?done}
\echo :done
\q
\endif
SELECT pg_sleep(0.2) AS slept \gset
SQL
done >>"$script"
psql -X -q -f "$script" 2>&1 | sed -u -n '/^\(read\|write\)\t/p; /refused\|FATAL\|ERROR/{s/^/write\t/;p}'
