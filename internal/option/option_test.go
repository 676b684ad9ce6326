package option_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/option"
)

type config struct {
	URL, Cert, Key, Domain, Level string
	Limit, Reserve                int
	Every, Wait                   time.Duration
	Names                         []string
}

func (c *config) table() option.Table {
	return option.Table{
		{Field: "URL", At: &c.URL, Required: true, Flag: "url"},
		{Field: "Cert", At: &c.Cert, With: "Key", Flag: "cert"},
		{Field: "Key", At: &c.Key, Flag: "key"},
		{Field: "Level", At: &c.Level, Default: "info", Check: option.OneOf("debug", "info", "error"), Flag: "level"},
		{Field: "Limit", At: &c.Limit, Default: 7, Check: option.Positive, Flag: "limit"},
		{Field: "Reserve", At: &c.Reserve, Default: 3, Check: func(any) string { return "" }},
		{Field: "Every", At: &c.Every, Default: time.Hour, Check: option.Positive, Aliases: map[string]string{"every": " times"}, Flag: "every"},
		{Field: "Wait", At: &c.Wait, Flag: "wait", Preset: time.Minute},
		{Field: "Names", At: &c.Names, Needs: []string{"Cert"}, Flag: "name"},
	}
}

// In Go a zero value stands for the default; as a flag it is what somebody wrote.
func TestAFaultNamesTheFieldOrTheFlag(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change        func(*config)
		fields, flags string
	}{
		"nothing":         {func(*config) {}, "", ""},
		"a zero limit":    {func(c *config) { c.Limit = 0 }, "", "--limit must be 1 or more"},
		"a limit below 0": {func(c *config) { c.Limit = -1 }, "Limit must be 1 or more", "--limit must be 1 or more"},
		"no interval":     {func(c *config) { c.Every = 0 }, "", "--every must be more than 0"},
		"a negative wait": {func(c *config) { c.Wait = -1 }, "Wait is negative", "--wait is negative"},
		"no wait":         {func(c *config) { c.Wait = 0 }, "", ""},
		"its own check":   {func(c *config) { c.Reserve = -1 }, "", ""},
		"no level":        {func(c *config) { c.Level = "" }, "", `--level "": it must be debug, info or error`},
		"another level":   {func(c *config) { c.Level = "x" }, `Level "x": it must be debug, info or error`, `--level "x": it must be debug, info or error`},
		"no URL":          {func(c *config) { c.URL = "" }, "URL is missing", "--url is missing (or $url)"},
		"half a pair":     {func(c *config) { c.Key = "k" }, "Cert and Key are needed together", "--cert and --key are needed together"},
		"names":           {func(c *config) { c.Names = []string{"a"} }, "Names needs Cert", "--name needs --cert"},
		"an empty list":   {func(c *config) { c.Names = []string{} }, "", ""},
	} {
		var cfg config
		cfg.table().SetPresets()
		cfg.URL = "u"
		c.change(&cfg)
		variable := func(flag string) string { return "$" + flag }
		for want, all := range map[string][]error{"fields: " + c.fields: cfg.table().Faults(), "flags: " + c.flags: cfg.table().Flags().FlagFaults(variable)} {
			got := "fields: "
			if want[:2] == "fl" {
				got = "flags: "
			}
			if err := errors.Join(all...); err != nil {
				got += err.Error()
				if _, ok := errors.AsType[*fence.InvalidError](err); !ok {
					t.Errorf("%s: %T", name, err)
				}
			}
			if got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
}

func TestDefaultsAreSetWhereAFieldIsZero(t *testing.T) {
	t.Parallel()
	cfg := config{Limit: 9}
	cfg.table().SetDefaults()
	if cfg.Limit != 9 || cfg.Every != time.Hour || cfg.Level != "info" || cfg.Wait != 0 {
		t.Errorf("%+v", cfg)
	}
	cfg.table().SetPresets()
	if cfg.Limit != 9 || cfg.Wait != time.Minute {
		t.Errorf("for flags: %+v", cfg)
	}
}

func TestANestedTableKeepsItsRelations(t *testing.T) {
	t.Parallel()
	cfg, listen := config{URL: "u", Cert: "c"}, ""
	table := append(cfg.table().Within("Part"), option.Row{Field: "Listen", At: &listen, Flag: "listen"})
	table.Need("Listen", "Part.Cert")
	var texts []string
	table.Bind(map[string]any{"Part.Names": &texts})
	err := errors.Join(table.Faults()...)
	if err == nil || err.Error() != "Part.Cert and Part.Key are needed together\nPart.Cert needs Listen" {
		t.Error(err)
	}
	for field, want := range map[string]string{"Part.Every": "--every", "every": "--every times", "Every": "", "Part.Reserve": ""} {
		if got := table.Flag(field); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}
