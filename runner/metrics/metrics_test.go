package metrics_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pwc/piecewise"
	"pwc/runner"
	"pwc/runner/metrics"
)

// sample matches a line of a sample in the exposition format.
var sample = regexp.MustCompile(`^[a-z0-9_:]+(\{[a-z_]+="([^"\\]|\\.)*"(,[a-z_]+="([^"\\]|\\.)*")*\})? [0-9.e+-]+$`)

func ExampleNew() {
	var options runner.Options
	c := metrics.New("pwc")
	options.Observer, options.Backend.Observe.Observer = c, c
	http.Handle("/metrics", c)
}

func TestScrape(t *testing.T) {
	c := metrics.New("pwc")
	c.SetModel(`a "b"`)
	c.Captured("forward", 8, 5, time.Second)
	c.Captured("forward", 4, 5, time.Second)
	c.Ran("forward", 3, 4, piecewise.RunPiecewise)
	c.Ran("forward", 4, 4, piecewise.RunPiecewise)
	c.Ran("odd\"\n\\", 700, 700, piecewise.RunEager)
	c.Ran("odd\"\n\\", 701, 701, piecewise.RunEager)
	c.Stepped(runner.Step{Rows: 3, Sampled: 2, Running: 2, Waiting: 1, UsedBlocks: 5, Blocks: 9, PromptTokens: 11, FirstTokens: []time.Duration{30 * time.Millisecond}, Intervals: []time.Duration{time.Millisecond}, Took: 2 * time.Millisecond, Backend: 2*time.Millisecond - 20*time.Microsecond})
	c.Stepped(runner.Step{Running: 2, Waiting: 1, UsedBlocks: 5, Blocks: 9, Preempted: 3, Took: time.Hour, Err: runner.ErrMemory}) // a call that scheduled no step
	c.Finished(&runner.Sequence{})
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
		`pwc_steps_failed_total 1`,
		`pwc_tokens_sampled_total 2`,
		`pwc_requests_running 2`,
		`pwc_requests_waiting 1`,
		`pwc_requests_finished_total{reason="` + new(runner.Sequence).Reason().String() + `"} 1`,
		`pwc_kv_blocks 9`,
		`pwc_kv_blocks_used 5`,
		`pwc_step_seconds_bucket{le="0.001"} 0`,
		`pwc_step_seconds_bucket{le="0.0025"} 1`,
		`pwc_step_seconds_bucket{le="+Inf"} 1`,
		`pwc_step_seconds_sum 0.002`,
		`pwc_step_seconds_count 1`,
		`pwc_step_host_seconds_bucket{le="2.5e-05"} 1`,
		`vllm:num_requests_running{model_name="a \"b\""} 2`,
		`vllm:num_requests_waiting{model_name="a \"b\""} 1`,
		`vllm:kv_cache_usage_perc{model_name="a \"b\""} 0.5555555555555556`,
		`vllm:num_preemptions_total{model_name="a \"b\""} 3`,
		`vllm:prompt_tokens_total{model_name="a \"b\""} 11`,
		`vllm:generation_tokens_total{model_name="a \"b\""} 2`,
		`vllm:time_to_first_token_seconds_bucket{model_name="a \"b\"",le="0.025"} 0`,
		`vllm:time_to_first_token_seconds_bucket{model_name="a \"b\"",le="0.04"} 1`,
		`vllm:inter_token_latency_seconds_bucket{model_name="a \"b\"",le="0.001"} 1`,
		`vllm:inter_token_latency_seconds_count{model_name="a \"b\""} 1`,
		`vllm:request_success_total{model_name="a \"b\"",finished_reason="error"} 1`,
		`vllm:e2e_request_latency_seconds_count{model_name="a \"b\""} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %q", want)
		}
	}
	// Each family occurs once: its help, its type, then its samples.
	help, kind := "", map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		words := strings.SplitN(line, " ", 4)
		switch {
		case strings.HasPrefix(line, "# HELP ") && len(words) == 4:
			help = words[2]
		case strings.HasPrefix(line, "# TYPE ") && len(words) == 4:
			if words[2] != help || kind[help] != "" {
				t.Errorf("line %q after the help of %q", line, help)
			}
			kind[help] = words[3]
		case !sample.MatchString(line):
			t.Errorf("line %q is not in the format", line)
		default:
			rest, ok := strings.CutPrefix(line[:strings.IndexAny(line, "{ ")], help)
			if !ok || rest != "" && (kind[help] != "histogram" || !slices.Contains([]string{"_bucket", "_sum", "_count"}, rest)) {
				t.Errorf("line %q in the family %q", line, help)
			}
		}
	}
	for name, want := range map[string]string{
		"graphs_captured_total": "counter", "capture_seconds": "gauge", "runs_total": "counter", "rows_total": "counter", "padded_rows_total": "counter",
		"requests_finished_total": "counter", "steps_failed_total": "counter", "tokens_sampled_total": "counter", "requests_running": "gauge", "requests_waiting": "gauge",
		"kv_blocks_used": "gauge", "kv_blocks": "gauge", "step_seconds": "histogram", "step_host_seconds": "histogram",
	} {
		if kind["pwc_"+name] != want {
			t.Errorf("%s is a %q, want %q", name, kind["pwc_"+name], want)
		}
	}
	if got := w.Header().Get("Content-Type"); !strings.Contains(got, "version=0.0.4") {
		t.Errorf("content type %q", got)
	}
	once := []time.Duration{time.Second}
	if n := testing.AllocsPerRun(10, func() {
		c.Ran("forward", 3, 4, piecewise.RunPiecewise)
		c.Stepped(runner.Step{Rows: 1, FirstTokens: once, Intervals: once})
	}); n != 0 {
		t.Errorf("observing makes %v allocations", n)
	}
	if strings.Contains(text, "padded_rows_total{function=\"odd") {
		t.Error("eager runs are padded")
	}
}

// slow is a client that reads nothing before a step is counted.
type slow struct{ stepped func() }

func (s slow) Write(b []byte) (int, error) {
	s.stepped()
	return len(b), nil
}

// TestSlowReader counts a step while a client has not read the answer: a client must not delay a runner.
func TestSlowReader(t *testing.T) {
	c := metrics.New("pwc")
	err := c.Write(slow{func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Stepped(runner.Step{Rows: 1})
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("a step waits for a client that reads the metrics")
		}
	}})
	if err != nil {
		t.Error(err)
	}
}
