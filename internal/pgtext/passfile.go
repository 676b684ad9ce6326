package pgtext

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

var passfileSetting = regexp.MustCompile(`(?:^|\s)passfile\s*=\s*('(?:[^'\\]|\\.)*'|\S+)`)

// CheckPassfile returns an error if an address, or else PGPASSFILE, names a password file that can't be read, and no
// password is given otherwise. pgx connects without a password then, and PostgreSQL's answer does not tell why. The
// error continues a sentence that begins with the address's name.
func CheckPassfile(address string) error {
	file, names := passfileIn(address), "names"
	if file == "" {
		file, names = os.Getenv("PGPASSFILE"), "has no password, and PGPASSFILE names"
	}
	if file == "" {
		return nil
	}
	err := readable(file)
	if err == nil {
		return nil
	}
	if config, malformed := pgconn.ParseConfig(address); malformed != nil || config.Password != "" {
		return nil // the caller reports a malformed address
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	return fmt.Errorf("%s the password file %s, which can't be read: %w", names, file, err)
}

// readable reports why a file can't be read. A pipe is left to pgx: it can be read once only, and opening it waits for its
// writer.
func readable(file string) error {
	info, err := os.Stat(file) //nolint:gosec // G703: the path is of the operator, whose rights this program has
	if err != nil || info.Mode()&fs.ModeNamedPipe != 0 {
		return err
	}
	if info.IsDir() {
		return errors.New("is a directory")
	}
	f, err := os.Open(file) //nolint:gosec // G703: as above
	if err != nil {
		return err
	}
	return f.Close()
}

func passfileIn(address string) string {
	if strings.HasPrefix(address, "postgres://") || strings.HasPrefix(address, "postgresql://") {
		if u, err := url.Parse(address); err == nil {
			return u.Query().Get("passfile")
		}
		_, query, _ := strings.Cut(address, "?") // several hosts with ports are no URL to net/url
		values, _ := url.ParseQuery(query)
		return values.Get("passfile")
	}
	if m := passfileSetting.FindStringSubmatch(address); m != nil {
		return strings.NewReplacer(`\\`, `\`, `\'`, `'`).Replace(strings.Trim(m[1], "'"))
	}
	return ""
}
