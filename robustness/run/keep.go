package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fencegate/fencegate/robustness/fault"
	"github.com/fencegate/fencegate/robustness/judge"
	"github.com/fencegate/fencegate/robustness/machine"
)

// keep prints the findings, and keeps the evidence.
func (p *player) keep(round int, plan []fault.Event, report judge.Report) error {
	var formatted strings.Builder
	if err := judge.Format(&formatted, report); err != nil {
		return err
	}
	text := formatted.String()
	p.sayf("found in round %d:\n%s", round, text)
	for _, e := range plan {
		p.sayf("  %v", e)
	}
	if p.o.Keep == "" {
		return nil
	}
	to := filepath.Join(p.o.Keep, fmt.Sprintf("seed-%d-round-%d", p.o.Seed, round))
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range plan {
		fmt.Fprintln(&lines, e)
	}
	if err := os.WriteFile(filepath.Join(to, "report.txt"), []byte(text+"\n"+lines.String()), 0o600); err != nil {
		return err
	}
	return p.copyEvidence(to)
}

// copyEvidence copies histories, logs, and what the machine did.
func (p *player) copyEvidence(to string) error {
	files := []string{filepath.Join(p.dir, machine.File)}
	for path := range p.readers {
		files = append(files, path)
	}
	for _, g := range p.c.Gateways {
		files = append(files, g.LogFile)
	}
	for _, c := range p.c.Clients() {
		files = append(files, c.LogFile)
	}
	for _, s := range p.c.Servers() {
		files = append(files, s.LogFile())
	}
	if p.c.Blobs != nil {
		files = append(files, p.c.Blobs.LogFile)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.Base(filepath.Dir(path)) + "-" + filepath.Base(path)
		if err := os.WriteFile(filepath.Join(to, name), text, 0o600); err != nil { //nolint:gosec // names that the run made
			return err
		}
	}
	return nil
}
