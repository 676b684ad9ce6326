package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/wire"
)

func newActivity(e env) *cobra.Command {
	var g gatewayFlags
	var asJSON, follow, refused, table bool
	cmd := &cobra.Command{
		Use:   "activity [--table [PREFIX]]",
		Short: "Print what happens at a gateway: refused writes, and leases that come and go",
		Long: `Print what happens at a gateway: refused writes; leases that were acquired, released, lost or
revoked, or that ran out; nodes that came and went. First come the events that the gateway keeps:
the latest 2048, or with --refused the latest 512 refusals, which other events do not displace. New
events follow until you interrupt it. Each gateway has its own events: behind a balancer, name all of
them with --gateway, separated by commas. What they keep is then printed in the order of time.

With --table it shows who holds what, too, of all resources or of those with a prefix: a table on a
terminal, which is redrawn each second; elsewhere a line for each resource that is held, and then
the events.

PostgreSQL counts refused writes per table, also those that bypass the gateways:

  SELECT relation, refused FROM fence.protected`,
		Example: `  fencegate activity
  fencegate activity --table orders/
  fencegate activity --refused --follow=false
  fencegate activity --json | jq 'select(.kind == "revoked")'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && !table:
				return usage(errors.New("PREFIX needs --table"))
			case table && (asJSON || refused):
				return usage(errors.New("--table excludes --json and --refused"))
			}
			c, err := g.client(cmd.Context(), e)
			if err != nil {
				return err
			}
			ctx, stop := withReader(cmd.Context(), cmd.OutOrStdout())
			defer stop()
			if table {
				w := &activityTable{client: c, out: cmd.OutOrStdout(), note: cmd.ErrOrStderr(), rows: maxRows, prefix: argument(args, 0)}
				return w.run(ctx, follow)
			}
			show := printEvent
			if asJSON {
				show = func(out io.Writer, e wire.Event) error { return printLine(out, e) }
			}
			return showEvents(ctx, streamsOf(c, refused), follow, cmd.ErrOrStderr(), func(e wire.Event) error { return show(cmd.OutOrStdout(), e) })
		},
	}
	g.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each event as a line of JSON")
	cmd.Flags().BoolVar(&table, "table", false, "show the held resources and the events")
	cmd.Flags().BoolVar(&refused, "refused", false, "print the refused writes only")
	cmd.Flags().BoolVar(&follow, "follow", true, "print new events as they come; false: print the kept ones, and end")
	return cmd
}

const (
	maxRows   = 1000 // most held resources that are shown
	maxPages  = 20   // most requests for them
	drawEvery = time.Second
	maxFeed   = 100
)

// activityTable shows the held resources and the events.
type activityTable struct {
	client    *client.Client
	out, note io.Writer
	prefix    string
	rows      int

	mu     sync.Mutex
	latest []wire.Event // refusals and ends of leases, newest last
}

// heldResources returns the held resources, up to rows; more reports that there are others.
func (w *activityTable) heldResources(ctx context.Context) (held []wire.Listed, more bool, err error) {
	ask := client.ResourcesRequest{Prefix: w.prefix, Held: true, Limit: w.rows}
	for range maxPages {
		page, err := w.client.Resources(ctx, ask)
		if err != nil {
			return held, false, err
		}
		held = append(held, page.Resources...)
		if page.Next == nil {
			return held, false, nil
		}
		if ask.After, ask.Limit = *page.Next, w.rows-len(held); ask.Limit <= 0 {
			break
		}
	}
	return held, true, nil
}

// about reports whether an event concerns the watched prefix.
func (w *activityTable) about(e wire.Event) bool {
	return w.prefix == "" || strings.HasPrefix(e.Resource, w.prefix) || strings.HasPrefix(e.Needed, w.prefix)
}

// processOf shows a table if the output is a terminal, else lines.
func (w *activityTable) run(ctx context.Context, follow bool) error {
	file, ok := w.out.(*os.File)
	if !ok || !follow || !term.IsTerminal(int(file.Fd())) {
		return w.lines(ctx, follow)
	}
	return w.table(ctx, func() (width, height int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil {
			return 80, 24
		}
		return width, height
	})
}

// lines prints the held resources, and then the events.
func (w *activityTable) lines(ctx context.Context, follow bool) error {
	held, more, err := w.heldResources(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // interrupted, or nobody reads
		}
		return err
	}
	for _, one := range held {
		if _, err := fmt.Fprintf(w.out, "held %s token=%s by=%s left=%s waiters=%d\n", oneLine(one.Resource), one.Token, oneLine(one.Holder), leftOf(one), one.Waiters); err != nil {
			return ignoreNoReader(err)
		}
	}
	if more {
		_, _ = fmt.Fprintf(w.note, "fencegate activity: more are held; name a prefix\n")
	}
	return showEvents(ctx, streamsOf(w.client, false), follow, w.note, func(e wire.Event) error {
		if !w.about(e) {
			return nil
		}
		return printEvent(w.out, e)
	})
}

// table redraws until ctx ends.
func (w *activityTable) table(ctx context.Context, size func() (width, height int)) error {
	reading, cancel := context.WithCancel(ctx)
	var feed sync.WaitGroup
	ended := make(chan error, 1)
	feed.Go(func() { ended <- w.feed(reading) })
	defer feed.Wait()
	defer cancel()
	tick := time.NewTicker(drawEvery)
	defer tick.Stop()
	_, _ = io.WriteString(w.out, "\x1b[2J")
	for {
		status, err := w.client.Status(ctx)
		var held []wire.Listed
		more := false
		if err == nil {
			held, more, err = w.heldResources(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if problem, ok := errors.AsType[*client.Problem](err); ok && !retryable(problem) {
			return err // for example a missing right: retrying does not help
		}
		width, height := size()
		if _, err := w.out.Write(w.draw(status, held, more, err, width, height)); err != nil {
			return ignoreNoReader(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-tick.C:
		}
	}
}

// feed collects events until ctx ends, or until they are refused, for example for want of a right.
func (w *activityTable) feed(ctx context.Context) error {
	streams := streamsOf(w.client, false)
	for {
		err := showEvents(ctx, streams, true, io.Discard, func(e wire.Event) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.about(e) {
				w.latest = append(w.latest, e)
				w.latest = w.latest[max(0, len(w.latest)-maxFeed):]
			}
			return nil
		})
		if ctx.Err() != nil || !retryable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnect):
		}
	}
}

// draw renders one screen: the held resources above, the events below.
func (w *activityTable) draw(status wire.Status, held []wire.Listed, more bool, failed error, width, height int) []byte {
	if width < 1 || height < 1 { // the terminal does not report its size
		width, height = 80, 24
	}
	lines := []string{summary(status)}
	if failed != nil {
		lines = []string{"fencegate activity: " + oneLine(failed.Error()) + "; trying again"}
	}
	w.mu.Lock()
	events := w.latest
	w.mu.Unlock()
	room := max(2, height-len(lines)-4)
	forHeld := min(len(held), max(room/2, room-len(events)))
	title := "HELD NOW"
	if hidden := len(held) - forHeld; hidden > 0 || more {
		title += fmt.Sprintf(" (%d more%s)", hidden, map[bool]string{true: ", and others"}[more])
	}
	lines = append(lines, "", fmt.Sprintf("%-40s %12s %10s %3s  %s", title, "TOKEN", "LEFT", "W", "HOLDER"))
	for _, one := range held[:forHeld] {
		lines = append(lines, fmt.Sprintf("%-40s %12s %10s %3d  %s", oneLine(one.Resource), one.Token, leftOf(one), one.Waiters, oneLine(one.Holder)))
	}
	lines = append(lines, "")
	for _, e := range events[max(0, len(events)-max(0, room-forHeld)):] {
		var line bytes.Buffer
		_ = printEvent(&line, e)
		lines = append(lines, strings.TrimRight(line.String(), "\n"))
	}
	var picture bytes.Buffer
	picture.WriteString("\x1b[H")
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			picture.WriteString("\r\n")
		}
		picture.WriteString(truncated(line, width) + "\x1b[K")
	}
	picture.WriteString("\x1b[J")
	return picture.Bytes()
}

// truncated shortens a line to the terminal's width.
func truncated(line string, width int) string {
	runes := []rune(line)
	return string(runes[:min(len(runes), max(1, width))])
}

// summary describes the gateway's state in a line.
func summary(s wire.Status) string {
	words := []string{"fencegate " + oneLine(s.Version), "up " + (time.Duration(s.UptimeMS) * time.Millisecond).Round(time.Second).String(), "postgresql " + s.Postgres.State, s.Lock.Kind + " " + s.Lock.State}
	for _, n := range s.Lock.Nodes {
		text := oneLine(n.Name) + " " + n.State
		if n.QuarantineMS > 0 {
			text += fmt.Sprintf(" %ds", (n.QuarantineMS+999)/1000)
		}
		words = append(words, text)
	}
	for _, count := range []struct {
		name string
		n    *int64
	}{{"held here", s.HeldLeases}, {"waiting", s.Waiters}, {"sessions", s.Sessions}, {"objects", s.Objects}} {
		if count.n != nil {
			words = append(words, fmt.Sprintf("%s %d", count.name, *count.n))
		}
	}
	return strings.Join(words, " | ")
}
