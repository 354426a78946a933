package piecewise

import (
	"context"
	"fmt"
	"math"

	"pwc/ir"
	"pwc/program"
	"pwc/runtime/device"
)

// Plan is the memory of a backend in bytes, known before anything is allocated
// (C5).
type Plan struct {
	WeightBytes  int64           `json:"weight_bytes"`   // of all weights; Load does not allocate those that stay in files
	StateBytes   int64           `json:"state_bytes"`    // of all states; Load does not allocate those that the caller gives
	InputBytes   int64           `json:"input_bytes"`    // of parameters that are not linked
	ResultBytes  int64           `json:"result_bytes"`   // of results with memory of their own
	ConstBytes   int64           `json:"constant_bytes"` // of the programs, each constant rounded up to 256 bytes
	ArenaBytes   map[int64]int64 `json:"arena_bytes"`    // by capture size: tensors between pieces, scratch of pieces and of ops
	StagingBytes int64           `json:"staging_bytes"`  // host memory of the staging slots; linked inputs that the host fills take more

	// PeakArenaBytes is the size of the arena: the maximum over the capture sizes and
	// the largest size that may run.
	PeakArenaBytes int64 `json:"peak_arena_bytes"`

	// WorkspaceBytes is the workspace of the device's library routines, one for the
	// pool's stream.
	WorkspaceBytes int64 `json:"workspace_bytes"`

	// Unplanned lists the extern ops and collectives whose scratch is missing in
	// ArenaBytes and PeakArenaBytes, because it depends on the device and the backend
	// has no device.
	Unplanned []string `json:"unplanned,omitempty"`

	// Graphs is the number of graphs that Capture makes. Their memory is not in the
	// plan, because only the device knows it.
	Graphs int64 `json:"graphs"`

	// Unused lists the sizes of the options that have no effect, Uncaptured the
	// functions that no graph can serve, in a mode that captures (C8).
	Unused     []Unused     `json:"unused,omitempty"`
	Uncaptured []Uncaptured `json:"uncaptured,omitempty"`
}

// Total returns the device memory of the plan in bytes. Load allocates less for states that it is
// given, for weights that stay in files, and if the pool already has an arena or a workspace that is
// large enough; with a [Canary] it usually allocates more.
func (p Plan) Total() int64 {
	return p.WeightBytes + p.StateBytes + p.InputBytes + p.ResultBytes + p.ConstBytes + p.PeakArenaBytes + p.WorkspaceBytes
}

// addTo adds the bytes of a tensor, rounded up to the alignment, to a sum.
func addTo(sum *int64, bytes int64) error {
	if bytes > math.MaxInt64-alignment || *sum > math.MaxInt64-roundUp(bytes) {
		return program.ErrTooLarge
	}
	*sum += roundUp(bytes)
	return nil
}

// check returns an error if the total exceeds an int64.
func (p *Plan) check() error {
	sum := int64(0)
	for _, n := range []int64{p.WeightBytes, p.StateBytes, p.InputBytes, p.ResultBytes, p.ConstBytes, p.PeakArenaBytes, p.WorkspaceBytes} {
		if err := addTo(&sum, n); err != nil {
			return fmt.Errorf("piecewise: the sum of the plan's memory: %w", err)
		}
	}
	return nil
}

// Plan returns the memory plan.
func (b *Backend) Plan() Plan { return b.plan.memory }

// Sizes returns the capture sizes of a function, ascending.
func (f *Func) Sizes() []int64 {
	if f == nil {
		return nil
	}
	return append([]int64(nil), f.fn.sizes...)
}

