package piecewise

import (
	"context"
	"errors"
	"fmt"

	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/mem"
)

// residents are the memory and programs on the device from Load to Close.
type residents struct {
	plan *plan
	pool *Pool

	executables map[*program.Program]device.Executable
	programs    []device.Executable // of executables
	watch       device.FaultWatch   // of their flags
	faults      map[device.Executable]faultSource

	weights []device.Buffer // by the module's weights
	states  stateMemory
	places  []device.Buffer // of parameters and results, by place.index, at their largest sizes
	arena   device.Buffer

	blocks   []mem.Block     // of weights, inputs and results
	inPlace  *inPlaceWeights // nil: all weights are copied
	imported []device.Memory // of inPlace
	canaries []canaryBuffer

	refused  []func() error // frees that a capture made the device refuse, for the next free
	releases []func() error // of the mapped files that imported memory in refused still reads

	assigned uint64 // calls of assign
}

// faultSource is the first unit that uses an executable; it names the op in errors.
// Identical pieces share an executable, so their errors name that unit, too.
type faultSource struct {
	fn   *function
	unit *unit
}

// free frees everything. A free that the device refuses with ErrCapturing has changed nothing: free keeps
// it for its next call.
func (r *residents) free() error {
	todo, releases := r.refused, r.releases
	for _, x := range r.executables {
		todo = append(todo, x.Close)
	}
	if r.states.segment != nil {
		todo = append(todo, r.states.segment.Free)
	}
	for _, g := range r.canaries {
		todo = append(todo, g.memory.Free)
	}
	for _, m := range r.imported {
		todo = append(todo, m.Free)
	}
	if r.inPlace != nil {
		releases = append(releases, r.inPlace.release)
	}
	var errs []error
	for _, blk := range r.blocks {
		errs = append(errs, r.pool.alloc.Free(blk))
	}
	*r = residents{plan: r.plan, pool: r.pool}
	for _, free := range todo {
		err := free()
		if errors.Is(err, device.ErrCapturing) {
			r.refused = append(r.refused, free)
		}
		errs = append(errs, err)
	}
	if len(r.refused) > 0 {
		r.releases = releases
		return errors.Join(errs...)
	}
	for _, release := range releases {
		errs = append(errs, release())
	}
	return errors.Join(errs...)
}

// takeStep allocates the memory of inputs and results, the arena, and the workspace.
func (r *residents) takeStep() error {
	r.places = make([]device.Buffer, r.plan.places)
	input, err := r.region(r.plan.memory.InputBytes, "inputs")
	if err != nil {
		return err
	}
	result, err := r.region(r.plan.memory.ResultBytes, "results")
	if err != nil {
		return err
	}
	for _, fn := range r.plan.funcs {
		for i := range fn.inputs {
			in := &fn.inputs[i]
			if in.from != nil {
				continue
			}
			buf, err := input(fn.atMax.bytes[fn.storage(in.value)], fmt.Sprintf("input %%%s of @%s", in.name, fn.ir.Name))
			if err != nil {
				return err
			}
			r.assign(&r.places[in.place.index], buf)
		}
		for i := range fn.slots {
			if fn.slots[i].aliased {
				continue
			}
			buf, err := result(fn.atMax.bytes[fn.slots[i].storage], fmt.Sprintf("result %d of @%s", i, fn.ir.Name))
			if err != nil {
				return err
			}
			r.assign(&r.places[fn.slots[i].place.index], buf)
		}
	}
	if r.plan.opts.Debug.Canary == CanaryOff {
		if r.arena, err = r.pool.reserve(r.plan.memory.PeakArenaBytes); err != nil {
			return err
		}
	}
	return r.pool.workspace(r.plan.memory.WorkspaceBytes)
}

func (r *residents) take(bytes int64, what string) (device.Buffer, error) {
	block, buf, err := r.pool.take(bytes, what)
	if err == nil && bytes > 0 {
		r.blocks = append(r.blocks, block)
	}
	return buf, err
}

// loadPrograms loads every distinct program once.
func (r *residents) loadPrograms(ctx context.Context) error {
	r.executables, r.faults = map[*program.Program]device.Executable{}, map[device.Executable]faultSource{}
	for _, a := range r.plan.built.Artifacts {
		if err := ctx.Err(); err != nil {
			return err
		}
		first := a.Uses[0]
		fn := r.plan.funcs[first.Plan]
		u := &fn.units[first.Unit]
		x, err := r.plan.opts.Device.Load(a.Program, device.OpSet(r.plan.ops))
		if err != nil {
			return fmt.Errorf("@%s piece %d: %w", fn.ir.Name, fn.split.Items[u.item].ID, err)
		}
		r.executables[a.Program] = x
		r.programs = append(r.programs, x)
		r.faults[x] = faultSource{fn, u}
	}
	var err error
	r.watch, err = r.plan.opts.Device.WatchFaults(r.programs...)
	return err
}

// assign sets the memory of a weight, a state, a parameter or a result, whose address graphs
// may contain. Nothing else sets it: while the count of assignments is the same, so are all
// addresses ([instance.checkAddresses]).
func (r *residents) assign(at *device.Buffer, now device.Buffer) {
	*at = now
	r.assigned++
}

// region returns a function that allocates tensors one after the other, each aligned, in one
// block of total bytes; with a [Canary], each in an allocation of its own.
func (r *residents) region(total int64, what string) (func(bytes int64, name string) (device.Buffer, error), error) {
	if r.plan.opts.Debug.Canary != CanaryOff {
		return r.takeCanary, nil
	}
	all, err := r.take(total, what)
	off := int64(0)
	return func(bytes int64, _ string) (device.Buffer, error) {
		buf := all.Slice(off, bytes)
		off += roundUp(bytes)
		return buf, nil
	}, err
}
