package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/internal/pgtext"
)

// logFlags are the log level and format of serve.
type logFlags struct {
	level, format string
	enough        *slog.LevelVar // the least level that is logged
}

func (l *logFlags) register(f *pflag.FlagSet) {
	f.StringVar(&l.level, "log-level", "info", "the least level that is logged: debug, info, warn or error")
	f.StringVar(&l.format, "log-format", "text", "text or json")
	l.enough = new(slog.LevelVar)
}

var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

func (l *logFlags) validate() error {
	if _, ok := logLevels[l.level]; !ok {
		return usage(fmt.Errorf("--log-level %q: it must be debug, info, warn or error", l.level))
	}
	if l.format != "text" && l.format != "json" {
		return usage(fmt.Errorf("--log-format %q: it must be text or json", l.format))
	}
	return nil
}

// apply sets the logger's level to the flag's.
func (l *logFlags) apply() { l.enough.Set(logLevels[l.level]) }

func (l *logFlags) open(w io.Writer) (*slog.Logger, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	l.apply()
	how := &slog.HandlerOptions{Level: l.enough, ReplaceAttr: readable}
	if l.format == "json" {
		return slog.New(slog.NewJSONHandler(w, how)), nil
	}
	return slog.New(slog.NewTextHandler(w, how)), nil
}

// readable logs an error with a failed connection to PostgreSQL in one line.
func readable(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(pgtext.Of(err))
	}
	return a
}
