package demo

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Screen prints the story, one line for each step, with the seconds since its
// start. With Slow it explains each step first and gives time to read.
type Screen struct {
	Out   io.Writer
	Color bool
	Slow  time.Duration // pause after each explanation; zero leaves explanations out
	start time.Time
}

const (
	plain = ""
	green = "\x1b[32m"
	red   = "\x1b[31m"
	dim   = "\x1b[2m"
	reset = "\x1b[0m"
)

// Start starts the clock.
func (s *Screen) Start(title string) {
	s.start = time.Now()
	_, _ = fmt.Fprintf(s.Out, "%s\n\n", title)
}

// Step prints an action.
func (s *Screen) Step(who, what string) { s.line(plain, "·", who, what) }

// Good prints a success.
func (s *Screen) Good(who, what string) { s.line(green, "✓", who, what) }

// Bad prints a refusal.
func (s *Screen) Bad(who, what string) { s.line(red, "✗", who, what) }

func (s *Screen) line(color, mark, who, what string) {
	_, _ = fmt.Fprintf(s.Out, "%s  %s %-9s %s\n", s.paint(dim, fmt.Sprintf("%5.1fs", time.Since(s.start).Seconds())), s.paint(color, mark), who, s.paint(color, what))
}

// Explain prints the lines and waits for the reader, if the demo is slow.
func (s *Screen) Explain(ctx context.Context, lines ...string) {
	if s.Slow == 0 {
		return
	}
	_, _ = fmt.Fprintln(s.Out)
	for _, l := range lines {
		_, _ = fmt.Fprintf(s.Out, "        %s\n", s.paint(dim, l))
		select {
		case <-time.After(s.Slow):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Screen) paint(color, text string) string {
	if !s.Color || color == plain {
		return text
	}
	return color + text + reset
}
