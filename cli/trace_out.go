package cli

import (
	"bytes"
	"time"

	"github.com/spf13/cobra"

	"pwc/inspect"
	"pwc/piecewise"
)

// addTraceOut adds --trace-out to a command that runs a model.
func (f *buildFlags) addTraceOut(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.traceOut, "trace-out", "", "write a trace of the host, captures and timed kernels to `FILE`, for Perfetto or chrome://tracing")
}

// traceFile is the trace of --trace-out. It is written when the target is closed.
type traceFile struct {
	path   string
	tracer *inspect.Tracer
}

// traced returns an observer that forwards to o and, if there is one, to the trace.
func (t *target) traced(o piecewise.Observer) piecewise.Observer {
	if t.trace == nil {
		return o
	}
	return both(o, t.trace.tracer)
}

// memory adds the device memory of a backend.
func (t *traceFile) memory(p piecewise.Plan) {
	if t != nil {
		t.tracer.Memory(map[string]int64{"weights": p.WeightBytes, "states": p.StateBytes, "inputs": p.InputBytes, "results": p.ResultBytes, "constants": p.ConstBytes, "arena": p.PeakArenaBytes, "workspace": p.WorkspaceBytes})
	}
}

// kernels adds the launches of a step as consecutive spans, with the times of the device's events.
func (t *traceFile) kernels(labels []traced, took []time.Duration) {
	at := time.Now()
	for i, d := range took {
		if i < len(labels) && labels[i].name != "" { // an empty name is the interval between launches
			t.tracer.Span(labels[i].name, at, d)
		}
		at = at.Add(d)
	}
}

func (t *traceFile) write() error {
	if t == nil {
		return nil
	}
	var text bytes.Buffer
	if _, err := t.tracer.WriteTo(&text); err != nil {
		return err
	}
	return writeFile(t.path, text.Bytes())
}
