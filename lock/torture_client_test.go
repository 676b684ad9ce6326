//go:build linux

package lock_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// asTortureClient makes the test binary run as a client of the nodes: a separate process, which can be stopped and
// continued. It ends at the end of its input.
const asTortureClient = "FENCEGATE_TORTURE_CLIENT"

// clientConfig is a client's configuration, as JSON in the environment.
type clientConfig struct {
	Admin     bool   // admits nodes; the others acquire
	Broken    string // the safeguard that is removed, if any
	Addrs     []string
	Prefix    string
	Authority string // Unix socket of the authority
	Armed     bool
	Lasting   bool // resources keep their names, so a clock that jumps back leaves locks for hours
	History   string
	Seed      uint64
	MaxTTL    time.Duration
	Suspend   time.Duration // the TTL of the one lease that it takes; 0: it takes many
	Resources int
	Pace      int // of the scenario; 0: not in one
}

// scaled is a time at the scenario's pace.
func (c clientConfig) scaled(d time.Duration) time.Duration { return d * time.Duration(max(1, c.Pace)) }

const (
	tortureLockers = 2  // in each client process
	tortureCallers = 10 // of each Locker
)

// record is an entry of a client's history. An acquisition is written before its lease is used, and again when the
// lease is over.
type record struct {
	ID          uint64
	Resource    uint32
	Generation  uint32
	Token       int64
	Begun, Done time.Duration // on the machine's monotonic clock
	From, To    time.Duration // when the holder considered the lease its own
	Late        uint32        // checks of the lease that succeeded after its deadline
	_           uint32
}

// clientReport is a client's report at its end.
type clientReport struct {
	Failed int64
	Late   int64
	Kept   int64
}

// monotonic is a clock that all processes of the machine share.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// precision is the maximum error of a moment that was translated between clocks.
const precision = 100 * time.Microsecond

// deadlineOf is a lease's deadline on the machine's monotonic clock.
func deadlineOf(lease *lock.Lease) time.Duration {
	for {
		before := monotonic()
		left := lease.Deadline().Left()
		if monotonic()-before < precision { // not stopped in between
			return before + left
		}
	}
}

