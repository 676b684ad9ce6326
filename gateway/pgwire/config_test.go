package pgwire

import (
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

func TestConfigNeedsOnlyAnAddress(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{Addr: "127.0.0.1:5432"}); err != nil {
		t.Errorf("the address alone: %v", err)
	}
	for name, c := range map[string]struct {
		cfg   Config
		field string
	}{
		"no address":      {Config{}, "Addr"},
		"another network": {Config{Addr: "x", Network: "udp"}, "Network"},
		"negative limit":  {Config{Addr: "x", Options: Options{MaxConnections: -1}}, "MaxConnections"},
		"negative time":   {Config{Addr: "x", Options: Options{LoginTimeout: -1}}, "LoginTimeout"},
	} {
		_, err := New(c.cfg)
		if invalid, ok := errors.AsType[*fence.InvalidError](err); !ok || invalid.Field != c.field {
			t.Errorf("%s: %v, want field %s", name, err, c.field)
		}
	}
}
