package node

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// errMalformed: the node's answer is not valid RESP, or not one of this package's scripts.
var errMalformed = errors.New("malformed reply")

// link is a connection to a node that implements just enough of Redis' protocol (RESP2) for the package's scripts. It
// never repeats a message by itself: a repeated acquire would be another message.
type link struct {
	Conn  net.Conn
	in    *bufio.Reader
	vals  []value        // of the last reply
	signs *atomic.Uint32 // counts what do is answered; nil: nobody looks
	made  time.Time
}

// value is one element of a reply; a nil bulk string is the zero value.
type value struct {
	n      int64
	Text   string
	number bool // the value is n
}

// replyError is an error answer of the server.
type replyError string

func (e replyError) Error() string { return string(e) }

func isReplyError(err error) bool {
	if err == nil {
		return false
	}
	var fromServer replyError
	return errors.As(err, &fromServer)
}

// dialLink connects, authenticates, refuses a server that is not a single Redis, and selects the database, all within
// the given time. signs counts the answers; see [link].
func dialLink(ctx context.Context, cfg Server, within time.Duration, signs *atomic.Uint32) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := cfg.Dial(ctx)
	if err != nil {
		return nil, err
	}
	k := &link{Conn: conn, in: bufio.NewReaderSize(conn, 16<<10), signs: signs, made: time.Now()}
	_ = conn.SetDeadline(time.Now().Add(within))
	if err := k.greet(cfg); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return k, nil
}

func Network(addr string) string {
	if strings.HasPrefix(addr, "/") {
		return "unix"
	}
	return "tcp"
}

func (k *link) greet(cfg Server) error {
	user, password, err := cfg.Login()
	if err != nil {
		return err
	}
	hello := []string{"HELLO", "2"}
	if password != "" {
		hello = append(hello, "AUTH", cmp.Or(user, "default"), password)
	}
	if cfg.Client != "" {
		hello = append(hello, "SETNAME", cfg.Client)
	}
	vals, err := k.doSecret(password, hello...)
	if answer, is := errors.AsType[replyError](err); is && strings.HasPrefix(string(answer), "ERR unknown command") {
		return fmt.Errorf("%w: it does not know HELLO, which came with Redis 6, or has it under another name", ErrOldRedis)
	} else if err != nil {
		return err
	}
	if err := refuseServer(vals); err != nil {
		return err
	}
	if cfg.Watched && !primary(vals) {
		return errNotPrimary
	}
	if cfg.DB != 0 {
		_, err = k.do("SELECT", strconv.Itoa(cfg.DB))
	}
	return err
}

// oldestRedis is the oldest supported major version. From this version on the script cache is not persisted, so a
// restart is noticed.
const oldestRedis = 7

// refuseServer reads the mode and the version from HELLO's answer.
func refuseServer(hello []value) error {
	switch said(hello, "mode") {
	case "cluster":
		return ErrCluster
	case "sentinel":
		return errSentinel
	}
	version := said(hello, "version")
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && said(hello, "server") == "redis" && n < oldestRedis {
		return fmt.Errorf("%w: this is version %s", ErrOldRedis, version)
	}
	return nil
}

// primary reads the role from HELLO's answer.
func primary(hello []value) bool { return said(hello, "role") == "master" }

// said is the value of a name in HELLO's answer.
func said(hello []value, name string) string {
	for i := 0; i+1 < len(hello); i += 2 {
		if hello[i].Text == name {
			return hello[i+1].Text
		}
	}
	return ""
}

// do sends one command and waits for its reply.
func (k *link) do(args ...string) ([]value, error) {
	out := appendHead(nil, len(args))
	for _, a := range args {
		out = appendBulk(out, a)
	}
	if _, err := k.Conn.Write(out); err != nil {
		return nil, err
	}
	vals, err := k.reply()
	if k.signs != nil {
		k.signs.Add(1)
	}
	return vals, err
}

// doSecret is do for a command with a secret. Redis quotes the arguments of a command that it does not know.
func (k *link) doSecret(secret string, args ...string) ([]value, error) {
	vals, err := k.do(args...)
	if answer, is := errors.AsType[replyError](err); is && secret != "" {
		text, _, _ := strings.Cut(string(answer), ", with args beginning with")
		err = replyError(strings.ReplaceAll(text, secret, "(hidden)"))
	}
	return vals, err
}

// maxElements bounds a reply. No batch has that many.
const maxElements = 1 << 14

