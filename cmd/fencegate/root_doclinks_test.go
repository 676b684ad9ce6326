package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fenced   = regexp.MustCompile("(?ms)^[ >]*```.*?^[ >]*```")
	mdLink   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	mdTitle  = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// Each link in a page leads to an existing file or heading.
func TestEachLinkOfThePagesLeadsSomewhere(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	pages := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "testdata"):
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		pages++
		for _, wrong := range brokenLinks(t, path) {
			t.Errorf("%s: %s", path, wrong)
		}
		return nil
	})
	if err != nil || pages < 30 {
		t.Fatal(pages, err)
	}
}

func brokenLinks(t *testing.T, path string) (wrong []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mdLink.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
		link := m[1]
		if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
			continue
		}
		file, heading, _ := strings.Cut(link, "#")
		target := path
		if file != "" {
			target = filepath.Join(filepath.Dir(path), filepath.FromSlash(file))
		}
		if _, err := os.Stat(target); err != nil {
			wrong = append(wrong, link+" is not there")
		} else if heading != "" && filepath.Ext(target) == ".md" && !slices.Contains(headings(t, target), heading) {
			wrong = append(wrong, link+" is no heading there")
		}
	}
	return wrong
}

// headings returns the anchors of a page, as GitHub makes them; a repeated one is numbered.
func headings(t *testing.T, path string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, m := range mdTitle.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
		name := anchor(linkText.ReplaceAllString(m[1], "$1"))
		if n := seen[name]; n > 0 {
			all = append(all, fmt.Sprintf("%s-%d", name, n))
		} else {
			all = append(all, name)
		}
		seen[name]++
	}
	return all
}
