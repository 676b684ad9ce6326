package runner

import (
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// find returns the file of a command, as a shell with this environment finds it.
func find(environ []string, command string) (path string, err error) {
	if strings.Contains(command, "/") {
		path, err = exec.LookPath(command)
	} else if path = inPath(variable(environ, "PATH"), command); path == "" {
		err = &exec.Error{Name: command, Err: exec.ErrNotFound}
	}
	if err != nil {
		return "", &fence.InvalidError{Field: "command", Reason: "can't be run: " + err.Error()}
	}
	return path, nil
}

// inPath returns the file of a program in the folders of path; "": there is none. Relative folders are skipped.
func inPath(path, name string) string {
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if file, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return file
		}
	}
	return ""
}

func variable(env []string, name string) string {
	for _, kv := range env {
		if n, v, ok := strings.Cut(kv, "="); ok && n == name {
			return v
		}
	}
	return ""
}