// reply reads one reply. The values are valid until the next one. A [replyError] leaves the connection usable, any
// other error does not.
func (k *link) reply() ([]value, error) {
	k.vals = k.vals[:0]
	kind, n, err := k.element()
	if err != nil {
		return nil, err
	}
	if kind == '*' {
		for ; n > 0; n-- {
			if n > maxElements {
				return nil, errMalformed
			}
			kind, more, err := k.element()
			switch {
			case isReplyError(err):
				return nil, errMalformed // the rest of the array is still to come
			case err != nil:
				return nil, err
			case kind == '*':
				n += max(0, more) // nested arrays are read flat
			}
		}
	}
	return k.vals, nil
}

// element reads one element and keeps its value, unless it begins an array.
func (k *link) element() (kind byte, n int64, err error) {
	line, err := k.in.ReadSlice('\n')
	if err != nil {
		return 0, 0, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return 0, 0, errMalformed
	}
	kind, line = line[0], line[1:len(line)-2]
	switch kind {
	case '-':
		return 0, 0, replyError(line)
	case '+':
		k.vals = append(k.vals, value{Text: string(line)})
		return kind, 0, nil
	case ':', '*', '$':
		if n, err = parseInt(line); err != nil {
			return 0, 0, err
		}
	default:
		return 0, 0, errMalformed
	}
	if kind == ':' {
		k.vals = append(k.vals, value{n: n, number: true})
	}
	if kind == '$' {
		err = k.bulk(n)
	}
	return kind, n, err
}

// maxBulk bounds a string in a reply: a holder, a nonce, or a value in HELLO's answer.
const maxBulk = 64 << 10

func (k *link) bulk(n int64) error {
	switch {
	case n > maxBulk:
		return errMalformed
	case n < 0:
		k.vals = append(k.vals, value{})
		return nil
	}
	text := make([]byte, n+2)
	if _, err := io.ReadFull(k.in, text); err != nil {
		return err
	}
	if text[n] != '\r' || text[n+1] != '\n' {
		return errMalformed
	}
	k.vals = append(k.vals, value{Text: string(text[:n])})
	return nil
}

func parseInt(digits []byte) (int64, error) {
	negative := len(digits) > 0 && digits[0] == '-'
	if negative {
		digits = digits[1:]
	}
	if len(digits) == 0 || len(digits) > 18 {
		return 0, errMalformed
	}
	var n int64
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, errMalformed
		}
		n = 10*n + int64(d-'0')
	}
	if negative {
		n = -n
	}
	return n, nil
}

// appendHead begins a command with n arguments.
func appendHead(out []byte, n int) []byte {
	out = append(out, '*')
	out = strconv.AppendInt(out, int64(n), 10)
	return append(out, '\r', '\n')
}

// appendBulk appends one argument, which is the concatenation of the parts.
func appendBulk(out []byte, parts ...string) []byte {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	out = append(out, '$')
	out = strconv.AppendInt(out, int64(size), 10)
	out = append(out, '\r', '\n')
	for _, p := range parts {
		out = append(out, p...)
	}
	return append(out, '\r', '\n')
}

func appendNumber(out []byte, n int64) []byte {
	var digits [20]byte
	d := strconv.AppendInt(digits[:0], n, 10)
	out = append(out, '$')
	out = strconv.AppendInt(out, int64(len(d)), 10)
	out = append(out, '\r', '\n')
	out = append(out, d...)
	return append(out, '\r', '\n')
}

// refusesLogin reports whether Redis refused the login, or a command for lack of permission.
func refusesLogin(err error) bool {
	refused, ok := errors.AsType[replyError](err)
	if !ok {
		return false
	}
	code, _, _ := strings.Cut(string(refused), " ")
	return code == "WRONGPASS" || code == "NOPERM" || code == "DENIED"
}

// ServerError maps an error of Redis or of its connection to one of this package's.
func ServerError(err error) error {
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "NOSCRIPT"):
		// The bound scripts are gone: the node was restarted.
		return ErrQuarantined
	case strings.HasPrefix(text, "NOAUTH"), strings.HasPrefix(text, "ERR Protocol error: unauthenticated"): // the latter to a script's many arguments
		return ErrNoPassword
	case strings.HasPrefix(text, "READONLY"):
		return errReplica // nothing was written
	case strings.HasPrefix(text, "CROSSSLOT"), strings.HasPrefix(text, "MOVED"), strings.HasPrefix(text, "CLUSTERDOWN"):
		return ErrCluster
	case isTimeout(err):
		return fmt.Errorf("%w: %w", ErrNodeTimeout, err)
	}
	return err
}

