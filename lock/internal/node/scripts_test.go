package node

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/testenv"
)

// scriptCall is one call of a script and its expected answer; ~ stands for a remaining time in milliseconds.
type scriptCall struct {
	script string
	nonce  string
	keys   []string
	args   []any
	want   string
}

// firstNonce is the nonce of the node until it is admitted again.
const firstNonce = "nonce"

func scripted(script, want string, keys []string, args ...any) scriptCall {
	return scriptCall{script, firstNonce, keys, args, want}
}

func (k Keys) admitted(nonce, want string, base int64) scriptCall {
	return scriptCall{"admit", nonce, []string{k.H, k.Q}, []any{base, 60_000, 60_000, "stored", "durable"}, want}
}

// conversation has the expected answer of each script on every kind of node. h, q, l, w are the names in the scripts'
// headers.
func conversation(k Keys) []scriptCall { return append(leaseCalls(k), admissionCalls(k)...) }

// leaseCalls end with a node that is admitted and holds a lease.
func leaseCalls(k Keys) []scriptCall {
	const nonce, name = firstNonce, "ann"
	a, b, waiter := strings.Repeat("a", 32), strings.Repeat("b", 32), strings.Repeat("c", 32)+":1"
	h, q, l, w, waits, seen := k.H, k.Q, k.Lock("r"), k.waitPrefix+"r", k.waiting, k.seenPrefix+"r"
	queue, other := []string{w, l, waits, seen}, strings.Repeat("d", 32)+":1"
	hl, call, admit := []string{h, l}, scripted, k.admitted
	return []scriptCall{
		call("admit_begin", "[1]", []string{h, q}, nonce, 0, "", "", 60_000),
		admit(nonce, "[1]", 1<<32),
		admit(nonce, "[0]", 1<<32),
		call("acquire", "[4294967297]", hl, "c:r", a+name, 30_000, 0),
		call("acquire", "[0 ~ 4294967297 ann]", hl, "c:r", b+name, 30_000, 0),
		call("acquire", "[-3 60000]", hl, "c:r", b+name, 60_001, 0),
		call("confirm", "[1]", hl, "c:r", a, int64(1)<<32+7),
		call("confirm", "[0]", hl, "c:r", a, int64(1)<<32+6),
		call("confirm", "[0]", hl, "c:r", b, int64(1)<<32+8),
		call("extend", "[1]", hl, a, 40_000),
		call("extend", "[1]", hl, a, 5_000), // never shortens
		call("locks", "[0 "+l+" "+a+name+" ~]", []string{h}, "0", k.lockPrefix+"*"),
		call("epoch", "[1]", []string{h}, 0),
		call("epoch", "[1]", []string{h}, 1),
		call("epoch", "[7]", []string{h}, 7),
		call("epoch", "[7]", []string{h}, 6),
		call("acquire", "[4294967304]", hl, "c:r", a+name, 5_000, 0), // not even by a repeated message
		call("acquire", "[0 ~ 4294967304 ann]", hl, "c:r", b+name, 30_000, 0),
		call("extend", "[0]", hl, b, 40_000),
		call("extend", "[-3 1 60000 0 ]", hl, a, 60_001),
		call("extend", "[0 1 -3 3 60000 0 ]", []string{h, k.Lock("none"), l, k.Lock("t")}, a, 40_000, a, 40_000, a, 60_001),
		call("wait", "[0 ~ 0 ann]", queue, waiter, "r", k.WakePrefix, 3000),
		call("wait", "[0 ~ 0 ann]", queue, waiter, "r", k.WakePrefix, 3000),
		call("wait", "[0 ~ 1 ann]", queue, other, "r", k.WakePrefix, 3000),
		call("wait", "[0 ~ 0 ann]", queue, other, "r", k.WakePrefix, -1), // no waiter was last seen that late
		call("wait", "[0 ~ 1 ann]", queue, waiter, "r", k.WakePrefix, 3000),
		call("leave", "[1]", queue, other, "r", k.WakePrefix),
		call("release", "[0]", []string{h, l, w}, b, "r", k.WakePrefix),
		call("release", "[1]", []string{h, l, w}, a, "r", k.WakePrefix), // the waiter does not listen: it is removed
		call("wait", "[0 -2 0 ]", queue, waiter, "r", k.WakePrefix, 3000),
		call("leave", "[1]", queue, waiter, "r", k.WakePrefix),
		call("leave", "[0]", queue, waiter, "r", k.WakePrefix),
		call("batch", "[4294967305 9007199254740991 0]", []string{h, waits, l, k.Lock("s"), k.Lock("t")},
			2, 1, 0, 1, len(k.lockPrefix), k.waitPrefix, k.WakePrefix, a+name, b+name, a, 30_000, 20_000, 0, int64(1)<<53-2),
		call("batch", "[4294967306]", []string{h, waits, l},
			1, 0, 5_000, 0, len(k.lockPrefix), k.waitPrefix, k.WakePrefix, a+name),
		call("batch", "[0 1 1 ~ 4294967306 ann]", []string{h, waits, l, k.Lock("s")},
			1, 0, 30_000, 0, len(k.lockPrefix), k.waitPrefix, k.WakePrefix, b+name, b),
		call("batch", "[-2]", []string{h, waits, k.Lock("s")},
			1, 0, 30_000, 0, len(k.lockPrefix), k.waitPrefix, k.WakePrefix, b+name),
		call("limit", "[0]", []string{h}, "another", "c1", "begin", 70_000),
		call("limit", "[1]", []string{h}, nonce, "c1", "begin", 70_000),
		call("extend", "[-3 1 60000 0 ]", hl, a, 60_001), // not before its end
		call("limit", "[1]", []string{h}, nonce, "c1", "end", 70_000),
		call("extend", "[-3 1 70000 0 ]", hl, a, 70_001),
		call("limit", "[1]", []string{h}, nonce, "c2", "begin", 65_000),
		call("limit", "[0]", []string{h}, nonce, "c1", "end", 70_000), // another change has begun
		call("extend", "[-3 1 65000 0 ]", hl, a, 65_001),              // at once
		call("limit", "[1]", []string{h}, nonce, "c2", "end", 65_000),
		call("raise", "[0]", []string{h}, "another", int64(2)<<32),
		call("raise", "[1]", []string{h}, nonce, int64(2)<<32),
		call("sweep", "[0 9007199254740991 0 0]", []string{h}, "0", "look", int64(Unlimited)),
		call("sweep", "[0 9007199254740991 1 0]", []string{h}, "0", "delete", int64(Unlimited)),
		call("sweep", "[0 0 0 1]", []string{h}, "0", "look", int64((1<<21-1)-1024)<<32+1<<32-1),
		call("sweep", "[0 0 0 0]", []string{h}, "0", "look", int64((1<<21-1)-1025)<<32+1<<32-1),
	}
}

