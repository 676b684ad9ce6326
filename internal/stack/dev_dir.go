//go:build unix

package stack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unicode"

	"github.com/fencegate/fencegate/fence"
)

// openDir opens the stack's state folder and takes its lock, which the kernel frees with this process; an ephemeral
// stack has a temporary one.
func openDir(cfg DevConfig) (*Stack, error) {
	switch {
	case cfg.Ephemeral && cfg.Dir != "":
		return nil, &fence.InvalidError{Field: "data", Reason: "names a folder, but an ephemeral stack keeps nothing: give one of the two"}
	case cfg.Ephemeral:
		return New("")
	}
	dir := cfg.Dir
	if dir == "" {
		var err error
		if dir, err = dataDir(); err != nil {
			return nil, err
		}
	}
	if strings.ContainsFunc(dir, unicode.IsControl) {
		return nil, &fence.InvalidError{Field: "data", Reason: "contains a control character"}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	// Other users may traverse it: PostgreSQL runs as another user when we are root.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	if err := ownDir(dir); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("the folder %s is in use by another fencegate: stop it, or name another folder with --data", dir), lock.Close())
	}
	s := &Stack{Dir: dir}
	s.AtClose(lock.Close)
	return s, nil
}

// ownDir refuses a folder with files that this stack did not create, such as those of serve below /var/lib.
func ownDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	for _, e := range entries {
		if e.Name() == "lock" && e.Type().IsRegular() {
			return nil // the stack creates the lock first
		}
	}
	if len(entries) > 0 {
		return &fence.InvalidError{Field: "data", Reason: fmt.Sprintf("is %s, which is not empty and was not made by fencegate dev: name another folder with --data", dir)}
	}
	return nil
}

// dataDir is the folder for the state of the user's programs. For root it is the system's, beside that of serve,
// because PostgreSQL's user can't enter root's home.
func dataDir() (string, error) {
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "fencegate"), nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/fencegate-dev", nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no home folder to keep state in; name one with --data, or use --ephemeral: %w", err)
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support", "fencegate"), nil
	}
	return filepath.Join(home, ".local", "share", "fencegate"), nil
}

// masterKey returns the folder's key, created at first use. It is written under another name first, so that a crash
// leaves no partial key.
func masterKey(dir string) (string, error) {
	path := filepath.Join(dir, "master.key")
	text, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(text)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	line := NewMasterKey()
	if err := os.WriteFile(path+".new", []byte(line+"\n"), 0o600); err != nil {
		return "", err
	}
	return line, os.Rename(path+".new", path)
}
