package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"pwc/piecewise"
)

// Tracer is an observer of a backend that writes a trace for Perfetto or chrome://tracing.
// Host ranges show the calling goroutine: pieces, graph launches and calls of extern ops as they
// are issued. A GPU executes them later: Span adds these times.
type Tracer struct {
	mu     sync.Mutex
	start  time.Time
	events []traceEvent
	open   []traceEvent // ranges that were entered
	limit  int          // of events
	lost   int          // events above the limit
	now    func() time.Time
}

// Tracks of a trace: threads of the format.
const (
	hostTrack = iota + 1
	deviceTrack
)

// maxEvents bounds a trace: later events are left out, and WriteTo writes their number.
const maxEvents = 1 << 20

// traceEvent is an event of the Trace Event Format (Google, "Trace Event Format", 2016).
type traceEvent struct {
	Name     string         `json:"name"`
	Phase    string         `json:"ph"` // X: complete, i: instant, C: counter, M: metadata
	Start    float64        `json:"ts"` // µs
	Duration float64        `json:"dur,omitempty"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Scope    string         `json:"s,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// NewTracer returns a tracer whose clock starts now.
func NewTracer() *Tracer { return newTracer(time.Now) }

func newTracer(now func() time.Time) *Tracer {
	return &Tracer{start: now(), now: now, limit: maxEvents}
}

var _ piecewise.ProfileRanges = (*Tracer)(nil)

func (t *Tracer) at(when time.Time) float64 { return float64(when.Sub(t.start).Nanoseconds()) / 1e3 }

func (t *Tracer) add(e traceEvent) {
	e.Process = 1
	if len(t.events) < t.limit {
		t.events = append(t.events, e)
	} else {
		t.lost++
	}
}

// Captured implements piecewise.Observer.
func (t *Tracer) Captured(fn string, size int64, graphs int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.now()
	t.add(traceEvent{Name: fmt.Sprintf("capture @%s for %d rows", fn, size), Phase: "X", Start: t.at(end.Add(-took)), Duration: float64(took.Nanoseconds()) / 1e3, Thread: hostTrack,
		Args: map[string]any{"graphs": graphs}})
}

// Ran implements piecewise.Observer.
func (t *Tracer) Ran(fn string, rows, size int64, mode piecewise.RunMode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(traceEvent{Name: "ran @" + fn, Phase: "i", Scope: "t", Start: t.at(t.now()), Thread: hostTrack, Args: map[string]any{"rows": rows, "size": size, "mode": mode.String()}})
}

// Enter implements piecewise.ProfileRanges.
func (t *Tracer) Enter(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = append(t.open, traceEvent{Name: name, Phase: "X", Start: t.at(t.now()), Thread: hostTrack})
}

// Leave implements piecewise.ProfileRanges.
func (t *Tracer) Leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) == 0 {
		return
	}
	last := len(t.open) - 1
	e := t.open[last]
	t.open = t.open[:last]
	e.Duration = t.at(t.now()) - e.Start
	t.add(e)
}

// Span adds work of the device, as its events measured it.
func (t *Tracer) Span(name string, start time.Time, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(traceEvent{Name: name, Phase: "X", Start: t.at(start), Duration: float64(took.Nanoseconds()) / 1e3, Thread: deviceTrack})
}

// Memory adds the bytes of device memory in use, by purpose.
func (t *Tracer) Memory(bytes map[string]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	args := map[string]any{}
	for name, n := range bytes {
		args[name] = n
	}
	t.add(traceEvent{Name: "device memory", Phase: "C", Start: t.at(t.now()), Args: args})
}

// WriteTo writes the trace as JSON. Ranges that are still open end now. If events were left out,
// otherData.lost_events is their number.
func (t *Tracer) WriteTo(w io.Writer) (int64, error) {
	if w == nil {
		return 0, errors.New("inspect: WriteTo needs a writer")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	events := []traceEvent{
		{Name: "process_name", Phase: "M", Process: 1, Args: map[string]any{"name": "pwc"}},
		{Name: "thread_name", Phase: "M", Process: 1, Thread: hostTrack, Args: map[string]any{"name": "host"}},
		{Name: "thread_name", Phase: "M", Process: 1, Thread: deviceTrack, Args: map[string]any{"name": "device"}},
	}
	events = append(events, t.events...)
	for _, e := range t.open {
		e.Process, e.Duration = 1, t.at(t.now())-e.Start
		events = append(events, e)
	}
	var other map[string]int
	if t.lost > 0 {
		other = map[string]int{"lost_events": t.lost}
	}
	text, err := json.Marshal(struct {
		Unit   string         `json:"displayTimeUnit"`
		Events []traceEvent   `json:"traceEvents"`
		Other  map[string]int `json:"otherData,omitempty"`
	}{"ms", events, other})
	if err != nil {
		return 0, err
	}
	n, err := w.Write(append(text, '\n'))
	return int64(n), err
}
