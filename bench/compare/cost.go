package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// spent is the processor time of the side's processes so far, including PostgreSQL's ended sessions. Linux only;
// elsewhere it is 0.
func (s *side) spent() (sum time.Duration, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	postmaster := s.pg.Pid()
	own := map[int]bool{s.gateway.Pid(): true, s.redis.Pid(): true, postmaster: true}
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil { // the process has just ended
			continue
		}
		p, err := parseStat(string(data))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if own[p.pid] || p.parent == postmaster {
			sum += p.self
		}
		if p.pid == postmaster {
			sum += p.children
		}
	}
	return sum, nil
}

type processTime struct {
	pid, parent    int
	self, children time.Duration // of children that were waited for
}

// parseStat parses /proc/PID/stat; see proc(5). A program's name may hold anything.
func parseStat(text string) (p processTime, err error) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return p, errors.New("it has no name in brackets")
	}
	fields := strings.Fields(text[end+1:])
	if len(fields) < 15 {
		return p, fmt.Errorf("it has %d fields behind the name", len(fields))
	}
	var ticks [4]int64
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(fields[11+i], 10, 64); err != nil {
			return p, err
		}
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100
	p.self, p.children = time.Duration(ticks[0]+ticks[1])*tick, time.Duration(ticks[2]+ticks[3])*tick
	if p.pid, err = strconv.Atoi(strings.TrimSpace(text[:open])); err != nil {
		return p, err
	}
	p.parent, err = strconv.Atoi(fields[1])
	return p, err
}
