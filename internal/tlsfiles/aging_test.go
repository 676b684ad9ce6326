package tlsfiles_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/tlsfiles"
)

const day = 24 * time.Hour

// write makes a certificate of this name and life, with its key, and appends both to the file.
func write(t *testing.T, file, name string, from, to time.Time) {
	t.Helper()
	made := certs.New(&x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to})
	before, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	certs.Replace(t, file, slices.Concat(before, made.Cert, made.Key))
}

// A warning names the file and the date.
func TestCertificatesThatEndAreWarnedOf(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		lives []time.Duration // from and to, each from now
		cert  string
		ca    string
	}{
		"long":        {[]time.Duration{-day, 300 * day}, "", ""},
		"ends":        {[]time.Duration{-300 * day, 13 * day}, "expires on 2026-06-02T12:00:00Z", "expires on 2026-06-02T12:00:00Z"},
		"expired":     {[]time.Duration{-300 * day, -day}, "expired on 2026-05-19T12:00:00Z", "expired on 2026-05-19T12:00:00Z"},
		"not yet":     {[]time.Duration{day, 300 * day}, "is not valid before 2026-05-21T12:00:00Z", "is not valid before 2026-05-21T12:00:00Z"},
		"of one day":  {[]time.Duration{-12 * time.Hour, 12 * time.Hour}, "", ""},
		"its evening": {[]time.Duration{-20 * time.Hour, 4 * time.Hour}, "expires on 2026-05-20T16:00:00Z", "expires on 2026-05-20T16:00:00Z"},
		"several":     {[]time.Duration{-300 * day, 300 * day, -300 * day, 2 * day, -300 * day, 3 * day}, "expires on 2026-05-22T12:00:00Z", ""},
	} {
		file := filepath.Join(t.TempDir(), "crt")
		for i := 0; i < len(c.lives); i += 2 {
			write(t, file, "one", now.Add(c.lives[i]), now.Add(c.lives[i+1]))
		}
		var want []string
		if c.cert != "" {
			want = append(want, "certificate "+file+" "+c.cert)
		}
		if c.ca != "" {
			want = append(want, "client authority "+file+" (CN=one) "+c.ca)
		}
		got := tlsfiles.Files{Cert: file, Key: file, ClientCA: file}.Warnings(now)
		if strings.Join(got, "; ") != strings.Join(want, "; ") {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// Each authority is judged by itself; one that was renewed under its name, by the certificate that counts.
func TestEachClientAuthorityIsWarnedOf(t *testing.T) {
	t.Parallel()
	type life struct {
		name     string
		from, to time.Duration // from now
	}
	now := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		in   []life
		want []string
	}{
		"independent":         {[]life{{"a", -300 * day, day}, {"b", -day, 1500 * day}}, []string{"(CN=a) expires on 2026-05-21T12:00:00Z"}},
		"both end":            {[]life{{"b", -300 * day, 2 * day}, {"a", -300 * day, day}}, []string{"(CN=a) expires on 2026-05-21T12:00:00Z", "(CN=b) expires on 2026-05-22T12:00:00Z"}},
		"renewed":             {[]life{{"a", -300 * day, day}, {"a", -day, 1500 * day}}, nil},
		"renewed, its first":  {[]life{{"a", -day, 1500 * day}, {"a", -600 * day, -2 * day}}, nil},
		"successor ahead":     {[]life{{"a", -300 * day, 100 * day}, {"a", 50 * day, 1500 * day}}, nil},
		"successor needed":    {[]life{{"a", 5 * day, 1500 * day}, {"a", -300 * day, 2 * day}}, []string{"(CN=a) expires on 2026-05-22T12:00:00Z"}},
		"successor too late":  {[]life{{"a", -300 * day, -day}, {"a", day, 1500 * day}}, []string{"(CN=a) is not valid before 2026-05-21T12:00:00Z"}},
		"all expired":         {[]life{{"a", -300 * day, -2 * day}, {"a", -200 * day, -day}}, []string{"(CN=a) expired on 2026-05-19T12:00:00Z"}},
		"another not yet":     {[]life{{"a", -day, 300 * day}, {"b", day, 1500 * day}}, []string{"(CN=b) is not valid before 2026-05-21T12:00:00Z"}},
		"expired, of another": {[]life{{"a", -300 * day, -day}, {"b", -day, 1500 * day}}, []string{"(CN=a) expired on 2026-05-19T12:00:00Z"}},
	} {
		file := filepath.Join(t.TempDir(), "ca")
		for _, l := range c.in {
			write(t, file, l.name, now.Add(l.from), now.Add(l.to))
		}
		var want []string
		for _, said := range c.want {
			want = append(want, "client authority "+file+" "+said)
		}
		if got := (tlsfiles.Files{ClientCA: file}).Warnings(now); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// A certificate that replaces another is examined when it is offered.
func TestANewCertificateThatEndsIsWarnedOf(t *testing.T) {
	t.Parallel()
	file, now := filepath.Join(t.TempDir(), "pem"), time.Now().Truncate(time.Second)
	write(t, file, "one", now.Add(-day), now.Add(300*day))
	var log strings.Builder
	cfg, err := tlsfiles.Files{Cert: file, Key: file}.Load(tlsfiles.Use{Port: "the S3 port"}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if ends := tlsfiles.NotAfter(cfg); !ends.Equal(now.Add(300 * day)) {
		t.Errorf("ends at %v", ends)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	write(t, file, "one", now.Add(-300*day), now.Add(day))
	if ends := tlsfiles.NotAfter(cfg); !ends.Equal(now.Add(day)) {
		t.Errorf("ends at %v", ends)
	}
	if said := log.String(); !strings.Contains(said, "level=WARN") || !strings.Contains(said, file+" expires on ") {
		t.Error(said)
	}
}