func playTortureClient(config string) int {
	var c tortureClient
	if err := json.Unmarshal([]byte(config), &c.cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if c.cfg.Broken == "confirm" {
		lock.ConfirmNothing()
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	before := goleak.IgnoreCurrent()
	err := c.run(ctx)
	if err == nil {
		err = goleak.Find(append(testenv.LeakOptions(), before)...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// tortureClient is one client process.
type tortureClient struct {
	cfg       clientConfig
	authority *authorityClient
	history   *os.File
	ids       atomic.Uint64
	failed    atomic.Int64
	late      atomic.Int64
	kept      atomic.Int64 // resources that were not free once they were released
}

func (c *tortureClient) run(ctx context.Context) error {
	c.authority = &authorityClient{path: c.cfg.Authority}
	defer c.authority.close()
	cfg := lock.Config{
		KeyPrefix: lock.Prefix(c.cfg.Prefix), MaxTTL: c.cfg.MaxTTL, Epochs: c.authority, Nodes: nodesAt(c.cfg.Addrs...),
		NodeTimeout: c.cfg.scaled(lock.DefaultNodeTimeout),
	}
	cfg.Brief()
	if c.cfg.Suspend > 0 {
		cfg.NodeTimeout = patient
	}
	if c.cfg.Armed {
		cfg.Armer = c.authority
	}
	var lockers []*lock.Locker
	for range tortureLockers {
		l, err := lock.New(cfg)
		if err != nil {
			return err
		}
		defer l.Close()
		lockers = append(lockers, l)
	}
	switch {
	case c.cfg.Admin:
		return c.admit(ctx, lockers)
	case c.cfg.Suspend > 0:
		return c.suspend(ctx, lockers[0])
	}
	var err error
	if c.history, err = os.OpenFile(c.cfg.History, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	defer c.history.Close()
	random := rand.New(rand.NewPCG(c.cfg.Seed, 1))
	c.ids.Store(random.Uint64() << 32)
	var callers sync.WaitGroup
	for _, l := range lockers {
		for range max(1, tortureCallers/max(1, c.cfg.Pace)) { // fewer leave a busy machine more time for each
			own := rand.New(rand.NewPCG(random.Uint64(), 2))
			callers.Go(func() {
				for ctx.Err() == nil {
					c.once(ctx, l, own)
				}
			})
		}
	}
	callers.Wait()
	return json.NewEncoder(os.Stdout).Encode(clientReport{Failed: c.failed.Load(), Late: c.late.Load(), Kept: c.kept.Load()})
}

// suspend says when it has its one lease, and when that is over.
func (c *tortureClient) suspend(ctx context.Context, l *lock.Locker) error {
	lease, err := l.Acquire(ctx, "r", lock.WithTTL(c.cfg.Suspend))
	if err != nil {
		return err
	}
	fmt.Println("held")
	<-lease.Done()
	fmt.Println("over")
	return nil
}

// admit admits lost nodes, two at once, as careless operators might.
func (c *tortureClient) admit(ctx context.Context, lockers []*lock.Locker) error {
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := admin.Of(lockers[0]).Init(bounded)
	for errors.Is(err, lock.ErrNodeTimeout) && bounded.Err() == nil { // an operator tries again
		err = admin.Of(lockers[0]).Init(bounded)
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var admins sync.WaitGroup
	for _, l := range lockers {
		for i, node := range admin.Of(l).Status(ctx) {
			admins.Go(func() {
				for ; ctx.Err() == nil; rest(ctx, 5*time.Millisecond) {
					if st := admin.Of(l).Status(ctx)[i]; st.Err == nil && !st.Admitted {
						_ = c.readmit(ctx, l, node.Name) // on failure the next round tries again
					}
				}
			})
		}
	}
	admins.Wait()
	return nil
}

func (c *tortureClient) readmit(ctx context.Context, l *lock.Locker, node string) error {
	switch c.cfg.Broken {
	case "marker":
		return l.Forgive(ctx, node)
	case "quarantine":
		return l.AdmitAtOnce(ctx, node)
	}
	return admin.Of(l).Admit(ctx, node)
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// once acquires one lease, in one of many ways, and ends it in one of many.
func (c *tortureClient) once(ctx context.Context, l *lock.Locker, random *rand.Rand) {
	r := record{ID: c.ids.Add(1), Resource: uint32(random.IntN(c.cfg.Resources))}
	if !c.cfg.Lasting {
		r.Generation = uint32(monotonic() / (3 * time.Second))
	}
	name := fmt.Sprintf("r%d.%d", r.Resource, r.Generation)
	ttl := c.cfg.scaled(8*time.Millisecond) + rand.N(c.cfg.MaxTTL/2)
	patience := c.cfg.scaled(300 * time.Millisecond)
	if random.IntN(8) == 0 {
		patience = c.cfg.scaled(time.Duration(random.IntN(3000)) * time.Microsecond) // anywhere during the acquisition
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	try := l.Acquire
	if random.IntN(4) == 0 {
		try = l.TryAcquire
	}
	opts := []lock.AcquireOption{lock.WithTTL(ttl)}
	if random.IntN(8) == 0 {
		opts = append(opts, lock.WithKeepAlive(lock.KeepAlive{Renewals: 3}))
	}
	r.Begun = monotonic()
	lease, err := try(bounded, name, opts...)
	r.Done = monotonic()
	if err != nil {
		c.failed.Add(1)
		rest(ctx, c.cfg.scaled(time.Duration(random.IntN(5000))*time.Microsecond))
		return
	}
	r.Token, r.From, r.To = int64(lease.Ref().Token), r.Done, deadlineOf(lease)
	c.write(r)
	r.Late = c.hold(ctx, lease, ttl, random)
	r.To = min(deadlineOf(lease), monotonic())
	c.write(r)
	switch random.IntN(3) {
	case 0:
		if lease.Release(ctx) == nil && random.IntN(4) == 0 && keeps(ctx, l, lease.Ref()) {
			c.kept.Add(1)
		}
	case 1:
		lease.ReleaseAsync()
	}
}

// keeps reports whether a quorum still has the lock of a lease.
func keeps(ctx context.Context, l *lock.Locker, ref leasing.Ref) bool {
	ins, err := leasing.One(l.Inspect(ctx, ref.Resource))
	return err == nil && ins.Locked && ins.Owner == ref.Owner
}

// hold uses a lease for a while, or until it ends, and counts how often it looked valid after its deadline, even if
// the process was stopped in between.
func (c *tortureClient) hold(ctx context.Context, lease *lock.Lease, ttl time.Duration, random *rand.Rand) (late uint32) {
	for range random.IntN(3) {
		if random.IntN(4) == 0 {
			_ = lease.Extend(ctx, ttl)
		}
		rest(lease.Context(), time.Duration(random.Int64N(int64(ttl))))
		if looksGoodTooLate(lease) {
			late++
		}
		if lease.Context().Err() != nil {
			break
		}
	}
	c.late.Add(int64(late))
	return late
}

func looksGoodTooLate(lease *lock.Lease) bool {
	deadline := lease.Deadline().Time()
	if !time.Now().After(deadline) {
		return false
	}
	good := lease.Context().Err() == nil
	_, err := lease.Grant()
	return (good || err == nil) && lease.Deadline().Time().Equal(deadline) // not extended
}

// write appends to the history with one system call, so that no acquisition is missing from it.
func (c *tortureClient) write(r record) {
	text, err := binary.Append(nil, binary.NativeEndian, r)
	if err == nil {
		_, err = c.history.Write(text)
	}
	if err != nil {
		panic(err)
	}
}
