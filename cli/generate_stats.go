package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"pwc/piecewise"
	"pwc/runner"
	"pwc/runner/metrics"
	"pwc/runtime/device"
)

// metricsServer returns a server with timeouts: a client can keep a connection open for at most a minute
// without a request. 10 s is the default scrape_timeout of Prometheus.
func metricsServer(h http.Handler) *http.Server {
	const patience = 10 * time.Second
	return &http.Server{Handler: h, ReadHeaderTimeout: patience, ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: 6 * patience, MaxHeaderBytes: 64 << 10}
}

// serveMetrics serves the metrics of the generation until stop is called. stop returns the error of
// the server.
func (g *generation) serveMetrics(address string) (stop func() error, err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	g.metrics = metrics.New("pwc")
	mux := http.NewServeMux()
	mux.Handle("/metrics", g.metrics)
	stop = listening(metricsServer(mux), l)
	g.app.logger().Info("metrics", "url", "http://"+l.Addr().String()+"/metrics")
	return stop, nil
}

// listening serves until stop is called.
func listening(server *http.Server, l net.Listener) (stop func() error) {
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return func() error {
		err := server.Close()
		if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
			err = fmt.Errorf("--metrics: %w", ended)
		}
		return err
	}
}

// twoObservers forwards the events of a backend to two observers.
type twoObservers [2]piecewise.Observer

// Captured implements piecewise.Observer.
func (o twoObservers) Captured(fn string, size int64, graphs int, took time.Duration) {
	o[0].Captured(fn, size, graphs, took)
	o[1].Captured(fn, size, graphs, took)
}

// Ran implements piecewise.Observer.
func (o twoObservers) Ran(fn string, rows, size int64, mode piecewise.RunMode) {
	o[0].Ran(fn, rows, size, mode)
	o[1].Ran(fn, rows, size, mode)
}

