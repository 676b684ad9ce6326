package main

import "fmt"

// board collects one line for each goal.
type board struct {
	lines  []string
	missed int
}

// goal notes one goal. Lower is better where atMost.
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
