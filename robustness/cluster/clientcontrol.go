package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/internal/child"
)

// LogFile is the file with the standard error of its processes.
func (k *Client) LogFile() string { return filepath.Join(k.Config.Dir, "log") }

// Histories returns the files that its processes wrote, in order.
func (k *Client) Histories() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]string{}, k.histories...)
}

// Pid is its process's id, of the last one if none runs.
func (k *Client) Pid() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cmd.Process.Pid
}

// Alive reports that its process has not ended.
func (k *Client) Alive() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.done:
		return false
	default:
		return true
	}
}

// Err returns how its process ended.
func (k *Client) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// Freeze stops the process. Programs that it has started go on, in groups of their own. A signal to its group could stop
// one that has not become its program yet, for which the process waits in vfork(2): neither would ever be stopped.
func (k *Client) Freeze() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.done:
		return fmt.Errorf("%s: %w", k.Name, os.ErrProcessDone)
	default:
	}
	k.frozen = true
	return child.Freeze(k.cmd.Process.Pid)
}

// Thaw resumes them.
func (k *Client) Thaw() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.frozen {
		return nil
	}
	k.frozen = false
	return ended(syscall.Kill(-k.cmd.Process.Pid, syscall.SIGCONT))
}

// ended ignores the error of a process that has ended.
func ended(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// Kill ends the process and its children like kill -9, and returns when it is gone.
func (k *Client) Kill() error {
	k.mu.Lock()
	pid, done := k.cmd.Process.Pid, k.done
	k.frozen = false
	k.mu.Unlock()
	select {
	case <-done:
		return nil
	default:
	}
	err := ended(syscall.Kill(-pid, syscall.SIGKILL))
	<-done
	return err
}

// Restart kills the process if it runs and starts another with
// the same number and its own history. It waits for orders.
func (k *Client) Restart(ctx context.Context) error {
	if err := k.Kill(); err != nil {
		return err
	}
	k.talk.Lock()
	defer k.talk.Unlock()
	return k.start(ctx)
}

// SetClock sets the offset of its wall clock. Its program must be built with [ClockOverlay].
func (k *Client) SetClock(d time.Duration) error { return k.clock.Set(d) }

// Stop ends its input and waits for its end, at most for patience.
func (k *Client) Stop(patience time.Duration) error {
	k.mu.Lock()
	in, done := k.in, k.done
	k.mu.Unlock()
	_ = in.Close() // it may have ended
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		return k.Err()
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s does not end within %v", k.Name, patience), k.Kill())
	}
}

func (k *Client) heal() error { return errors.Join(k.clock.Set(0), k.Thaw()) }

func (k *Client) close() error { return errors.Join(k.Kill(), k.clock.Close()) }

// Remove stops a client and removes its relays.
func (c *Cluster) Remove(k *Client) error {
	c.mu.Lock()
	for i, other := range c.clients {
		if other == k {
			c.clients = append(c.clients[:i], c.clients[i+1:]...)
			break
		}
	}
	c.mu.Unlock()
	return errors.Join(k.close(), c.Net.Remove(k.Name))
}
