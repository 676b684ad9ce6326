package node

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"strings"

	_ "embed"
)

// The scripts' text. The first group is bound to an incarnation: "@NONCE@" in it is replaced by the nonce of the
// admission that loads it.
var (
	//go:embed scripts/acquire.lua
	acquireText string
	//go:embed scripts/confirm.lua
	ConfirmText string
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

// Bound are the scripts of one incarnation of a node. They are called only by EVALSHA, and only the beginning of its
// admission loads them, so NOSCRIPT means that the node was restarted. Never fall back to EVAL, and never load them
// again.
type Bound struct {
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
	OpAcquire: &acquireText,
	OpConfirm: &ConfirmText,
	OpExtend:  &extendText,
	OpRelease: &releaseText,
	batchKind: &batchText,
	admitKind: &admitText,

	locksKind:   &locksText,
	shortenKind: &shortenText,
	giveKind:    &giveText,
	epochKind:   &epochText,
}

// Bind names the scripts of an incarnation.
func Bind(nonce string) *Bound {
	b := &Bound{nonce: nonce}
	for kind, text := range boundTexts {
		b.sha[kind] = shaOf(bindText(*text, nonce))
		b.call[kind] = evalSHA(b.sha[kind])
	}
	return b
}

func bindText(text, nonce string) string { return strings.ReplaceAll(text, "@NONCE@", nonce) }

// OwnerLength is the length of an owner ID: 128 bits in hexadecimal. The scripts cut it from the lock's value.
const OwnerLength = 32

// NewID creates a random 128-bit ID: an attempt's owner, or an admission's nonce.
func NewID() string {
	var b [OwnerLength / 2]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process if the system has no randomness
	return hex.EncodeToString(b[:])
}
