#!/bin/sh
# Takes an application that is there already under the fence, in five steps.
#
#   go run ./cmd/fencegate dev --ephemeral -- sh examples/orm/adopt/run.sh
#
# FENCEGATE names the binary; without it, it is built.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM
fencegate=${FENCEGATE:-$dir/fencegate}
[ -n "${FENCEGATE:-}" ] || go build -o "$fencegate" ./cmd/fencegate
go build -C examples/orm -o "$dir/app" ./adopt
FENCEGATE_POSTGRES_URL=$DATABASE_URL # the table's owner
export FENCEGATE_POSTGRES_URL
reported() { psql -qXAt "$DATABASE_URL" -c "SELECT would_refuse FROM fence.protected WHERE relation = 'orders'::regclass"; }

psql -qX "$DATABASE_URL" -c 'SET client_min_messages = warning; DROP TABLE IF EXISTS orders'
echo "1. the application, as it is:"
"$dir/app"

echo "2. report what would be refused:"
"$fencegate" protect public.orders --under orders/ --report
"$dir/app"
before=$(reported)
echo "   $before statements would be refused"
[ "$before" -gt 0 ]

echo "3. the application under its lease:"
"$dir/app" -fenced
[ "$(reported)" = "$before" ]
echo "   none of its statements would be refused"

echo "4. enforce:"
"$fencegate" fence enforce public.orders
"$dir/app" -fenced

echo "5. what still writes without a grant is refused:"
if "$dir/app" >"$dir/out" 2>&1; then
  echo "it should have been refused" >&2; exit 1
fi
grep ZF002 "$dir/out"