// both returns an observer that forwards to two observers, and marks ranges for those that implement
// piecewise.ProfileRanges.
func both(a, b piecewise.Observer) piecewise.Observer {
	var all markers
	for _, o := range []piecewise.Observer{a, b} {
		if m, ok := o.(piecewise.ProfileRanges); ok {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return twoObservers{a, b}
	}
	return marked{twoObservers{a, b}, all}
}

// markers is a marker that forwards to several.
type markers []marker

// Enter implements marker.
func (ms markers) Enter(name string) {
	for _, m := range ms {
		m.Enter(name)
	}
}

// Leave implements marker.
func (ms markers) Leave() {
	for _, m := range ms {
		m.Leave()
	}
}

// marker marks ranges of time for a profiler.
type marker interface {
	Enter(name string)
	Leave()
}

// marked is an observer that also marks the pieces of runs.
type marked struct {
	piecewise.Observer
	marker
}

var _ piecewise.ProfileRanges = marked{}

// timedOp sums the host time of an op's launches and preparations. On the host device this is the
// time of the op; on a GPU it is the time to issue its work. The launch of an op inside a whole graph
// is not counted: the graph launches it.
type timedOp struct {
	wrapped
	nanoseconds atomic.Int64
}

// Launch implements device.Op.
func (o *timedOp) Launch(c *device.OpCall) error {
	if c.Capturing {
		return o.Op.Launch(c)
	}
	start := time.Now()
	err := o.Op.Launch(c)
	o.nanoseconds.Add(int64(time.Since(start)))
	return err
}

// Prepare implements device.Preparer. It does nothing if the op has no Prepare.
func (o *timedOp) Prepare(s device.Stream, meta any, size, rows int64) error {
	p, ok := o.Op.(device.Preparer)
	if !ok {
		return nil
	}
	start := time.Now()
	err := p.Prepare(s, meta, size, rows)
	o.nanoseconds.Add(int64(time.Since(start)))
	return err
}

// generateStats is the JSON of --stats.
type generateStats struct {
	runner.Stats
	Padding float64        `json:"padding"` // padded rows as a part of all rows
	Seconds generateTimes  `json:"seconds"`
	Backend piecewiseStats `json:"backend"`
}

// generateTimes has the seconds of the parts of steps.
type generateTimes struct {
	All       float64 `json:"all"`       // from the first step to the last answer
	Pieces    float64 `json:"pieces"`    // graphs, with the wait for the device
	Attention float64 `json:"attention"` // extern ops between graphs
	Host      float64 `json:"host"`      // scheduling, metadata, answers
}

// piecewiseStats has the backend's counters, summed over all functions.
type piecewiseStats struct {
	Replays     int64            `json:"replays"`
	FullReplays int64            `json:"full_replays"`
	EagerRuns   int64            `json:"eager_runs"`
	Rows        int64            `json:"rows"`
	PaddedRows  int64            `json:"padded_rows"`
	OpCalls     map[string]int64 `json:"op_calls"`
	Skipped     map[string]int64 `json:"skipped"`

	CompiledAtLoad map[string]int64 `json:"compiled_at_load"`

	LibraryCalls   int64 `json:"library_calls"`
	LibraryUntuned int64 `json:"library_untuned"`
	LibraryMissing int64 `json:"library_missing"`
}

func (g *generation) printStats(r *runner.Runner) error {
	s, b := r.Stats(), r.Backend().Stats()
	ops := time.Duration(0)
	for _, op := range g.ops {
		ops += time.Duration(op.nanoseconds.Load())
	}
	out := generateStats{Stats: s, Padding: s.Padding(),
		Seconds: generateTimes{time.Since(g.start).Seconds(), (s.Backend - ops).Seconds(), ops.Seconds(), (s.Took - s.Backend).Seconds()},
		Backend: piecewiseStats{b.Replays, b.FullReplays, b.EagerRuns, b.Rows, b.PaddedRows, b.OpCalls, b.Skipped, b.CompiledAtLoad, b.LibraryCalls, b.LibraryUntuned, b.LibraryMissing}}
	if g.app.json {
		line, err := json.Marshal(map[string]any{"stats": out})
		if err == nil {
			_, err = fmt.Fprintf(g.app.out, "%s\n", line)
		}
		return err
	}
	t := table{head: []string{"steps", ">size", ">count", ">rows", ">padding"}}
	whole := false
	for _, c := range s.Steps {
		whole = whole || c.Mode == piecewise.RunFull
		t.add(c.Mode.String(), fmt.Sprint(c.Size), fmt.Sprint(c.Steps), fmt.Sprint(c.Rows), fmt.Sprintf("%.1f%%", 100*(1-float64(c.Rows)/float64(c.Steps*c.Size))))
	}
	fmt.Fprintln(g.app.err)
	if err := t.write(g.app.err, "  "); err != nil {
		return err
	}
	fmt.Fprintf(g.app.err, "\n%s generated, %.1f%% of rows were padding; %s, %s recomputed\n", plural(s.Generated, "token"), 100*out.Padding,
		plural(s.Preempted, "preemption"), plural(s.Recomputed, "token"))
	fmt.Fprintf(g.app.err, "%.3f s in pieces, %.3f in attention, %.3f in scheduling and metadata on the host\n", out.Seconds.Pieces, out.Seconds.Attention, out.Seconds.Host)
	for _, what := range slices.Sorted(maps.Keys(b.CompiledAtLoad)) {
		fmt.Fprintf(g.app.err, "%s compiled by the driver at load: %s\n", plural(b.CompiledAtLoad[what], "artifact"), what)
	}
	if b.LibraryCalls > 0 {
		fmt.Fprintf(g.app.err, "%s by a library at captured sizes, %d of them with algorithms that were not measured: see pwc tune\n", plural(b.LibraryCalls, "GEMM"), b.LibraryUntuned)
	}
	if b.LibraryMissing > 0 {
		fmt.Fprintf(g.app.err, "%s at captured sizes without a library that would be faster: see pwc doctor\n", plural(b.LibraryMissing, "GEMM"))
	}
	if whole {
		fmt.Fprintln(g.app.err, "attention inside whole graphs counts as pieces; --mode piecewise separates their times")
	}
	return nil
}
