package metrics_test

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"pwc/piecewise"
	"pwc/runner"
	"pwc/runner/metrics"
)

// Every line is a comment or a sample, as the exposition format has them.
var sample = regexp.MustCompile(`^[a-z_]+(\{[a-z]+="([^"\\]|\\.)*"(,[a-z]+="([^"\\]|\\.)*")*\})? [0-9.e+-]+$`)

func TestScrape(t *testing.T) {
	c := metrics.New("pwc")
	c.Captured("forward", 8, 5, time.Second)
	c.Captured("forward", 4, 5, time.Second)
	c.Ran("forward", 3, 4, piecewise.Replayed)
	c.Ran("forward", 4, 4, piecewise.Replayed)
	c.Ran("odd\"\n\\", 700, 700, piecewise.Eager)
	c.Ran("odd\"\n\\", 701, 701, piecewise.Eager)
	c.Stepped(runner.Step{Rows: 3, Sampled: 2, Running: 2, Waiting: 1, UsedBlocks: 5, Blocks: 9, Took: 2 * time.Millisecond, Backend: 2*time.Millisecond - 20*time.Microsecond})
	c.Stepped(runner.Step{Running: 2, Waiting: 1, UsedBlocks: 5, Blocks: 9, Took: time.Hour}) // issued nothing
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text := w.Body.String()
	for _, want := range []string{
		`pwc_graphs_captured_total{function="forward"} 10`,
		`pwc_capture_seconds 2`,
		`pwc_runs_total{function="forward",mode="piecewise",size="4"} 2`,
		`pwc_rows_total{function="forward",mode="piecewise",size="4"} 7`,
		`pwc_padded_rows_total{function="forward",mode="piecewise",size="4"} 1`,
		`pwc_runs_total{function="odd\"\n\\",mode="eager",size="0"} 2`,
		`pwc_tokens_sampled_total 2`,
		`pwc_requests_waiting 1`,
		`pwc_kv_blocks_used 5`,
		`pwc_step_seconds_bucket{le="0.001"} 0`,
		`pwc_step_seconds_bucket{le="0.0025"} 1`,
		`pwc_step_seconds_bucket{le="+Inf"} 1`,
		`pwc_step_seconds_count 1`,
		`pwc_step_host_seconds_bucket{le="2.5e-05"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %q", want)
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "# HELP ") && !strings.HasPrefix(line, "# TYPE ") && !sample.MatchString(line) {
			t.Errorf("line %q is not in the format", line)
		}
	}
	if got := w.Header().Get("Content-Type"); !strings.Contains(got, "version=0.0.4") {
		t.Errorf("content type %q", got)
	}
	if n := testing.AllocsPerRun(10, func() { c.Ran("forward", 3, 4, piecewise.Replayed); c.Stepped(runner.Step{Rows: 1}) }); n != 0 {
		t.Errorf("observing makes %v allocations", n)
	}
	if strings.Contains(text, "padded_rows_total{function=\"odd") {
		t.Error("eager runs are padded")
	}
}
