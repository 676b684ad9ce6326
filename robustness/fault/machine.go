package fault

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

var machineFaults = []Fault{
	{
		Name: "disk-full", What: "the blobs' file system is full, or nearly", Weight: 3, Needs: NeedsDisk,
		Shortest: 300 * time.Millisecond, Longest: 6 * time.Second, Tail: time.Second, Run: diskFull,
	},
	{
		Name: "busy", What: "every core is busy with other work", Weight: 3,
		Shortest: time.Second, Longest: 6 * time.Second, Tail: time.Second, Run: busy,
	},
}

func diskFull(ctx context.Context, s *Stage) error {
	disk := s.Disk()
	if disk == nil {
		return fmt.Errorf("%w: the blobs have no file system of their own", ErrNotDone)
	}
	release, ok := s.one(ctx, "disk")
	if !ok {
		return nil
	}
	defer release()
	leave := []int64{0, 0, 4 << 10, 128 << 10, 1 << 20}[s.Rand.IntN(5)]
	s.logf("%d bytes stay free", leave)
	err := disk.Fill(ctx, leave)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", ErrNotDone, err)
	} else {
		err = nil
	}
	wait(ctx, s.For)
	if again := disk.Free(); again != nil {
		return errors.Join(err, fmt.Errorf("%w: %w", ErrNotHealed, again))
	}
	return err
}

// everyProcess is the client of a span that slows the whole machine.
const everyProcess = -1

func busy(ctx context.Context, s *Stage) error {
	n := runtime.NumCPU() * (1 + s.Rand.IntN(4))
	s.logf("%d processes", n)
	defer s.stopped(everyProcess, history.Now())
	if err := s.Spin(ctx, n, s.For); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrNotDone, err)
	}
	return nil
}
