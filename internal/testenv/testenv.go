//go:build unix

// Package testenv provides real services for tests: a fresh database with fencegate's migrations, and Redis nodes with
// a fresh key space or nodes of their own.
//
// The guarantee: no test sees another's resources. A missing service fails the test with one clear line, and never
// skips it. When the test binary ends, in any way, no process, container or folder remains.
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		pg := testenv.Postgres(t)          // a database of its own
//		pool := pg.Pool(t)                 // as the superuser
//		writer := pg.WriterURL             // a login that is fence_writer only
//		redis := testenv.Redis(t, 5)       // shared nodes: put redis.Prefix before every key
//		nodes := testenv.OwnRedis(t, 3)    // nodes to kill, freeze and restart
//	}
//
// The services come from the first of these that is available:
//
//  1. FENCEGATE_TEST_POSTGRES_URL, a superuser's address, and
//     FENCEGATE_TEST_REDIS_ADDRS, host:port with commas between them;
//  2. containers, where Docker answers and has, or can pull, the images that
//     FENCEGATE_TEST_POSTGRES_IMAGE and FENCEGATE_TEST_REDIS_IMAGE name
//     (default postgres:17 and valkey/valkey:8);
//  3. postgres and redis-server (or valkey-server) processes from this machine's binaries.
//
// FENCEGATE_TEST_SERVICES=containers or =local admits only the second or the third. A server given by address keeps one
// template database for each set of migrations and the logins fencegate_test_*. Everything else is removed.
package testenv

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the tests, ends the shared services and exits. Call it from TestMain.
func Main(m *testing.M) { os.Exit(Wrap(m).Run()) }

// Runner is the part of [testing.M] that Main needs.
type Runner interface{ Run() int }

// Wrap returns a Runner that ends the shared services after the tests.
func Wrap(m Runner) Runner { return wrapped{m} }

type wrapped struct{ m Runner }

func (w wrapped) Run() int {
	code := w.m.Run()
	if err := release(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	return code
}

// VerifyMain runs the tests, ends the shared services, fails if goroutines remain, and exits. Call it from TestMain.
func VerifyMain(m *testing.M, also ...goleak.Option) {
	goleak.VerifyTestMain(Wrap(m), append(also, libraries()...)...)
}

// LeakOptions excuses the shared services' goroutines in a leak check that runs while they are up, such as
// goleak.VerifyNone(t) in a single test.
func LeakOptions() []goleak.Option {
	return append(libraries(), goleak.IgnoreAnyFunction("github.com/fencegate/fencegate/internal/child.(*Process).run"))
}

// libraries excuses goroutines of libraries that outlive their closed owner: process-wide clocks, and goroutines that
// check every few seconds whether their owner has gone.
func libraries() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/gofiber/utils/v2.StartTimeStampUpdater.func1.1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),          // ten seconds
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"), // a second
	}
}

// closers end the shared services, in reverse order.
var closers struct {
	sync.Mutex
	list []func() error
}

func atEnd(f func() error) {
	closers.Lock()
	defer closers.Unlock()
	closers.list = append(closers.list, f)
}

func release() error {
	closers.Lock()
	defer closers.Unlock()
	var errs []error
	for _, f := range slices.Backward(closers.list) {
		errs = append(errs, f())
	}
	closers.list = nil
	return errors.Join(errs...)
}

// startPatience bounds the start of a service whose image is present.
const startPatience = 90 * time.Second

// fatal ends the test with one line: what is missing and what to do.
func fatal(t testing.TB, err error) {
	t.Helper()
	t.Fatalf("testenv: %v", err)
}
