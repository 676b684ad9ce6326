package main

const runLong = `Run a command under a lease, or under several, all or none. The command finds in its environment

  FENCE_RESOURCE, FENCE_TOKEN                   the grant, for any client
  PGHOST, PGPORT, PGOPTIONS                     psql and every libpq driver write through the gateway
  JDBC_URL                                      the same for JDBC, which reads none of these
  AWS_CONTAINER_CREDENTIALS_FULL_URI,           the S3 tools and SDKs upload through the gateway,
  AWS_CONTAINER_AUTHORIZATION_TOKEN,            with credentials that they refresh as the lease
  AWS_REGION, AWS_ENDPOINT_URL_S3               is renewed
  RCLONE_CONFIG_FENCEGATE_…                     rclone has a remote fencegate: beside its own
  S3CMD_CONFIG, and PATH where aws is in it     s3cmd, and versions of aws before 2.13, find the endpoint

Drivers that ignore PGOPTIONS (asyncpg, pgx before 5.7.5) take it from a URL: with
--pg-url-env DATABASE_URL that variable leads through the gateway too, with the grant in it.
docs/frameworks.md lists drivers and versions, docs/s3.md S3 tools; those that read no endpoint, such
as boto3 before 1.28, must be given it.

With --s3-credentials=static it finds AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_SESSION_TOKEN instead, for tools that read these only (curl, s3cmd). They write while the
lease is held. --s3-own-keys and --s3-read-only limit what the credentials are good for.

With several --resource, --wait and --on-held apply to all of them together: the command starts once
it holds all, and ends when it loses one. It finds all grants in PGOPTIONS, JDBC_URL and the
variables of --pg-url-env, and in FENCE_GRANTS (resource=token,…, names percent-encoded) instead of
FENCE_RESOURCE and FENCE_TOKEN. S3 credentials are of one resource: --s3-resource says of which; without
it the command gets no settings for S3.

The lease is renewed while the command runs. When it cannot be renewed, the command is ended
(TERM, then KILL) before another can get the lease; --on-lost=warn only warns. If fencegate itself
is paused, the fence refuses the command's late writes.

If another holds the resource, --wait waits, also while the gateway is away. After that,
--on-held=skip ends with 0, for cron jobs of which one is enough; --on-held=wait waits without
limit. --forever is for leaders: the command runs again whenever the lease can be acquired. With the
leader's address as --holder, others find it by "fencegate lease show".

The exit code is the command's own; 79 if the lease was lost and the command was ended, or not
started; 75 if another holds the resource.`

const runExample = `  fencegate run --resource reports/q3 --ttl 30s -- ./nightly-report.sh
  fencegate run --resource orders/1001 --wait 1m -- psql -c "UPDATE orders SET status = 'paid' WHERE id = 1001"
  fencegate run --resource accounts/7 --resource accounts/9 --wait 1m -- psql -1 -v ON_ERROR_STOP=1 -f transfer.sql
  fencegate run --resource accounts/7 --resource reports/q3 --s3-resource reports/q3 ./statement.sh
  fencegate run --resource reports/q3 --on-held skip ./nightly-report.sh --month 9
  fencegate run --resource leaders/mailer --forever --holder 10.0.0.7:8080 ./mailer`