// admissionCalls admit that node again.
func admissionCalls(k Keys) []scriptCall {
	const nonce, name = firstNonce, "ann"
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 32)
	h, q := k.H, k.Q
	call, admit := scripted, k.admitted
	return []scriptCall{
		call("admit_begin", "[0]", []string{h, q}, "next", 50_000, "another", "", 0),
		call("admit_begin", "[1]", []string{h, q}, "next", 50_000, nonce, "", 0),
		call("admit_begin", "[2 ~]", []string{h, q}, "third", 50_000, nonce, "", 0),
		call("admit_begin", "[2 ~]", []string{h, q}, "third", 50_000, nonce, "fourth", 0),
		call("admit_begin", "[1]", []string{h, q}, "next", 50_000, nonce, "next", 0),
		admit("next", "[2 ~]", 3<<32),
		{"locks", "next", []string{h}, []any{"0", k.lockPrefix + "*"}, "[-1]"},
		{"epoch", "next", []string{h}, []any{9}, "[-1]"},
		{"give", "another", []string{h, k.Lock("u")}, []any{a + name, 40_000}, "[-1]"},
		{"give", "next", []string{h, k.Lock("u"), k.Lock("v")}, []any{a + name, 40_000, b + name, 40_000}, "[2]"},
		{"give", "next", []string{h, k.Lock("u"), k.Lock("v")}, []any{b + name, 50_000, b + name, 50_000}, "[1]"},
		{"give", "next", []string{h, k.Lock("u"), k.Lock("v")}, []any{a + name, 30_000, b + name, 30_000}, "[0]"},
		{"shorten", "next", []string{h, q}, []any{"next:1", 30_000}, "[0]"},
		{"shorten", "another", []string{h, q}, []any{"next:50000", 30_000}, "[0]"},
		{"shorten", "next", []string{h, q}, []any{"next:50000", 59_000}, "[1]"},
		{"shorten", "next", []string{h, q}, []any{"next:50000", 30_000}, "[1]"},
		{"shorten", "next", []string{h, q}, []any{"next:50000", 0}, "[0]"}, // only once
		admit("third", "[0]", 3<<32),
		call("reign", "[0]", []string{h}, "another", "", "reign"),
		call("reign", "[0]", []string{h}, nonce, "another", "reign"),
		call("rename", "[0]", []string{h}, "another", "best-effort-1", ""),
		call("rename", "[0]", []string{h}, nonce, "best-effort-1", "another reign"),
		call("rename", "[1]", []string{h}, nonce, "best-effort-1", ""),
		call("admit_begin", "[1]", []string{h, q}, "best-effort-2", -1, "best-effort-1", "", 0),
		call("admit_begin", "[1]", []string{h, q}, "third", 50_000, "best-effort-1", "", 0), // a quarantine ran before; none does now
	}
}

