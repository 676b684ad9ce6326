package lock

import (
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // Redis names cached scripts by SHA-1; nothing is secured by it.
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
)

// The scripts' text. The first group is bound to an incarnation: "@NONCE@" in it is replaced by the nonce of the
// admission that loads it.
var (
	//go:embed scripts/acquire.lua
	acquireText string
	//go:embed scripts/confirm.lua
	confirmText string
	//go:embed scripts/extend.lua
	extendText string
	//go:embed scripts/release.lua
	releaseText string
	//go:embed scripts/batch.lua
	batchText string
	//go:embed scripts/admit.lua
	admitText string
	//go:embed scripts/locks.lua
	locksText string
	//go:embed scripts/shorten.lua
	shortenText string
	//go:embed scripts/give.lua
	giveText string
	//go:embed scripts/epoch.lua
	epochText string

	//go:embed scripts/raise.lua
	raiseText string
	//go:embed scripts/limit.lua
	limitText string
	//go:embed scripts/sweep.lua
	sweepText string
	//go:embed scripts/wait.lua
	waitText string
	//go:embed scripts/leave.lua
	leaveText string
	//go:embed scripts/admit_begin.lua
	admitBeginText string
	//go:embed scripts/rename.lua
	renameText string
	//go:embed scripts/reign.lua
	reignText string
)

// The scripts of the queues are bound to no incarnation, because they grant nothing. A Locker loads them when it
// connects.
var (
	lookCall  = evalSHA(shaOf(waitText))
	leaveCall = evalSHA(shaOf(leaveText))
)

// shaOf is Redis' name of a script.
func shaOf(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}

// evalSHA begins a call of a script, as sent.
func evalSHA(sha string) []byte { return appendBulk(appendBulk(nil, "EVALSHA"), sha) }

// bound are the scripts of one incarnation of a node. They are called only by EVALSHA, and only the beginning of its
// admission loads them, so NOSCRIPT means that the node was restarted. Never fall back to EVAL, and never load them
// again.
type bound struct {
	nonce string
	sha   [scriptKinds]string
	call  [scriptKinds][]byte // "EVALSHA" and the script's hash, as sent
}

// The bound scripts: one for each kind of op, the batch, and those of admissions.
const (
	batchKind = opKinds + iota
	admitKind
	locksKind
	shortenKind
	giveKind
	epochKind
	scriptKinds // number of kinds
)

// boundTexts lists the text of each operation's script.
var boundTexts = [scriptKinds]*string{
	opAcquire: &acquireText,
	opConfirm: &confirmText,
	opExtend:  &extendText,
	opRelease: &releaseText,
	batchKind: &batchText,
	admitKind: &admitText,

	locksKind:   &locksText,
	shortenKind: &shortenText,
	giveKind:    &giveText,
	epochKind:   &epochText,
}

// bindScripts names the scripts of an incarnation.
func bindScripts(nonce string) *bound {
	b := &bound{nonce: nonce}
	for kind, text := range boundTexts {
		b.sha[kind] = shaOf(bindText(*text, nonce))
		b.call[kind] = evalSHA(b.sha[kind])
	}
	return b
}

func bindText(text, nonce string) string { return strings.ReplaceAll(text, "@NONCE@", nonce) }

// ownerLength is the length of an owner ID: 128 bits in hexadecimal. The scripts cut it from the lock's value.
const ownerLength = 32

// newID creates a random 128-bit ID: an attempt's owner, or an admission's nonce.
func newID() string {
	var b [ownerLength / 2]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process if the system has no randomness
	return hex.EncodeToString(b[:])
}

// keys are the names of the package's keys on a node, below a prefix.
type keys struct {
	prefix string

	h, q       string
	hBulk      []byte // h as sent
	lockPrefix string
	waiting    string // exists while any resource has a queue of waiters
	waitPrefix string // of W, a resource's queue of waiters
	seenPrefix string // of S, the time of each waiter's last check
	wakePrefix string // of the channel on which a Locker is called
}

func newKeys(prefix string) keys {
	return keys{
		prefix: prefix,

		h: prefix + ":h", hBulk: appendBulk(nil, prefix+":h"), q: prefix + ":q", lockPrefix: prefix + ":lock:", waiting: prefix + ":waiting",
		waitPrefix: prefix + ":wait:", seenPrefix: prefix + ":seen:", wakePrefix: prefix + ":wake:",
	}
}

// trace is the text of a script that does nothing. A Locker loads it before its first op on a node. If a node without
// data has it in its script cache, it is not new: it was emptied in this run.
func (k keys) trace(db int) string {
	return fmt.Sprintf("-- leases of %x in database %d\nreturn 1", k.h, db)
}

func (k keys) lock(resource string) string { return k.lockPrefix + resource }

const counterPrefix = "c:"

func counterField(resource string) string { return counterPrefix + resource }
