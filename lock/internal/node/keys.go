package node

import (
	"fmt"
	"strings"
)

// globQuote makes a text match itself in a Redis pattern.
func globQuote(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(text)
}

// Keys are the names of the package's keys on a node, below a prefix.
type Keys struct {
	Prefix string

	H, Q       string
	hBulk      []byte // H as sent
	lockPrefix string
	waiting    string // exists while any resource has a queue of waiters
	waitPrefix string // of W, a resource's queue of waiters
	seenPrefix string // of S, the time of each waiter's last check
	WakePrefix string // of the channel on which a Locker is called
}

func NewKeys(prefix string) Keys {
	return Keys{
		Prefix: prefix,

		H: prefix + ":h", hBulk: appendBulk(nil, prefix+":h"), Q: prefix + ":q", lockPrefix: prefix + ":lock:", waiting: prefix + ":waiting",
		waitPrefix: prefix + ":wait:", seenPrefix: prefix + ":seen:", WakePrefix: prefix + ":wake:",
	}
}

// trace is the text of a script that does nothing. A Locker loads it before its first op on a node. If a node without
// data has it in its script cache, it is not new: it was emptied in this run.
func (k Keys) trace(db int) string {
	return fmt.Sprintf("-- leases of %x in database %d\nreturn 1", k.H, db)
}

func (k Keys) Lock(resource string) string { return k.lockPrefix + resource }

const counterPrefix = "c:"

func counterField(resource string) string { return counterPrefix + resource }
