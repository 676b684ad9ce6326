package fault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var blobsFaults = []Fault{
	{
		Name: "blobs-kill", What: "the S3 service of the blobs is killed and started again", Weight: 4, Needs: NeedsBlobs,
		Shortest: 10 * time.Millisecond, Longest: 4 * time.Second, Tail: 3 * time.Second, Run: blobsKill,
	},
	{
		Name: "blobs-freeze", What: "the S3 service of the blobs stands still", Weight: 4, Needs: NeedsBlobs,
		Shortest: 100 * time.Millisecond, Longest: 6 * time.Second, Tail: time.Second, Run: blobsFreeze,
	},
}

// theBlobs claims the service.
func (s *Stage) theBlobs(ctx context.Context) (Blobs, func(), error) {
	service := s.Blobs()
	if service == nil {
		return nil, nil, fmt.Errorf("%w: the blobs are files in a folder", ErrNotDone)
	}
	release, ok := s.one(ctx, "blobs/run")
	if !ok {
		return nil, nil, nil
	}
	return service, release, nil
}

func blobsKill(ctx context.Context, s *Stage) error {
	service, release, err := s.theBlobs(ctx)
	if service == nil {
		return err
	}
	defer release()
	if err = service.Kill(); err != nil {
		err = fmt.Errorf("%w: %w", ErrNotDone, err)
	}
	wait(ctx, s.For)
	after, cancel := healing(ctx)
	defer cancel()
	if again := service.Restart(after); again != nil {
		return errors.Join(err, fmt.Errorf("%w: %s: %w", ErrNotHealed, service.Name(), again))
	}
	return err
}

func blobsFreeze(ctx context.Context, s *Stage) error {
	service, release, err := s.theBlobs(ctx)
	if service == nil {
		return err
	}
	defer release()
	return freeze(ctx, []Blobs{service}, s.For)
}
