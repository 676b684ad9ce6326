package observability_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard has the fields of Grafana's dashboard schema (version 39) that a panel needs. Unknown fields are refused,
// because Grafana ignores misspelled ones.
type dashboard struct {
	UID           string   `json:"uid"`
	Title         string   `json:"title"`
	Description   string   `json:"description"`
	Tags          []string `json:"tags"`
	SchemaVersion int      `json:"schemaVersion"`
	Version       int      `json:"version"`
	Editable      bool     `json:"editable"`
	GraphTooltip  int      `json:"graphTooltip"`
	Timezone      string   `json:"timezone"`
	Refresh       string   `json:"refresh"`
	Time          struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"time"`
	Annotations struct {
		List []json.RawMessage `json:"list"`
	} `json:"annotations"`
	Links      []json.RawMessage `json:"links"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type variable struct {
	Name       string            `json:"name"`
	Label      string            `json:"label"`
	Type       string            `json:"type"`
	Datasource *datasource       `json:"datasource"`
	Query      json.RawMessage   `json:"query"`
	Current    struct{}          `json:"current"`
	Hide       int               `json:"hide"`
	IncludeAll bool              `json:"includeAll"`
	AllValue   string            `json:"allValue"`
	Multi      bool              `json:"multi"`
	Options    []json.RawMessage `json:"options"`
	Refresh    int               `json:"refresh"`
	Sort       int               `json:"sort"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID          int               `json:"id"`
	Type        string            `json:"type"`
	Title       string            `json:"title"`
	Description string            `json:"description"`
	Collapsed   bool              `json:"collapsed"`
	Panels      []json.RawMessage `json:"panels"`
	Datasource  *datasource       `json:"datasource"`
	GridPos     struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	} `json:"gridPos"`
	Targets     []target `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit string   `json:"unit"`
			Min  *float64 `json:"min"`
		} `json:"defaults"`
		Overrides []json.RawMessage `json:"overrides"`
	} `json:"fieldConfig"`
	Options map[string]any `json:"options"`
}

type target struct {
	RefID        string      `json:"refId"`
	Datasource   *datasource `json:"datasource"`
	Expr         string      `json:"expr"`
	LegendFormat string      `json:"legendFormat"`
	Range        bool        `json:"range"`
	Instant      bool        `json:"instant"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	file, err := os.Open("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		t.Fatalf("dashboard.json: %v", err)
	}
	return d
}

func TestTheDashboardIsOneThatGrafanaDraws(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion != 39 || d.Time.From == "" || d.Time.To == "" {
		t.Errorf("uid %q, title %q, schema %d, time %+v", d.UID, d.Title, d.SchemaVersion, d.Time)
	}
	variables := []string{"__rate_interval"} // Grafana's own
	for _, v := range d.Templating.List {
		if !slices.Contains([]string{"datasource", "query"}, v.Type) || v.Type == "query" && v.Datasource == nil {
			t.Errorf("the variable %s: %+v", v.Name, v)
		}
		variables = append(variables, v.Name)
	}
	ids, places := make(map[int]bool), make(map[string]string)
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("%q: its id %d is missing or taken, or it has no title", p.Title, p.ID)
		}
		ids[p.ID] = true
		if g := p.GridPos; g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%q lies outside of the grid: %+v", p.Title, g)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				cell := fmt.Sprint(x, ",", y)
				if places[cell] != "" {
					t.Fatalf("%q lies on %q", p.Title, places[cell])
				}
				places[cell] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		checkPanel(t, p, variables)
	}
}

func checkPanel(t *testing.T, p panel, variables []string) {
	t.Helper()
	if !slices.Contains([]string{"timeseries", "stat"}, p.Type) || len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "" || p.FieldConfig.Overrides == nil || p.Options == nil {
		t.Errorf("%q: type %q, %d targets, unit %q", p.Title, p.Type, len(p.Targets), p.FieldConfig.Defaults.Unit)
	}
	refs := make(map[string]bool)
	for _, q := range p.Targets {
		if q.Expr == "" || q.RefID == "" || refs[q.RefID] || q.Datasource == nil || *q.Datasource != (datasource{"prometheus", "${datasource}"}) || q.Range == q.Instant {
			t.Errorf("%q: %+v", p.Title, q)
		}
		refs[q.RefID] = true
		for _, used := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
			if !slices.Contains(variables, used[1]) {
				t.Errorf("%q uses the variable %s, which there is not", p.Title, used[1])
			}
		}
	}
}

// The metrics in the alerts and the dashboard are on the reference page, which a test compares with a gateway.
func TestAlertsAndDashboardUseMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	for _, file := range []string{"alerts.yml", "dashboard.json"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`fencegate_[a-z0-9_]+`).FindAllString(string(text), -1) {
			used[regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")] = true
		}
	}
	for name := range used {
		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("%s is used, and docs/reference/metrics.md does not have it", name)
		}
	}
	for _, name := range regexp.MustCompile("(?m)^\\| `(fencegate_[a-z0-9_]+)`").FindAllStringSubmatch(string(page), -1) {
		if !used[name[1]] && !slices.Contains(unused, name[1]) {
			t.Errorf("neither an alert nor the dashboard uses %s", name[1])
		}
	}
}

// unused lists metrics that repeat others in another form; the last one repeats the log about a reload.
var unused = []string{
	"fencegate_postgres_pool_acquires_total", "fencegate_postgres_pool_waits_total", "fencegate_pg_cancels_total", "fencegate_s3_sweeps_total",
	"fencegate_principals_last_reload_successful", "fencegate_leases_held_by_prefix",
}
