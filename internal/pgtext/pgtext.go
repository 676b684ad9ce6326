// Package pgtext describes a failed connection to PostgreSQL in one line.
//
// The guarantee: the line names the user, the database, each address that was tried, once, and the reason in the words
// of the network or PostgreSQL. It never holds a password. Any other error keeps its text.
//
//	conn, err := pgx.Connect(ctx, url)
//	if err != nil {
//		fmt.Fprintln(os.Stderr, pgtext.Of(err))
//	}
//	// no connection to PostgreSQL as user "app" to database "shop": [::1]:5432 (localhost), 127.0.0.1:5432 (localhost): connection refused
package pgtext

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Of returns the text of err, with a [*pgconn.ConnectError] in one line.
func Of(err error) string {
	failed, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok {
		return err.Error()
	}
	return strings.Replace(err.Error(), failed.Error(), unconnected(failed), 1)
}

// unconnected lists each reason once, after the addresses that have it. pgx tries each address with TLS and without,
// and reports each try.
func unconnected(failed *pgconn.ConnectError) string {
	var reasons []string
	places := map[string][]string{} // by reason
	for _, try := range tries(failed.Unwrap()) {
		place, why := splitTry(try)
		if !slices.Contains(reasons, why) {
			reasons = append(reasons, why)
		}
		if place != "" && !slices.Contains(places[why], place) {
			places[why] = append(places[why], place)
		}
	}
	reasons = slices.DeleteFunc(reasons, func(why string) bool { return why == withoutTLS && triedOtherwise(places) })
	for i, why := range reasons {
		if at := places[why]; len(at) > 0 {
			reasons[i] = strings.Join(at, ", ") + ": " + why
		}
	}
	return fmt.Sprintf("no connection to PostgreSQL as user %q to database %q: %s", failed.Config.User, failed.Config.Database, strings.Join(reasons, "; "))
}

// withoutTLS is the error after which pgx tries an address without TLS, if allowed.
const withoutTLS = "tls error: server refused TLS connection"

// triedOtherwise reports whether each place that refused TLS also failed for another reason, which is the relevant one.
func triedOtherwise(places map[string][]string) bool {
	for _, place := range places[withoutTLS] {
		other := false
		for why, at := range places {
			other = other || why != withoutTLS && slices.Contains(at, place)
		}
		if !other {
			return false
		}
	}
	return len(places[withoutTLS]) > 0
}

// tries splits joined errors.
func tries(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, one := range joined.Unwrap() {
		all = append(all, tries(one)...)
	}
	return all
}

// splitTry splits the text of a try, "ADDRESS (HOST): REASON". The place is empty if no address was tried.
func splitTry(try error) (place, why string) {
	why = strings.Join(strings.Fields(try.Error()), " ")
	addr, rest, _ := strings.Cut(why, " (")
	host, reason, ok := strings.Cut(rest, "): ")
	if ok && !strings.Contains(addr, " ") {
		place, why = addr, strings.TrimPrefix(reason, "dial error: ")
		if at, _, err := net.SplitHostPort(addr); err == nil && at != host {
			place += " (" + host + ")"
		}
	}
	var refused *pgconn.PgError
	var dial *net.OpError
	var call *os.SyscallError
	var lookup *net.DNSError
	switch {
	case errors.As(try, &lookup):
		why = lookup.Error()
	case errors.As(try, &refused):
		why = refused.Error()
	case pgconn.Timeout(try):
		why = "no answer in time"
	case errors.As(try, &dial) && dial.Op == "dial" && errors.As(dial.Err, &call):
		why = call.Err.Error()
	case dial != nil && dial.Op == "dial":
		why = dial.Err.Error()
	}
	return place, why
}
