module github.com/fencegate/fencegate/conformance/pg/drivers/oldpgx

go 1.26.0

// The last pgx that ignores PGOPTIONS. ../godriver/main.go is run in this module, and no other code gets this version.
require (
	github.com/jackc/pgx/v5 v5.7.4
	github.com/lib/pq v1.10.9
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.2 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.42.0 // indirect
)
