//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that PostgreSQL runs as; nil: this process's own.
type account struct {
	name     string
	uid, gid uint32
}

// unprivileged chooses the user for PostgreSQL: this process's, unless that is root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil is the account of this process
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errU := strconv.ParseUint(u.Uid, 10, 32)
		gid, errG := strconv.ParseUint(u.Gid, 10, 32)
		if errU == nil && errG == nil && uid != 0 {
			return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as: run as an ordinary user")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own gives a file or folder to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// reaches returns an error for the first folder on the path that the account may not enter.
func (a *account) reaches(path string) error {
	if a == nil {
		return nil
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		mode := info.Mode().Perm()
		passes := ok && (st.Uid == a.uid && mode&0o100 != 0 || st.Gid == a.gid && mode&0o010 != 0 || mode&0o001 != 0)
		if !passes {
			return fmt.Errorf("PostgreSQL can't run as root, and user %s, whom it would run as, may not enter %s: choose a folder elsewhere, such as below /var/lib, or run as an ordinary user", a.name, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}