func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}

// A node with Sentinels is the server that is the primary. A failover replaces it by another run, perhaps with older
// data, and so counts as the loss of the node; see state.go. Sentinels close all connections to a server that they
// make a replica, so each reign begins with a new connection, and is checked then.

var (
	errNotPrimary = errors.New("the server that the Sentinels name is a replica")
	errNoMaster   = errors.New("no Sentinel knows a primary of that name")
)

// Sentinels say which server is the primary of a name.
type Sentinels struct {
	Addrs              []string // host:port each
	Master             string
	Username, Password string // Password "": they need none
	Dial               func(ctx context.Context, addr string) (net.Conn, error)
}

// sentinelTimeout bounds the answer of a Sentinel if the caller's context has no deadline.
const sentinelTimeout = 200 * time.Millisecond

// Primary asks the Sentinels one after another for the primary's address.
func (s Sentinels) Primary(ctx context.Context) (string, error) {
	errs := make([]error, 0, len(s.Addrs))
	for i, sentinel := range s.Addrs {
		left := sentinelTimeout
		if end, ok := ctx.Deadline(); ok {
			left = time.Until(end) / time.Duration(len(s.Addrs)-i+1) // the rest is for the primary
		}
		addr, err := s.ask(ctx, sentinel, left)
		if err == nil {
			return addr, nil
		}
		errs = append(errs, fmt.Errorf("sentinel %s: %w", sentinel, err))
	}
	return "", errors.Join(errs...)
}

func (s Sentinels) ask(ctx context.Context, sentinel string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := s.Dial(ctx, sentinel)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(within))
	k := &link{Conn: conn, in: bufio.NewReader(conn)}
	if s.Password != "" {
		if _, err := k.doSecret(s.Password, "AUTH", cmp.Or(s.Username, "default"), s.Password); err != nil {
			return "", err
		}
	}
	vals, err := k.do("SENTINEL", "get-master-addr-by-name", s.Master)
	switch {
	case err != nil:
		return "", err
	case len(vals) != 2 || vals[0].Text == "":
		return "", errNoMaster
	}
	return net.JoinHostPort(vals[0].Text, vals[1].Text), nil
}

// pingAfter is how long a subscription is silent before its node is asked for a sign of life.
const pingAfter = 3 * time.Second

// Subscribe makes a connection that receives what is published on a channel. signs counts the answers until then.
func (n *Node) Subscribe(ctx context.Context, channel string, signs *atomic.Uint32) (*link, error) {
	k, err := dialLink(ctx, n.Server, n.Stall, signs)
	if err != nil {
		return nil, err
	}
	_ = k.Conn.SetDeadline(time.Now().Add(n.Stall))
	if _, err := k.do("SUBSCRIBE", channel); err != nil {
		_ = k.Conn.Close()
		return nil, err
	}
	_ = k.Conn.SetDeadline(time.Time{})
	return k, nil
}

// Pushed waits for the next message of a subscription. A node that is silent is asked whether it still is there, and
// has the given time to answer.
func (k *link) Pushed(within time.Duration) ([]value, error) {
	_ = k.Conn.SetReadDeadline(time.Now().Add(pingAfter))
	if _, err := k.in.Peek(1); isTimeout(err) {
		_ = k.Conn.SetDeadline(time.Now().Add(within))
		if _, err := k.Conn.Write(appendBulk(appendHead(nil, 1), "PING")); err != nil {
			return nil, err
		}
	}
	_ = k.Conn.SetReadDeadline(time.Now().Add(within))
	return k.reply()
}

// Server describes a node's server.
type Server struct {
	Name string // for errors
	Addr string // for display: Dial has the real address
	DB   int
	// Dial connects to the server. It does not log in. ctx bounds it.
	Dial func(ctx context.Context) (net.Conn, error)
	// Login returns the user name and the password of each login; a password of "" is none.
	Login func() (username, password string, err error)
	// Client is the name of the connections, for CLIENT LIST.
	Client string
	// Watched: Sentinels say which server this is, so it has to be a primary and to answer INFO.
	Watched bool
	// Durable: it is declared to keep what it acknowledged across a restart.
	Durable bool
	// BestEffort is the mode of its group.
	BestEffort bool
}
