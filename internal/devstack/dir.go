package devstack

import (
	"crypto/rand"
	"encoding/hex"
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
	"github.com/fencegate/fencegate/internal/child"
)

// openDir creates the state folder and takes its lock, which the kernel frees with this process.
func (s *Stack) openDir(cfg Config) error {
	switch {
	case cfg.Ephemeral && cfg.Dir != "":
		return &fence.InvalidError{Field: "data", Reason: "names a folder, but an ephemeral stack keeps nothing: give one of the two"}
	case cfg.Ephemeral:
		return s.openTemporary()
	}
	dir := cfg.Dir
	if dir == "" {
		var err error
		if dir, err = dataDir(); err != nil {
			return err
		}
	}
	if strings.ContainsFunc(dir, unicode.IsControl) {
		return &fence.InvalidError{Field: "data", Reason: "contains a control character"}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	// Other users may traverse it: PostgreSQL runs as another user when we are root.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	if err := ownDir(dir); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("the folder %s is in use by another fencegate: stop it, or name another folder with --data", dir), lock.Close())
	}
	s.undo = append(s.undo, lock.Close)
	s.dir = dir
	return nil
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

func (s *Stack) openTemporary() error {
	dir, err := os.MkdirTemp(passable(os.TempDir()), "fencegate-")
	if err != nil {
		return err
	}
	s.dir = dir
	s.undo = append(s.undo, func() error {
		defer child.Removed(dir)
		return os.RemoveAll(dir)
	})
	if err := child.RemoveAtDeath(dir); err != nil {
		return err
	}
	return os.Chmod(dir, 0o711)
}

// passable returns dir. For root it returns /var/tmp if PostgreSQL's user can't enter dir.
func passable(dir string) string {
	if info, err := os.Stat(dir); os.Geteuid() == 0 && err == nil && info.Mode().Perm()&0o001 == 0 {
		return "/var/tmp"
	}
	return dir
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
	var key [32]byte
	_, _ = rand.Read(key[:])
	line := "k1:" + hex.EncodeToString(key[:])
	if err := os.WriteFile(path+".new", []byte(line+"\n"), 0o600); err != nil {
		return "", err
	}
	return line, os.Rename(path+".new", path)
}
