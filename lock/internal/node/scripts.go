package node

import (
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // Redis names cached scripts by SHA-1; nothing is secured by it.
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
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

// A group is strict or best effort, see lock.Config.BestEffort. The mode is part of each incarnation's name. The scripts
// are bound to the incarnation, so a script serves Lockers of one mode only, and a node changes its mode in one step.

const bestEffortMark = "best-effort-"

// IsBestEffort reads the mode from the name of an incarnation.
func IsBestEffort(incarnation string) bool {
	return strings.HasPrefix(incarnation, bestEffortMark)
}

func NewNonce(bestEffort bool) string { return NonceOf(bestEffort, NewID()) }

func NonceOf(bestEffort bool, id string) string {
	if bestEffort {
		return bestEffortMark + id
	}
	return id
}

// modeError is an [ErrMode] with the remedy.
type modeError struct{ bestEffort bool } // the node's mark

func (e *modeError) Error() string {
	if e.bestEffort {
		return "the node is marked best effort and this process is strict: use --redis-best-effort (Config.BestEffort) in all processes of the group, " +
			"or end it with: fencegate nodes mode strict; a gateway admits a best-effort node at once, so it needs no nodes admit"
	}
	return "the node is marked strict and this process is best effort: do without --redis-best-effort (Config.BestEffort), " +
		"or change the group with: fencegate nodes mode best-effort"
}

func (e *modeError) Is(target error) bool { return target == ErrMode }

// checkMode refuses an incarnation of the other mode.
func (s Server) checkMode(incarnation string) error {
	if IsBestEffort(incarnation) != s.BestEffort {
		return &modeError{bestEffort: !s.BestEffort}
	}
	return nil
}

// Mark gives a node an incarnation of the given mode.
func (n *Node) Mark(ctx context.Context, incarnation string, bestEffort bool) error {
	if incarnation != "" && IsBestEffort(incarnation) == bestEffort {
		return nil
	}
	return n.Rename(ctx, incarnation, NewNonce(bestEffort), "")
}

// Rename gives a node another incarnation, unless another reign than the given one was noted; "": whichever was. Its
// scripts are not loaded, so the node is not admitted.
func (n *Node) Rename(ctx context.Context, incarnation, next, reign string) error {
	values, err := renameScript.Run(ctx, n.client, []string{n.keys.H}, incarnation, next, reign).Slice()
	switch {
	case err != nil:
		return ServerError(err)
	case integer(values, 0) != 1:
		return fmt.Errorf("end the node's incarnation: %w", ErrRace)
	}
	return nil
}

var renameScript = redis.NewScript(renameText)
