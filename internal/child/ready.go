//go:build unix

package child

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// lookEvery is the pause between two checks of a process that starts.
const lookEvery = 10 * time.Millisecond

// errExited reports a process that ended with exit code 0: that server does not serve either.
var errExited = errors.New("exit status 0")

// Ready returns when look succeeds. It fails when the process ends or ctx does, with the last error of look.
func (p *Process) Ready(ctx context.Context, look func(context.Context) error) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			ended := p.err
			if ended == nil {
				ended = errExited
			}
			return fmt.Errorf("it ended: %w; before that: %w", ended, err)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}
