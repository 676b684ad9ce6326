package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/wire"
)

const (
	// reconnect is the pause before a broken stream is requested again.
	reconnect = time.Second
	// keptTimeout bounds how long each of several gateways may take to return its kept events.
	keptTimeout = 5 * time.Second
)

// stream is the events of one gateway.
type stream struct {
	url  string
	ask  func(ctx context.Context, after string, follow bool, each func(wire.Event) error) error
	last string // id of the last event that was shown
}

// streamsOf returns a stream for each gateway. refused limits them to writes that the fence refused.
func streamsOf(c *client.Client, refused bool) (all []*stream) {
	for url, one := range c.Gateways() {
		s := &stream{url: url, ask: one.Events}
		if refused {
			s.ask = one.Refusals
		}
		all = append(all, s)
	}
	return all
}

// retryable reports whether a retry may succeed: the gateway, or a balancer before it, is unavailable or busy.
func retryable(err error) bool {
	if problem, ok := errors.AsType[*client.Problem](err); ok {
		return problem.Status == http.StatusTooManyRequests || problem.Status >= 500 && problem.Status != http.StatusNotImplemented
	}
	_, away := errors.AsType[*client.UnreachableError](err)
	return away
}

// processOf extracts the id of a gateway's process from an event's id.
func processOf(id string) string {
	name, _, _ := strings.Cut(id, "-")
	return name
}

// showEvents shows events until ctx ends, which is no error. A broken stream resumes after the last event. The kept events
// of several gateways are merged by time. A gateway that does not answer does not block the others' events.
func showEvents(ctx context.Context, streams []*stream, follow bool, note io.Writer, show func(wire.Event) error) error {
	if len(streams) == 1 {
		return streams[0].follow(ctx, follow, false, note, show)
	}
	if err := showKept(ctx, streams, follow, note, show); err != nil || !follow {
		return err
	}
	streams = slices.CompactFunc(slices.SortedStableFunc(slices.Values(streams), func(a, b *stream) int { return strings.Compare(processOf(a.last), processOf(b.last)) }),
		func(a, b *stream) bool { return a.last != "" && processOf(a.last) == processOf(b.last) }) // one gateway under two names
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var running sync.WaitGroup
	errs := make([]error, len(streams))
	for i, s := range streams {
		running.Go(func() {
			defer cancel() // the output has no reader, or a right is missing: retrying does not help
			err := s.follow(ctx, true, true, note, func(e wire.Event) error {
				mu.Lock()
				defer mu.Unlock()
				return show(e)
			})
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", s.url, err)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// showKept shows the events that the gateways keep. With follow, an unavailable gateway is noted, and asked again later.
func showKept(ctx context.Context, streams []*stream, follow bool, note io.Writer, show func(wire.Event) error) error {
	found, errs := make([][]wire.Event, len(streams)), make([]error, len(streams))
	var asking sync.WaitGroup
	for i, s := range streams {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, keptTimeout)
			defer cancel()
			errs[i] = s.ask(ctx, "", false, func(e wire.Event) error {
				found[i], s.last = append(found[i], e), e.ID
				return nil
			})
			if errors.Is(errs[i], context.DeadlineExceeded) {
				errs[i] = &client.UnreachableError{URL: s.url, Cause: errs[i]}
			}
		})
	}
	asking.Wait()
	if ctx.Err() != nil {
		return nil //nolint:nilerr // interrupted, or nobody reads
	}
	all := slices.Concat(found...)
	slices.SortStableFunc(all, func(a, b wire.Event) int { return a.Time.Compare(b.Time) })
	shown := make(map[string]bool)
	for _, e := range all {
		if shown[e.ID] { // one gateway under two names
			continue
		}
		shown[e.ID] = e.ID != ""
		if err := show(e); err != nil {
			return ignoreNoReader(err)
		}
	}
	for i, err := range errs {
		if _, named := errors.AsType[*client.UnreachableError](err); err != nil && !named {
			err = fmt.Errorf("%s: %w", streams[i].url, err)
		}
		switch {
		case err == nil:
			errs[i] = nil
		case retryable(err) && follow:
			_, _ = fmt.Fprintf(note, "fencegate: %v; trying again\n", err)
			errs[i] = nil
		case retryable(err):
			errs[i] = withHint(fmt.Errorf("%w; its events are missing above", err), exitUnavailable, "start it, or leave it out of --gateway")
		default:
			errs[i] = err
		}
	}
	return errors.Join(errs...)
}

// follow shows one gateway's events. With retry it also retries before the first event was shown.
func (s *stream) follow(ctx context.Context, follow, retry bool, note io.Writer, show func(wire.Event) error) error {
	lost := retry && s.last == "" // kept has already noted it
	for {
		err := s.ask(ctx, s.last, follow, func(e wire.Event) error {
			s.last, lost = e.ID, false
			return show(e)
		})
		switch {
		case ctx.Err() != nil, errors.Is(err, errNoReader):
			return nil
		case !retryable(err) || s.last == "" && !retry:
			return err
		case !lost:
			lost = true
			_, _ = fmt.Fprintf(note, "fencegate: %v; trying again\n", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnect):
		}
	}
}

// printEvent prints an event as a line.
func printEvent(out io.Writer, e wire.Event) error {
	words := []string{e.Time.UTC().Format(time.RFC3339), e.Kind}
	add := func(when bool, format string, a ...any) {
		if when {
			words = append(words, fmt.Sprintf(format, a...))
		}
	}
	add(e.Code != "", "%s", e.Code)
	add(e.Kind == wire.EventMissed && e.Missed > 0, "%d events: the reader was too slow", e.Missed)
	add(e.Kind == wire.EventMissed && e.Missed == 0, "some events: the reader was too slow, the gateway restarted, or another gateway answered")
	add(e.Node != "", "node=%s", oneLine(e.Node))
	add(e.Kind == wire.EventSwept, "deleted=%d", e.Deleted)
	add(e.Surface != "", "%s", e.Surface)
	add(e.Statement != "", "%s", e.Statement)
	add(e.Table != "", "%s", oneLine(e.Table))
	add(e.Resource != "", "resource=%s", oneLine(e.Resource))
	add(e.Needed != "", "needs=%s", oneLine(e.Needed))
	add(e.Presented != 0, "token=%s", e.Presented)
	add(e.Recorded != 0, "fence=%s", e.Recorded)
	add(e.Holder != "", "by=%s", oneLine(e.Holder))
	add(e.Login != "", "login=%s", oneLine(e.Login))
	add(e.Client != "", "client=%s", e.Client)
	add(e.App != "", "app=%s", oneLine(e.ShortApp()))
	_, err := fmt.Fprintln(out, strings.Join(words, " "))
	return outputError(err)
}
