package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencegate/fencegate/wire"
)

// maxEvent bounds one event, in bytes.
const maxEvent = 64 << 10

// silence is how long a stream of events may bring nothing. The gateway sends a heartbeat every 15 s.
const silence = 45 * time.Second

var errSilent = fmt.Errorf("nothing arrived for %v", silence)

// Gateways yields each gateway's base URL with a client for that gateway alone. Events and sessions exist per
// gateway.
func (c *Client) Gateways() iter.Seq2[string, *Client] {
	return func(yield func(string, *Client) bool) {
		for _, base := range c.bases {
			if !yield(base, &Client{bases: []string{base}, token: c.token, agent: c.agent, http: c.http, clock: c.clock}) {
				return
			}
		}
	}
}

// Events calls each for every event at the gateway after the event with the ID after; "" starts with the oldest one
// kept. With follow it continues until ctx or the connection ends; the error is then ctx's or an [*UnreachableError].
// So it is after 45 s in which nothing arrived, not even the gateway's heartbeat.
// Call it again with the last ID to continue without a gap, as far as events are kept. An error of each ends it too.
// With several gateways it asks one of them; see [Client.Gateways].
func (c *Client) Events(ctx context.Context, after string, follow bool, each func(wire.Event) error) error {
	return c.events(ctx, "", after, follow, each)
}

// Refusals is [Client.Events] for writes that the fence refused. The gateway stores them separately: the latest 512
// are available, however many other events happened.
func (c *Client) Refusals(ctx context.Context, after string, follow bool, each func(wire.Event) error) error {
	return c.events(ctx, "&kind="+wire.EventRefused, after, follow, each)
}

func (c *Client) events(ctx context.Context, more, after string, follow bool, each func(wire.Event) error) error {
	base := c.bases[int(c.last.Load())]
	url := base + "/v1/events?follow=" + strconv.FormatBool(follow) + more
	heard, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer silent.Stop()
	req, err := http.NewRequestWithContext(heard, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream, application/problem+json")
	if after != "" {
		req.Header.Set("Last-Event-ID", after)
	}
	c.introduce(req)
	resp, err := c.http.Do(req)
	if err != nil {
		return c.broken(ctx, base, cmp.Or(context.Cause(heard), err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		b, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
		if err != nil {
			return c.broken(ctx, base, err)
		}
		return problemOf(resp, b)
	}
	ended, err := eachEvent(resp.Body, base, silent, each)
	if err != nil && ended {
		return c.broken(ctx, base, cmp.Or(context.Cause(heard), err))
	}
	if err != nil {
		return err
	}
	if follow {
		return c.broken(ctx, base, io.ErrUnexpectedEOF)
	}
	return nil
}

// eachEvent calls each for every event of a stream. The timer runs while it waits for the next line. ended: the error
// is the stream's.
func eachEvent(stream io.Reader, base string, silent *time.Timer, each func(wire.Event) error) (ended bool, err error) {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxEvent)
	for silent.Reset(silence); lines.Scan(); silent.Reset(silence) {
		silent.Stop() // each may take its time
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok { // the ID and the kind are in the data, too
			continue
		}
		var e wire.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return false, fmt.Errorf("event of %s: %w", base, err)
		}
		if err := each(e); err != nil {
			return false, err
		}
	}
	return true, lines.Err()
}

func (c *Client) broken(ctx context.Context, base string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	c.last.CompareAndSwap(int64(slices.Index(c.bases, base)), int64((slices.Index(c.bases, base)+1)%len(c.bases))) // ask another next time
	return &UnreachableError{URL: base, Cause: err}
}