// Each script has the same answers on real Redis and on the embedded nodes of `fencegate dev`, which also have a
// password here.
func TestEveryScriptAnswersAlikeOnTheEmbeddedRedis(t *testing.T) {
	t.Parallel()
	files, err := os.ReadDir("scripts")
	if err != nil {
		t.Fatal(err)
	}
	r := testenv.Redis(t, 1)
	mini := miniredis.RunT(t)
	mini.ClockTTL(true)
	mini.RequireAuth("secret")
	for name, o := range map[string]*redis.Options{
		"redis":    {Addr: r.Addrs[0]},
		"embedded": {Addr: mini.Addr(), Password: "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Protocol = 2
			server := redis.NewClient(o)
			t.Cleanup(func() { _ = server.Close() })
			asked := make(map[string]bool)
			for i, c := range conversation(NewKeys(r.Prefix)) {
				asked[c.script+".lua"] = true
				if got := answerOf(t, server, c); got != c.want {
					t.Fatalf("call %d, %s%v: %s; want %s", i+1, c.script, c.args, got, c.want)
				}
			}
			for _, f := range files {
				if !asked[f.Name()] {
					t.Errorf("nothing was asked of %s", f.Name())
				}
			}
		})
	}
}

// embeddedTexts are the scripts by file name, as embedded in the package.
var embeddedTexts = map[string]*string{
	"acquire": &acquireText, "confirm": &ConfirmText, "extend": &extendText, "release": &releaseText, "batch": &batchText,
	"admit_begin": &admitBeginText, "admit": &admitText, "locks": &locksText, "shorten": &shortenText, "limit": &limitText, "give": &giveText,
	"epoch": &epochText, "raise": &raiseText, "sweep": &sweepText, "wait": &waitText, "leave": &leaveText, "rename": &renameText, "reign": &reignText,
}

// answerOf makes the call as the package does: bound scripts by their hash, after they were loaded.
func answerOf(t *testing.T, server *redis.Client, c scriptCall) string {
	t.Helper()
	text := embeddedTexts[c.script]
	if text == nil {
		t.Fatalf("%s is no script of the package", c.script)
	}
	name, err := server.ScriptLoad(context.Background(), bindText(*text, c.nonce)).Result()
	if err != nil {
		t.Fatal(err)
	}
	values, err := server.EvalSha(t.Context(), name, c.keys, c.args...).Slice()
	if err != nil {
		t.Fatalf("%s: %v", c.script, err)
	}
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = fmt.Sprint(v)
		if ms, ok := v.(int64); ok && ms > 10_000 && ms < 60_000 {
			words[i] = "~"
		}
	}
	return "[" + strings.Join(words, " ") + "]"
}
