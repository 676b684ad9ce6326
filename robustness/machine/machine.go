// Package machine measures what the machine does while a run goes on, to tell a slow product from a slow machine.
//
// The guarantee: [Yardstick.Paces] says for about each second how much of it the run lost. Time counts as lost only if
// both hold: a fixed piece of work took longer than in the best case of the run, and a fifth of the machine's processor
// time went to programs that are not the run's. So a run that slows itself, as with a gateway that never rests, has no
// excuse. Nine tenths of a second are lost at most, so a call that hangs is late on any machine. Time that the disk
// takes for a small write is lost, too, whoever keeps it busy.
//
// The work is done five times a second: to wake up in time, to compute for about 5 ms (two time slices of the
// scheduler's, as what is awake for a shorter time is preferred), a round trip over loopback, and a write with fsync. It
// takes 3% of one core.
package machine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

const (
	every  = 200 * time.Millisecond
	second = int64(time.Second)
	// others is the part of the machine's processor time from which on other programs count.
	others = 0.2
	// written is what a write to the disk may take.
	written = int64(100 * time.Millisecond)
	// most is the part of a time that can be lost.
	most = 0.9
)

// Yardstick measures until it is closed.
type Yardstick struct {
	work  work
	file  *os.File // of the paces, for readers
	quit  context.CancelFunc
	ended chan struct{}

	mu    sync.Mutex
	paces history.Paces
	ahead int64
	next  chan struct{} // closed at the next pace
	err   error
}

// File is the name of the file with the paces.
const File = "machine.jsonl"

// Watch starts to measure. Its files are in a folder on the disk that the run uses.
func Watch(dir string) (y *Yardstick, err error) {
	y = &Yardstick{ended: make(chan struct{}), next: make(chan struct{})}
	made := y // a return of nil replaces y
	defer func() {
		if err != nil {
			err = errors.Join(err, made.work.close(), made.file.Close())
		}
	}()
	if y.file, err = os.OpenFile(filepath.Join(dir, File), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	if err = y.work.open(dir); err != nil {
		return nil, err
	}
	before, err := processors()
	if err != nil {
		return nil, err
	}
	y.ahead = ahead()
	ctx, quit := context.WithCancel(context.Background())
	y.quit = quit
	go y.run(ctx, before)
	return y, nil
}

// Close ends the measurement. It reports why it could not go on, if it could not.
func (y *Yardstick) Close() error {
	y.quit()
	<-y.ended
	return errors.Join(y.err, y.work.close(), y.file.Close())
}

// Paces are the paces up to now.
func (y *Yardstick) Paces() history.Paces {
	y.mu.Lock()
	defer y.mu.Unlock()
	return slices.Clone(y.paces)
}

// Ahead is the most by which the wall clock was ahead of the monotonic one so far. A clock that somebody sets changes it.
func (y *Yardstick) Ahead() int64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.ahead
}

// Left is how much of d is left since a moment, without the time that was lost. It waits until the pace of the present is
// known.
func (y *Yardstick) Left(ctx context.Context, since int64, d time.Duration) time.Duration {
	for now := history.Now(); ; {
		y.mu.Lock()
		paces, next := y.paces, y.next
		y.mu.Unlock()
		if len(paces) > 0 && paces[len(paces)-1].To >= now {
			return time.Duration(paces.After(since, int64(d)) - now)
		}
		select {
		case <-next:
		case <-y.ended:
			return 0
		case <-ctx.Done():
			return 0
		}
	}
}

func (y *Yardstick) run(ctx context.Context, before usage) {
	defer close(y.ended)
	tick := time.NewTimer(0)
	defer tick.Stop()
	now := measured{until: history.Now()}
	for from := now.until; ; {
		due := now.until + int64(every)
		tick.Reset(time.Duration(due - history.Now()))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if y.err = now.add(&y.work, due); y.err != nil {
			return
		}
		if now.until-from < second {
			continue
		}
		after, err := processors()
		if err != nil {
			y.err = err
			return
		}
		if y.err = y.note(now.pace(from, after.since(before))); y.err != nil {
			return
		}
		from, before, now = now.until, after, measured{until: now.until, least: now.least}
	}
}

func (y *Yardstick) note(p history.Pace) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.paces = append(y.paces, p)
	y.ahead = max(y.ahead, ahead())
	close(y.next)
	y.next = make(chan struct{})
	line, err := json.Marshal(p)
	if err == nil {
		_, err = y.file.Write(append(line, '\n'))
	}
	return err
}

// measured sums up the work of about a second.
type measured struct {
	until              int64
	times              int64
	took, worst, least int64
	slow               float64 // how much of the time was lost, if to others
	disk, waited       int64   // the longest write, and what writes took beyond their bound
}

// add does the work, which was due at a moment.
func (m *measured) add(w *work, due int64) error {
	if err := w.compute(); err != nil {
		return err
	}
	done := history.Now()
	if err := w.write(); err != nil {
		return err
	}
	end := history.Now()
	took, disk := done-due, end-done
	if m.least == 0 || took < m.least {
		m.least = took
	}
	m.slow += float64(done-m.until) * (1 - float64(m.least)/float64(took))
	m.times, m.took, m.worst = m.times+1, m.took+took, max(m.worst, took)
	m.disk, m.waited = max(m.disk, disk), m.waited+max(disk-written, 0)
	m.until = end
	return nil
}

// pace judges the second by whom the processors worked for.
func (m *measured) pace(from int64, foreign float64) history.Pace {
	lost := float64(m.waited)
	if foreign >= others {
		lost += m.slow
	}
	return history.Pace{
		From: from, To: m.until, Lost: int64(min(lost, most*float64(m.until-from))),
		Took: m.took / m.times, Least: m.least, Worst: m.worst, Disk: m.disk, Others: foreign,
	}
}

// work is the yardstick's work.
type work struct {
	listener net.Listener
	conn     net.Conn
	disk     *os.File
}

func (w *work) open(dir string) (err error) {
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	go func() {
		echo, err := w.listener.Accept()
		if err != nil {
			return
		}
		defer echo.Close()
		for b := make([]byte, 1); err == nil; {
			if _, err = echo.Read(b); err == nil {
				_, err = echo.Write(b)
			}
		}
	}()
	if w.conn, err = net.Dial("tcp", w.listener.Addr().String()); err != nil {
		return err
	}
	w.disk, err = os.OpenFile(filepath.Join(dir, "yardstick"), os.O_CREATE|os.O_WRONLY, 0o600)
	return err
}

// rounds take about 5 ms.
const rounds = 3_000_000

// compute computes, and makes a round trip.
func (w *work) compute() error {
	x := uint64(88172645463325252)
	for range rounds {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	b := []byte{byte(x)}
	if _, err := w.conn.Write(b); err != nil {
		return err
	}
	_, err := w.conn.Read(b)
	return err
}

func (w *work) write() error {
	if _, err := w.disk.WriteAt(make([]byte, 4096), 0); err != nil {
		return err
	}
	return w.disk.Sync()
}

func (w *work) close() error {
	var errs []error
	if w.listener != nil {
		errs = append(errs, w.listener.Close())
	}
	if w.conn != nil {
		errs = append(errs, w.conn.Close())
	}
	return errors.Join(append(errs, w.disk.Close())...)
}

// ahead is an upper bound of how far the wall clock is ahead of the monotonic one: the narrowest of some readings.
func ahead() int64 {
	var bound, width int64
	for range 10 {
		before := history.Now()
		wall := time.Now().UnixNano()
		if w := history.Now() - before; width == 0 || w < width {
			bound, width = wall-before, cmp.Or(w, 1)
		}
	}
	return bound
}
