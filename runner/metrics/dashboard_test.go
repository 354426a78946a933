package metrics_test

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pwc/piecewise"
	"pwc/runner"
	"pwc/runner/metrics"
)

// series is a metric in an expression of PromQL, with its selector.
var series = regexp.MustCompile(`\b((?:vllm:|pwc_)[a-z0-9_]+)(\{[^}]*\})?(\[)?`)

// label is a label that an expression selects or groups by.
var label = regexp.MustCompile(`([a-z_]+)=~?"|\bby \(([a-z_, ]+)\)`)

// variable is the query of a template variable: the values of a label of a metric.
var variable = regexp.MustCompile(`^label_values\(([a-z0-9_:]+), ([a-z_]+)\)$`)

// The metrics and labels of panels and template variables are exported, and each metric has the type
// that its expression needs. Each vllm: metric has a panel, except the inference time, which is the sum
// of prefill and decode time. Panels do not overlap.
func TestDashboard(t *testing.T) {
	c := metrics.New("pwc")
	c.Ran("forward", 3, 4, piecewise.RunPiecewise)
	c.Captured("forward", 4, 1, time.Second)
	c.Finished(&runner.Sequence{})
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	kinds, samples := map[string]string{}, map[string]string{} // samples: a line of each name
	for line := range strings.Lines(w.Body.String()) {
		if words := strings.Fields(line); words[0] == "#" && words[1] == "TYPE" {
			kinds[words[2]] = words[3]
		} else if words[0] != "#" {
			samples[line[:strings.IndexAny(line, "{ ")]] = line
		}
	}
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	type place struct{ X, Y, W, H int }
	var d struct {
		Templating struct {
			List []struct {
				Name, Type string
				Query      json.RawMessage
			}
		}
		Panels []struct {
			ID      int
			Title   string
			GridPos place
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	queries := 0
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		queries++
		var q struct{ Query string }
		if err := json.Unmarshal(v.Query, &q); err != nil {
			t.Fatal(err)
		}
		if m := variable.FindStringSubmatch(q.Query); m == nil || !strings.Contains(samples[m[1]], m[2]+`="`) {
			t.Errorf("variable %s: %s is not a label of a metric that is exported", v.Name, q.Query)
		}
	}
	if queries != 1 {
		t.Errorf("%d variables are queries, want the model", queries)
	}
	used := map[string]bool{}
	for i, p := range d.Panels {
		for _, q := range d.Panels[:i] {
			a, b := p.GridPos, q.GridPos
			if p.ID == q.ID || a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s and %s have one place or id", p.Title, q.Title)
			}
		}
		for _, target := range p.Targets {
			found := series.FindAllStringSubmatch(target.Expr, -1)
			if len(found) == 0 {
				t.Errorf("%s: %s has no metric", p.Title, target.Expr)
			}
			for _, m := range found {
				name := m[1]
				family := strings.TrimSuffix(name, "_bucket")
				used[family] = true
				want := "gauge"
				switch {
				case family != name:
					want = "histogram"
				case m[3] != "":
					want = "counter"
				}
				if samples[name] == "" || kinds[family] != want {
					t.Errorf("%s: %s is a %q, want a %s that is exported", p.Title, name, kinds[family], want)
				}
				for _, l := range label.FindAllStringSubmatch(target.Expr, -1) {
					for key := range strings.SplitSeq(l[1]+l[2], ", ") {
						if !strings.Contains(samples[name], key+`="`) && key != "" {
							t.Errorf("%s: %s has no label %s", p.Title, name, key)
						}
					}
				}
			}
		}
	}
	for name := range kinds {
		if strings.HasPrefix(name, "vllm:") && !used[name] && !slices.Contains([]string{"vllm:request_inference_time_seconds"}, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}
