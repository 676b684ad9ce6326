#!/bin/sh
# Protects a job against a pause. A job writes with plain psql under `fencegate run`. It is
# stopped beyond its lease, another job takes over, and when the first one wakes up,
# PostgreSQL refuses its write.
#
#   go run ./cmd/fencegate dev --ephemeral -- sh examples/paused-job/run.sh
#
# FENCEGATE names the binary; without it, it is built.
set -eu

dir=$(mktemp -d)
pids=
trap 'for p in $pids; do kill -KILL "$p" 2>/dev/null || true; done; rm -rf "$dir"' EXIT INT TERM
fencegate=${FENCEGATE:-$dir/fencegate}
[ -n "${FENCEGATE:-}" ] || go build -o "$fencegate" ./cmd/fencegate

psql -qXAt "$DATABASE_URL" <<'SQL'
SET client_min_messages = warning;
DROP TABLE IF EXISTS payroll;
CREATE TABLE payroll (month text PRIMARY KEY, paid_by text NOT NULL);
INSERT INTO payroll VALUES ('2026-11', 'nobody');
SELECT fence.protect('payroll', resource => 'jobs/payroll');
SQL

# What the job does: it says that it has started, waits until it may go on, and writes.
# psql finds the gateway and the grant in PGHOST, PGPORT and PGOPTIONS.
cat >"$dir/job" <<'SH'
echo $$ >"$1.started"
while [ ! -e "$1.go" ]; do sleep 0.1; done
psql -qX -v VERBOSITY=verbose -c "UPDATE payroll SET paid_by = '$2'" 2>&1
SH

wait_for() { # FILE: at most 20 seconds
  n=0
  while [ ! -s "$1" ]; do
    n=$((n + 1)); [ "$n" -lt 200 ] || { echo "timed out waiting for $1" >&2; exit 1; }
    sleep 0.1
  done
}

"$fencegate" run --resource jobs/payroll --ttl 1s --on-lost=warn -- sh "$dir/job" "$dir/one" "job one" >"$dir/one.out" 2>"$dir/one.err" &
run=$!; pids="$run"
wait_for "$dir/one.started"
job=$(cat "$dir/one.started"); pids="$run $job"
kill -STOP "$run" "$job" # both: the job, and the process that renews its lease
echo "job one has the lease, and is stopped"

touch "$dir/two.go"
"$fencegate" run --resource jobs/payroll --ttl 10s --wait 20s -- sh "$dir/job" "$dir/two" "job two"
echo "job two took over, and wrote"

touch "$dir/one.go"
kill -CONT "$run" "$job"
if wait "$run"; then
  echo "job one should have failed" >&2; exit 1
fi
grep 'ZF001' "$dir/one.out" || { cat "$dir/one.out" "$dir/one.err" >&2; exit 1; }
echo "job one woke up, and was refused"

paid_by=$(psql -qXAt "$DATABASE_URL" -c "SELECT paid_by FROM payroll")
[ "$paid_by" = "job two" ] || { echo "payroll says: $paid_by" >&2; exit 1; }
echo "payroll was paid by: $paid_by"
