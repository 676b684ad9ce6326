#!/bin/sh
# The story of common.py with psql, which connects again where it is told to, by \c.
export PGHOST="$HOST" PGPORT="$PORT" PGDATABASE="$DATABASE" PGUSER="$LOGIN" PGPASSWORD="$PASSWORD" PGOPTIONS="-c fence.lease=$LEASE"
printf 'driver\tpsql %s, `\\c`\n' "$(psql --version | sed 's/[^0-9]*\([0-9.]*\).*/\1/')"
{
  printf '%s\n' 'SELECT balance + 1 AS more FROM orders \gset'
  echo "SELECT 'read' || chr(9) || balance FROM orders;"
  read -r _
  for _ in 1 2 3; do
    printf '%s\n' '\c' # dash's echo would end there
    echo "UPDATE orders SET balance = :more RETURNING 'write' || chr(9) || 'ok';"
    sleep 0.2
  done
} | psql -X -q -A -t 2>&1 | sed -u -n '/^read\t/p; /^write\t/{p;q}; /FATAL\|ERROR/s/^/write\t/p' # a further \c would wait for its own lease
