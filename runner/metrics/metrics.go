// Package metrics exports counters, gauges and latencies of a runner and its backend in the text
// format that Prometheus scrapes (version 0.0.4). It needs no client library, and programs that do
// not import it have no cost.
//
// Metrics that vLLM has, too, have vLLM's names ("vllm:…") and its label model_name, so dashboards
// and alerts that were made for vLLM work. Some also have a name with the collector's prefix.
// dashboard.json is a dashboard for Grafana of both, for the prefix pwc.
package metrics

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pwc/piecewise"
	"pwc/runner"
)

// Collector observes a runner and its backend. Its methods may be called from
// any goroutine; in steady state observing allocates nothing.
type Collector struct {
	prefix string

	mu       sync.Mutex
	runs     map[run]*count
	captured map[string]int64 // graphs by function
	capture  time.Duration
	finished map[runner.Reason]int64
	sampled  int64
	failed   int64 // steps
	last     runner.Step
	steps    histogram // seconds
	host     histogram // seconds outside of the backend
	serving  serving
}

// run is the key by which runs are counted.
type run struct {
	fn   string
	how  piecewise.RunMode
	size int64 // with padding; 0 for eager runs
}

type count struct{ runs, rows int64 }

// histogram counts values in buckets.
type histogram struct {
	bounds []float64 // upper bounds of all buckets except the last, which is unbounded
	counts []int64   // by bucket: one more than bounds
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]int64, len(bounds)+1)}
}

// stepBounds are the upper bounds of the buckets in seconds: a step takes from some 100 µs to a second,
// its part on the host from some 10 µs.
var stepBounds = []float64{1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1}

func (h *histogram) add(v float64) {
	h.sum += v
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i]++
}

func (h *histogram) addAll(list []time.Duration) {
	for _, d := range list {
		h.add(d.Seconds())
	}
}

var (
	_ runner.Observer    = (*Collector)(nil)
	_ piecewise.Observer = (*Collector)(nil)
	_ http.Handler       = (*Collector)(nil)
)

// New returns a collector. Names of its metrics begin with prefix and "_", except for vLLM's names.
func New(prefix string) *Collector {
	return &Collector{prefix: prefix, runs: map[run]*count{}, captured: map[string]int64{}, finished: map[runner.Reason]int64{},
		steps: newHistogram(stepBounds), host: newHistogram(stepBounds), serving: newServing()}
}

// SetModel sets the label model_name of the metrics that have vLLM's names. Without this call the
// label is empty.
func (c *Collector) SetModel(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving.model = name
}

// Captured counts the graphs of a function.
func (c *Collector) Captured(fn string, _ int64, graphs int, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.captured[fn] += int64(graphs)
	c.capture += took
}

// Ran counts a run of a function.
func (c *Collector) Ran(fn string, rows, size int64, how piecewise.RunMode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := run{fn, how, size}
	if how == piecewise.RunEager {
		key.size = 0 // any number of rows may run eagerly, so the number of series would be unbounded
	}
	n := c.runs[key]
	if n == nil {
		n = &count{}
		c.runs[key] = n
	}
	n.runs++
	n.rows += rows
}

// Stepped counts a call of Runner.Step. A call that scheduled no step adds no time of a step and no
// sampled tokens; it can fail, and can read tokens of the previous step.
func (c *Collector) Stepped(s runner.Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = s
	if s.Err != nil {
		c.failed++
	}
	if s.Rows > 0 {
		c.sampled += int64(s.Sampled)
		c.steps.add(s.Took.Seconds())
		c.host.add((s.Took - s.Backend).Seconds())
	}
	c.serving.stepped(&s)
}

// Finished counts the end of a request.
func (c *Collector) Finished(s *runner.Sequence) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished[s.Reason()]++
	c.serving.finished(s.Reason(), s.Times(), len(s.Prompt()), len(s.IDs())-len(s.Prompt()))
}

// ServeHTTP writes all metrics to w.
func (c *Collector) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_ = c.Write(w) // an error means that the client is gone
}

// Write writes all metrics. A slow w delays neither the runner nor the backend.
func (c *Collector) Write(w io.Writer) error {
	_, err := io.WriteString(w, c.page())
	return err
}