// makePlan places every function at every size.
func (pl *plan) makePlan(ctx context.Context) error {
	p := &pl.memory
	p.ArenaBytes = map[int64]int64{}
	for _, w := range pl.module.Weights {
		n, err := (&env{}).bytes(w.Type)
		if err == nil {
			err = addTo(&p.WeightBytes, n)
		}
		if err != nil {
			return fmt.Errorf("weight @%s: %w", w.Name, err)
		}
	}
	var err error
	if _, p.StateBytes, err = pl.stateBytes(func(*ir.State) bool { return true }); err != nil {
		return err
	}
	for _, fn := range pl.funcs {
		for i := range fn.inputs {
			in := &fn.inputs[i]
			n := fn.atMax.bytes[fn.storage(in.value)]
			if in.from == nil {
				err := addTo(&p.InputBytes, n)
				if err == nil && int64(pl.opts.Memory.StagingSlots) > (math.MaxInt64-p.StagingBytes)/max(roundUp(n), 1) {
					err = program.ErrTooLarge
				}
				if err != nil {
					return fmt.Errorf("input %%%s of @%s: %w", in.name, fn.ir.Name, err)
				}
				p.StagingBytes += int64(pl.opts.Memory.StagingSlots) * roundUp(n)
			}
		}
		for i := range fn.slots {
			if !fn.slots[i].aliased {
				if err := addTo(&p.ResultBytes, fn.atMax.bytes[fn.slots[i].storage]); err != nil {
					return fmt.Errorf("results of @%s: %w", fn.ir.Name, err)
				}
			}
		}
		p.PeakArenaBytes = max(p.PeakArenaBytes, fn.atMax.total)
		for _, n := range fn.sizes {
			if err := ctx.Err(); err != nil {
				return err
			}
			l, err := fn.place(n)
			if err != nil {
				return err
			}
			p.ArenaBytes[n] = max(p.ArenaBytes[n], l.total)
			p.PeakArenaBytes = max(p.PeakArenaBytes, l.total)
		}
		p.Graphs += fn.graphCount()
	}
	for _, a := range pl.built.Artifacts {
		for _, c := range a.Program.Consts {
			if err := addTo(&p.ConstBytes, int64(len(c))); err != nil {
				return fmt.Errorf("constants of %s: %w", a.Origin, err)
			}
		}
		p.WorkspaceBytes = max(p.WorkspaceBytes, pl.workspaceBytes(a.Program))
	}
	if err := p.check(); err != nil {
		return err
	}
	return pl.countLibraries()
}

// countLibraries counts the calls of library routines, and the steps that would use a missing
// routine. A frozen backend refuses calls whose algorithm was not measured on this device.
func (pl *plan) countLibraries() error {
	if pl.opts.Device == nil {
		return nil
	}
	all, err := pl.programs()
	if err != nil {
		return err
	}
	for _, s := range all {
		r, err := pl.resolve(s.Program, s.Symbols)
		if err != nil {
			return err
		}
		for i := range r.Steps {
			if st := &r.Steps[i]; st.Kind == program.StepLibrary {
				pl.libraries.calls++
				if t, ok := st.Op.(device.Tunable); ok && !t.Tuned(st.Tensors, st.Values) {
					pl.libraries.untuned++
				}
			}
		}
		steps := map[int]bool{} // that have a variant with a missing routine
		for _, d := range r.Declined {
			if d.Missing && !steps[d.Step] {
				steps[d.Step] = true
				pl.libraries.missing++
			}
		}
	}
	if pl.opts.Frozen && pl.libraries.untuned > 0 {
		return &FrozenError{Reason: fmt.Sprintf("%d of %d calls of library routines at captured sizes have no algorithm measured on this device: set Options.Compile.Tune or run pwc tune", pl.libraries.untuned, pl.libraries.calls)}
	}
	return nil
}

// workspaceBytes returns the size of the device's workspace if it has a library routine of
// the program; else 0.
func (pl *plan) workspaceBytes(p *program.Program) int64 {
	d, ok := pl.opts.Device.(device.LibraryProvider)
	if !ok {
		return 0
	}
	bytes, routines := d.WorkspaceBytes(), d.Libraries()
	for name := range p.Routines() {
		if routines[name] != nil {
			return bytes
		}
	}
	return 0
}

// capturable returns the number of pieces between splitting ops.
func (fn *function) capturable() int64 {
	n := int64(0)
	for i := range fn.units {
		if !fn.units[i].splitting {
			n++
		}
	}
	return n
}

// inGraphs returns how many items of the split plan are in a graph.
func (fn *function) inGraphs() int {
	switch {
	case fn.full > 0:
		return len(fn.split.Items)
	case len(fn.sizes) > 0:
		return int(fn.capturable())
	}
	return 0
}

// alone reports whether the function is one piece, so that the graph of its piece is that
// of the function.
func (fn *function) alone() bool { return len(fn.units) == 1 && !fn.units[0].splitting }

// graphCount returns how many graphs Capture makes of the function.
func (fn *function) graphCount() int64 {
	n := int64(0)
	if fn.plan.opts.Capture.Mode.pieces() {
		n = fn.capturable() * int64(len(fn.sizes))
		if fn.alone() {
			return n
		}
	}
	return n + int64(fn.full)
}
