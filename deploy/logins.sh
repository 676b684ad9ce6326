#!/bin/sh
# Makes, or renews, the two logins that the gateway uses: one arms fences, the other runs SQL that comes by HTTP
# and may only write under a grant. It runs in the container named "logins" of docker-compose.yml.
set -eu
PGPASSWORD=$(cat /run/secrets/postgres-password)
export PGPASSWORD
psql -h postgres -U postgres -d app -v ON_ERROR_STOP=1 -qX <<'SQL'
\set gateway_password `cat /run/secrets/gateway-password`
\set sql_password `cat /run/secrets/sql-password`
SELECT format('CREATE ROLE %I LOGIN', name)
  FROM unnest(ARRAY['fencegate_gateway', 'fencegate_sql']) AS name
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE fencegate_gateway PASSWORD :'gateway_password';
ALTER ROLE fencegate_sql PASSWORD :'sql_password';
GRANT fence_gateway TO fencegate_gateway;
GRANT fence_writer TO fencegate_sql;
SQL
