package main

import (
	"fmt"
	"strings"
)

// board collects one line for each goal, and our failures. There is no contention, or the resource is free in time, so
// a failure has no excuse.
type board struct {
	lines  []string
	missed int
	failed []string
}

// fails records how often a contender failed, if it is ours.
func (b *board) fails(contender, where string, times int) {
	if times > 0 && strings.HasPrefix(contender, "fencegate") {
		b.failure(contender, where, times)
	}
}

// failure records how often any contender failed.
func (b *board) failure(contender, where string, times int) {
	b.failed = append(b.failed, fmt.Sprintf("%s failed %d times: %s", contender, times, where))
}

// goal records one goal. With atMost, lower is better.
func (b *board) goal(name, ours, peer string, ratio, want float64, atMost bool) {
	met, sign := ratio >= want, ">="
	if atMost {
		met, sign = ratio <= want, "<="
	}
	answer := "yes"
	if !met {
		answer = "no"
		b.missed++
	}
	b.lines = append(b.lines, fmt.Sprintf("goal %s ours=%s peer=%s ratio=%.2f want=%s%.2f met=%s", name, ours, peer, ratio, sign, want, answer))
}

// print prints the goals and returns how many were missed.
func (b *board) print() int {
	fmt.Println()
	for _, line := range b.lines {
		fmt.Println(line)
	}
	return b.missed
}
