#!/bin/sh
# Keeps the part of the contract of the public image of PostgreSQL that is used here: POSTGRES_PASSWORD or
# POSTGRES_PASSWORD_FILE, POSTGRES_USER, POSTGRES_DB, POSTGRES_INITDB_ARGS, PGDATA, and options after the
# command. During initialization the server listens on its Unix socket only, as there.
set -e
if [ $# -eq 0 ] || [ "${1#-}" != "$1" ]; then set -- postgres "$@"; fi
[ "$1" = postgres ] || exec "$@"
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
PATH=$bin:$PATH PGDATA=${PGDATA:-/var/lib/postgresql/data} user=${POSTGRES_USER:-postgres}
export PATH PGDATA
as() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
mkdir -p "$PGDATA" /run/postgresql
chown postgres: "$PGDATA" /run/postgresql
chmod 700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  password=${POSTGRES_PASSWORD:-}
  [ -z "${POSTGRES_PASSWORD_FILE:-}" ] || password=$(cat "$POSTGRES_PASSWORD_FILE")
  [ -n "$password" ] || { echo "POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE is needed" >&2; exit 1; }
  pwfile=$(mktemp)
  printf '%s\n' "$password" >"$pwfile"
  chown postgres: "$pwfile"
  # shellcheck disable=SC2086 # several options in one variable
  as initdb --username="$user" --pwfile="$pwfile" --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 ${POSTGRES_INITDB_ARGS:-}
  rm -f "$pwfile"
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  if [ "${POSTGRES_DB:-$user}" != postgres ]; then
    as pg_ctl -w -s -o "-c listen_addresses=''" start
    as createdb -U "$user" "${POSTGRES_DB:-$user}"
    as pg_ctl -w -s -m fast stop
  fi
fi
shift
exec setpriv --reuid=postgres --regid=postgres --clear-groups postgres -c listen_addresses='*' "$@"
