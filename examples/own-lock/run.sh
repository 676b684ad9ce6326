#!/bin/sh
# A shell job with psql: flock is the lock, a sequence gives the tokens, and only the fence is fencegate's.
#
#   go run ./cmd/fencegate dev --ephemeral -- sh examples/own-lock/run.sh
set -eu
grant=
# sql reads statements as the login of a URL, whose password it keeps out of the command line.
sql() {
  url=$1
  shift
  PGOPTIONS="-c client_min_messages=warning${grant:+ -c fence.resource=shell/1 -c fence.token=$grant}" \
    PGPASSWORD=$(echo "$url" | sed 's|^[^:]*://[^:]*:\([^@]*\)@.*|\1|') \
    psql -XqAt -v ON_ERROR_STOP=1 "$(echo "$url" | sed 's|\(://[^:]*\):[^@]*@|\1@|')" "$@"
}
db() { sql "$DATABASE_URL" "$@"; }
arming() { sql "$ARMING_DATABASE_URL" "$@"; }
db >/dev/null <<SQL
DROP TABLE IF EXISTS shell_jobs; DROP SEQUENCE IF EXISTS shell_tokens;
CREATE SEQUENCE shell_tokens;
CREATE TABLE shell_jobs (id bigint PRIMARY KEY, state text NOT NULL);
INSERT INTO shell_jobs VALUES (1, 'new');
SELECT fence.protect('shell_jobs', under => 'shell/');
SQL

# take prints a grant. PostgreSQL gets the seal's hash alone.
take() {
  token=$(db -c "SELECT nextval('shell_tokens')")
  seal=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  hash=$(printf %s "$seal" | sha256sum | cut -c 1-64)
  arming -c "CALL fence.take('shell/1', $token, '\\x$hash', '$1')" >&2
  echo "$token.$seal"
}

# finish writes under a grant, which the connection presents: no statement and no command line holds it.
finish() {
  grant=$1 db >/dev/null <<SQL
\\set VERBOSITY verbose
UPDATE shell_jobs SET state = '$2' WHERE id = 1;
SQL
}

lock=$(mktemp)
trap 'rm -f "$lock"' EXIT
exec 9>"$lock"
flock 9; first=$(take 'worker 1'); flock -u 9   # and does not notice: its machine was taken for dead
flock 9; second=$(take 'worker 2')
finish "$second" 'done by worker 2'
if said=$(finish "$first" 'done by worker 1' 2>&1); then
  echo 'worker 1 should have been refused' >&2
  exit 1
fi
echo "$said" | grep ZF001
db -c 'SELECT state FROM shell_jobs' | grep 'done by worker 2'
