package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The deployments use only flags and variables that serve has.
func TestDeploymentsUseFlagsThatServeHas(t *testing.T) {
	t.Parallel()
	flags := newServe(env{}).Flags()
	given := regexp.MustCompile(`(?m)^(?:\s*- |ExecStart=.* serve |.* )?--([a-z][a-z0-9-]*)`)
	named := regexp.MustCompile(`FENCEGATE_([A-Z0-9_]+)`)
	for _, file := range []string{"systemd/fencegate.service", "kubernetes/fencegate.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		var set []string
		for line := range bytes.Lines(text) {
			if bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
				line = named.Find(line) // comments name variables, and other commands' flags
			}
			for word := range bytes.FieldsSeq(line) {
				if m := given.FindSubmatch(word); m != nil {
					set = append(set, string(m[1]))
				}
			}
			for _, m := range named.FindAllSubmatch(line, -1) {
				set = append(set, strings.ToLower(strings.ReplaceAll(string(m[1]), "_", "-")))
			}
		}
		if len(set) < 3 {
			t.Errorf("%s: found only %q", file, set)
		}
		for _, name := range set {
			if flags.Lookup(name) == nil {
				t.Errorf("%s uses --%s, which serve does not have", file, name)
			}
		}
	}
}

// The deployments' option files are accepted once the files that they name exist.
func TestDeployedOptionsPassConfigCheck(t *testing.T) {
	t.Parallel()
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var objects struct {
		Data map[string]string
	}
	if err := yaml.Unmarshal([]byte(read("kubernetes/fencegate.yaml")), &objects); err != nil { // the first object
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "master.key"), masterKey)
	writeFile(t, filepath.Join(dir, "token"), strings.Repeat("t", 32))
	certificates(t, dir, 300*day)
	for name, text := range map[string]string{"fencegate.yaml": read("fencegate.yaml"), "kubernetes": objects.Data["fencegate.yaml"]} {
		file := filepath.Join(dir, name)
		writeFile(t, file, strings.ReplaceAll(text, "/etc/fencegate/", dir+"/"))
		vars := map[string]string{"FENCEGATE_POSTGRES_URL": "postgres://fencegate_gateway:geheim@db/app"} // from the secret
		if code, stdout, stderr := cli(t, vars, "config", "check", "--config", file); code != exitOK || stderr != "" {
			t.Errorf("%s: %d %s%s", name, code, stdout, stderr)
		}
	}
}

// The image's health check asks the address in FENCEGATE_GATEWAY, or port 7070.
func TestTheHealthCheckOfComposeAsksThePortThatServeListensOn(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	gateway := file.Services["gateway"]
	for _, arg := range gateway.Command {
		if port, is := strings.CutPrefix(arg, "--api-listen=0.0.0.0:"); is {
			if asked := gateway.Environment["FENCEGATE_GATEWAY"]; asked != "http://127.0.0.1:"+port {
				t.Errorf("serve listens on port %s; the health check asks %q", port, asked)
			}
			return
		}
	}
	t.Error("there is no --api-listen")
}

// The unit's user can't read /etc/fencegate. Each file that the options name there is a credential, and a variable of
// the unit names its copy.
func TestTheUnitGivesEachFileThatTheOptionsName(t *testing.T) {
	t.Parallel()
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	unit := read("systemd/fencegate.service")
	all, copies, unreadable := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "unreadable")
	writeFile(t, filepath.Join(all, "master.key"), masterKey)
	writeFile(t, filepath.Join(all, "token"), strings.Repeat("t", 32))
	writeFile(t, filepath.Join(all, "pgpass"), "*:*:*:*:geheim\n")
	certificates(t, all, 300*day)
	for _, m := range regexp.MustCompile(`(?m)^LoadCredential=(\S+):/etc/fencegate/(\S+)$`).FindAllStringSubmatch(unit, -1) {
		text, err := os.ReadFile(filepath.Join(all, m[2]))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(copies, m[1]), string(text))
	}
	vars := map[string]string{}
	for _, line := range regexp.MustCompile(`(?m)^Environment=(.*)$`).FindAllStringSubmatch(unit, -1) {
		for assignment := range strings.FieldsSeq(line[1]) {
			name, value, _ := strings.Cut(assignment, "=")
			vars[name] = strings.ReplaceAll(value, "%d", copies)
		}
	}
	file := filepath.Join(all, "fencegate.yaml")
	writeFile(t, file, strings.ReplaceAll(read("fencegate.yaml"), "/etc/fencegate", unreadable))
	if code, stdout, stderr := cli(t, vars, "config", "check", "--config", file); code != exitOK || stderr != "" {
		t.Errorf("config check: %d %s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := cli(t, vars, "config", "print", "--config", file); code != exitOK || strings.Contains(stdout, unreadable) {
		t.Errorf("config print: %d %s%s", code, stdout, stderr)
	}
	for name, value := range vars {
		if _, err := os.Stat(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