// page returns all metrics as text.
func (c *Collector) page() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &page{prefix: c.prefix + "_"}
	p.head("graphs_captured_total", "counter", "Graphs that were captured.")
	for _, fn := range slices.Sorted(maps.Keys(c.captured)) {
		p.value("graphs_captured_total", float64(c.captured[fn]), "function", fn)
	}
	p.gauge("capture_seconds", "Time that capturing took.", c.capture.Seconds())
	keys := slices.SortedFunc(maps.Keys(c.runs), func(a, b run) int {
		return cmp.Or(cmp.Compare(a.fn, b.fn), cmp.Compare(a.how, b.how), cmp.Compare(a.size, b.size))
	})
	p.head("runs_total", "counter", "Runs of functions by mode and padded size; eager runs of all sizes have size 0.")
	for _, k := range keys {
		p.value("runs_total", float64(c.runs[k].runs), "function", k.fn, "mode", k.how.String(), "size", strconv.FormatInt(k.size, 10))
	}
	p.head("rows_total", "counter", "Rows of runs, without padding.")
	for _, k := range keys {
		p.value("rows_total", float64(c.runs[k].rows), "function", k.fn, "mode", k.how.String(), "size", strconv.FormatInt(k.size, 10))
	}
	p.head("padded_rows_total", "counter", "Rows that padding added.")
	for _, k := range keys {
		if k.size > 0 {
			p.value("padded_rows_total", float64(c.runs[k].runs*k.size-c.runs[k].rows), "function", k.fn, "mode", k.how.String(), "size", strconv.FormatInt(k.size, 10))
		}
	}
	p.head("requests_finished_total", "counter", "Requests that ended, by reason.")
	for _, why := range slices.Sorted(maps.Keys(c.finished)) {
		p.value("requests_finished_total", float64(c.finished[why]), "reason", why.String())
	}
	p.head("steps_failed_total", "counter", "Calls of Runner.Step in which issuing or reading a step failed, or a step had an index out of range.")
	p.value("steps_failed_total", float64(c.failed))
	p.head("tokens_sampled_total", "counter", "Tokens that scheduled steps sample, including steps that failed.")
	p.value("tokens_sampled_total", float64(c.sampled))
	p.gauge("requests_running", "Requests in the batch.", float64(c.last.Running))
	p.gauge("requests_waiting", "Requests that wait for room.", float64(c.last.Waiting))
	p.gauge("kv_blocks_used", "Blocks of the KV cache in use.", float64(c.last.UsedBlocks))
	p.gauge("kv_blocks", "Blocks of the KV cache.", float64(c.last.Blocks))
	p.histogram("step_seconds", "Time of a call of Runner.Step that scheduled a step, including steps that failed.", &c.steps)
	p.histogram("step_host_seconds", "Time of a call of Runner.Step that scheduled a step, outside of the backend, including steps that failed.", &c.host)
	c.serving.write(p, &c.last)
	return p.b.String()
}

// page is a page of metrics being written.
type page struct {
	prefix string   // of names
	common []string // labels of all samples: name, value, name, value, …
	b      strings.Builder
}

func (p *page) head(name, kind, help string) {
	fmt.Fprintf(&p.b, "# HELP %s%s %s\n# TYPE %s%s %s\n", p.prefix, name, help, p.prefix, name, kind)
}

// labelEscapes escapes the value of a label, as the format requires.
var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// value writes a sample. labels are name, value, name, value, ….
func (p *page) value(name string, v float64, labels ...string) {
	p.b.WriteString(p.prefix + name)
	labels = slices.Concat(p.common, labels)
	for i := 0; i < len(labels); i += 2 {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		p.b.WriteByte(sep)
		p.b.WriteString(labels[i] + `="` + labelEscapes.Replace(labels[i+1]) + `"`)
	}
	if len(labels) > 0 {
		p.b.WriteByte('}')
	}
	p.b.WriteString(" " + strconv.FormatFloat(v, 'g', -1, 64) + "\n")
}

func (p *page) gauge(name, help string, v float64) {
	p.head(name, "gauge", help)
	p.value(name, v)
}

func (p *page) histogram(name, help string, h *histogram) {
	p.head(name, "histogram", help)
	n := int64(0)
	for i, c := range h.counts {
		n += c
		end := math.Inf(1)
		if i < len(h.bounds) {
			end = h.bounds[i]
		}
		p.value(name+"_bucket", float64(n), "le", strconv.FormatFloat(end, 'g', -1, 64))
	}
	p.value(name+"_sum", h.sum)
	p.value(name+"_count", float64(n))
}
