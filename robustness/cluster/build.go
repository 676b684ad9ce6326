package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// clockFile is added to package time: a wall clock with the offset in the file that FENCEGATE_CLOCK names, as in
// package clockshim's shim for C. The monotonic clock is unchanged.
const clockFile = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var clockOffset *int64

func init() {
	path, ok := syscall.Getenv("FENCEGATE_CLOCK")
	if !ok {
		return
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	syscall.Close(fd)
	if err == nil {
		clockOffset = (*int64)(unsafe.Pointer(&page[0]))
	}
}

func shiftedNow() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = runtimeNow()
	if clockOffset == nil {
		return sec, nsec, mono
	}
	offset := atomic.LoadInt64(clockOffset)
	sec += offset / 1e9
	rest := int64(nsec) + offset%1e9
	switch {
	case rest < 0:
		sec, rest = sec-1, rest+1e9
	case rest >= 1e9:
		sec, rest = sec+1, rest-1e9
	}
	return sec, int32(rest), mono
}
`

// ClockOverlay writes to a folder the sources that give a Go program a settable wall clock, and returns the
// replacements for [Build].
func ClockOverlay(ctx context.Context, dir string) (map[string]string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	text, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		return nil, err
	}
	now := bytes.Index(text, []byte("\nfunc Now() Time {"))
	call := []byte("runtimeNow()")
	if now < 0 || !bytes.Contains(text[now:], call) {
		return nil, errors.New("time.Now is not as expected: a new version of Go?")
	}
	changed := append(bytes.Clone(text[:now]), bytes.Replace(text[now:], call, []byte("shiftedNow()"), 1)...)
	overlay := map[string]string{}
	for name, content := range map[string][]byte{"time.go": changed, "zz_fencegate_clock.go": []byte(clockFile)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
		overlay[filepath.Join(source, name)] = path
	}
	return overlay, nil
}

// Build builds the package in the current folder's module tree, with the overlays' replacements: path → path. The
// program is named after the package and placed in dir; source is the package's folder.
func Build(ctx context.Context, source, dir string, overlays ...map[string]string) (program string, err error) {
	all := map[string]string{}
	for _, overlay := range overlays {
		maps.Copy(all, overlay)
	}
	text, err := json.Marshal(map[string]any{"Replace": all})
	if err != nil {
		return "", err
	}
	if source, err = filepath.Abs(source); err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	file := filepath.Join(dir, filepath.Base(source)+".overlay.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", err
	}
	program = filepath.Join(dir, filepath.Base(source))
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", file, "-o", program, ".")
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(ctx.Err(), fmt.Errorf("go build %s: %w: %s", source, err, bytes.TrimSpace(out)))
	}
	return program, nil
}
