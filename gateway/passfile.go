package gateway

import (
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/pgtext"
)

// faultsOfPassfiles are the password files that can't be read: pgx connects without a password then.
func (c Config) faultsOfPassfiles() (all []error) {
	for _, of := range []struct{ field, url string }{{"PostgresURL", c.PostgresURL}, {"SQL URL", c.SQLURL}} {
		if of.url == "" {
			continue
		}
		if err := pgtext.CheckPassfile(of.url); err != nil {
			all = append(all, &fence.InvalidError{Field: of.field, Reason: err.Error()})
		}
	}
	return all
}
