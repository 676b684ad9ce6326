package gateway

import (
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/wire"
)

// issuer serves the API's S3 credentials from the keyring.
type issuer struct{ keyring *credentials.Keyring }

var _ api.Credentials = issuer{}

func (c issuer) Issue(resource string, token fence.Token, expires time.Time, terms api.CredentialTerms) (wire.Credentials, error) {
	var all credentials.Terms
	for _, t := range []struct {
		on   bool
		term credentials.Terms
	}{{terms.WhileHeld, credentials.WhileHeld}, {terms.OwnKeys, credentials.OwnKeys}, {terms.ReadOnly, credentials.ReadOnly}, {terms.EndHeld, credentials.EndHeld}} {
		if t.on {
			all |= t.term
		}
	}
	issued, err := c.keyring.IssueTo(terms.Principal, resource, token, expires, all)
	if err != nil {
		return wire.Credentials{}, err
	}
	return wire.Credentials{
		AccessKeyID: issued.AccessKeyID, SecretAccessKey: issued.SecretAccessKey,
		SessionToken: issued.SessionToken, ExpiresAt: issued.Expires,
	}, nil
}

// sessions serves the API's sessions from the PostgreSQL port.
type sessions struct{ server *pgwire.Server }

var _ api.Sessions = sessions{}

func (s sessions) List() []wire.Session {
	open := s.server.Sessions()
	all := make([]wire.Session, len(open))
	for i, one := range open {
		all[i] = wire.Session{
			ID: one.ID, Client: one.Client, User: one.User, Database: one.Database, State: one.State,
			Since: one.Since, FromClient: one.FromClient, ToClient: one.ToClient,
		}
		all[i].App = one.Application
		if pid := int64(one.PID); pid != 0 {
			all[i].PID = &pid
		}
		if ms := one.StatementAge.Milliseconds(); one.StatementAge != 0 {
			all[i].Statement = &ms
		}
		if one.Resource != "" {
			all[i].Resource = &one.Resource
		}
		if one.Token != 0 {
			all[i].Token = &one.Token
		}
	}
	return all
}

func (s sessions) End(id string) bool { return s.server.End(id) }
