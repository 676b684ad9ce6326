package main

import (
	"io"
	"log/slog"

	"github.com/fencegate/fencegate/internal/option"
	"github.com/fencegate/fencegate/internal/pgtext"
)

// logFlags are the log level and format of serve.
type logFlags struct {
	level, format string
	enough        *slog.LevelVar // the least level that is logged
}

func (l *logFlags) table() option.Table {
	return option.Table{
		{Field: "log level", At: &l.level, Default: "info", Check: option.OneOf("debug", "info", "warn", "error"), Flag: "log-level", Common: true, Reload: option.Applies, Help: "the least level that is logged: debug, info, warn or error"},
		{Field: "log format", At: &l.format, Default: "text", Check: option.OneOf("text", "json"), Flag: "log-format", Help: "text or json"},
	}
}

// apply sets the logger's level to the flag's.
func (l *logFlags) apply() {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.level)) // the flag has been checked
	l.enough.Set(level)
}

func (l *logFlags) open(w io.Writer) (*slog.Logger, error) {
	if err := first(flagFaults(l.table())); err != nil {
		return nil, err
	}
	l.enough = new(slog.LevelVar)
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
