package main

import (
	"fmt"
	"slices"
	"strings"
)

// table holds the clients' results, by client, presented credentials, and case.
type table struct {
	clients []string
	version map[string]string
	got     map[string]map[string]outcomes
}

func newTable() *table {
	return &table{version: map[string]string{}, got: map[string]map[string]outcomes{}}
}

func (t *table) add(client, grant string, got outcomes) {
	if t.got[client] == nil {
		t.clients = append(t.clients, client)
		t.got[client] = map[string]outcomes{}
	}
	t.got[client][grant] = got
}

// known lists unexpected outcomes, and why they occur.
var known = map[string]map[string]string{
	// versitygw takes the line's end for a part of the checksum; nothing is stored.
	"minio-go chunk-signed put, trailing checksum": {"current": "400 BadDigest", "stale": wanted["stale"], "none": wanted["none"], "cell": "refused: BadDigest"},
	// The keys are refused one by one, in an answer that s3cmd does not read.
	"s3cmd delete many": {"current": "ok", "stale": "unseen", "none": "unseen", "cell": "fenced, but it shows no refusal"},
}

// cell is one case of one client. A client must not omit a case:
// it must report that it does not offer it, whatever is presented.
func (t *table) cell(client, name string) (text string, wrong int) {
	var odd []string
	offered := false
	for _, grant := range []string{"current", "stale", "none"} {
		outcome, said := t.got[client][grant][name]
		want := wanted[grant]
		if is, odd := known[client+" "+name]; odd {
			want = is[grant]
		}
		if slices.Contains(reads, name) {
			want = "ok"
		}
		offered = offered || outcome != notOffered
		if !said {
			outcome = "not tried"
		}
		if outcome != notOffered && !fits(outcome, want) || outcome == notOffered && t.got[client]["current"][name] != notOffered {
			odd = append(odd, fmt.Sprintf("%s: %s (wanted %s)", grant, outcome, want))
		}
	}
	switch {
	case len(odd) > 0:
		return strings.Join(odd, "; "), len(odd)
	case !offered:
		return "–", 0
	case known[client+" "+name] != nil:
		return known[client+" "+name]["cell"], 0
	case slices.Contains(reads, name):
		return "reads", 0
	}
	return "fenced", 0
}

// print prints the table, and counts the wrong cells.
func (t *table) print() (wrong int) {
	head := []string{"case"}
	for _, c := range t.clients {
		head = append(head, strings.TrimSpace(c+" "+t.version[c]))
	}
	fmt.Println(rowOf(head) + "\n|" + strings.Repeat("---|", len(head)))
	for _, name := range append(slices.Clone(writes), reads...) {
		row := []string{name}
		for _, c := range t.clients {
			text, n := t.cell(c, name)
			row = append(row, text)
			wrong += n
		}
		fmt.Println(rowOf(row))
	}
	fmt.Println("\nfenced: done with the current grant; with a superseded one 412 StaleFencingToken, with none 403 MissingFencingToken, and nothing changed. –: not offered.")
	return wrong
}

func rowOf(cells []string) string { return "| " + strings.Join(cells, " | ") + " |" }
