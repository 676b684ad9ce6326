package continuity

import (
	"errors"
	"fmt"
)

// ForgottenError reports that PostgreSQL may have forgotten fences. It has replaced the server that was in use, or it
// is a copy beside it. Only an operator can tell which.
type ForgottenError struct {
	Was, Is State

	alone bool // no Redis nodes are used, so a copy shares nothing
}

func (e *ForgottenError) Error() string {
	command := "fencegate fence invalidate-all --yes"
	if len(e.Is.Invalidations) > 0 {
		command += " --again"
	}
	if e.alone {
		return "PostgreSQL may have forgotten fences: " + e.what() + "; to go on, run: " + command
	}
	return "PostgreSQL may have forgotten fences, or this database is a copy: " + e.what() +
		"; in a copy beside the first database, whose leases must go on, run: fencegate fence new-group --yes" +
		"; in one that has taken its place (a promotion, a restore), run: " + command
}

func (e *ForgottenError) what() string {
	switch {
	case e.Is.Identity != e.Was.Identity:
		return fmt.Sprintf("it is %s now and was %s", e.Is.Identity, e.Was.Identity)
	case !e.Is.sameServer(e.Was):
		return fmt.Sprintf("it is the database %d now and was %d, of the same server", e.Is.Database, e.Was.Database)
	}
	return fmt.Sprintf("it was set back: it stands at %X/%X (beat %d) and was at %X/%X (beat %d)",
		e.Is.Written>>32, uint32(e.Is.Written), e.Is.Beats, e.Was.Written>>32, uint32(e.Was.Written), e.Was.Beats)
}

// Tell returns the text for clients.
func (e *ForgottenError) Tell() string { return e.Error() }

// OtherDatabaseError reports that the keys on the nodes belong to another database, of which this one is no copy. No
// lease has to be given up: this database needs its own key prefix.
type OtherDatabaseError struct {
	Was, Is   State
	KeyPrefix string
}

func (e *OtherDatabaseError) Error() string {
	return fmt.Sprintf("the keys %s:* on the Redis nodes are another database's (group %s), or this one's from before it was given a new group; this one is group %s: "+
		"let it have keys of its own, without --redis-prefix or with another one, and start again", e.KeyPrefix, e.Was.Group, e.Is.Group)
}

// Tell returns the text for clients.
func (e *OtherDatabaseError) Tell() string { return e.Error() }

// Refused reports whether err means that no lease may be given on this PostgreSQL: a [*ForgottenError] or an
// [*OtherDatabaseError].
func Refused(err error) bool {
	return errors.As(err, new(*ForgottenError)) || errors.As(err, new(*OtherDatabaseError))
}
