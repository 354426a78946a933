package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"pwc/ir"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// Batch has the inputs of a step.
type Batch interface {
	// Input returns the bytes of element input of [Program.Inputs] for the micro-batch part, both
	// counted from 0: little-endian, row-major. Run copies them before it returns.
	Input(part, input int) ([]byte, error)
}

// ReadOnly is a [Batch] whose bytes may be constant. If Input returns the same slice as in the run
// before and the device still has its bytes, the step does not copy it again.
type ReadOnly interface {
	Batch

	// ReadOnly reports whether nobody writes the bytes of Input while the step is in use.
	ReadOnly() bool
}

// Step is a program on a device, ready to train. It is not safe for concurrent use.
type Step struct {
	program *Program
	backend *piecewise.Backend
	dev     device.Device
	losses  []lossFuncs
	choose  stagedFunc

	seed    int64
	rank    int64
	offset  int64 // of all generators
	taken   int64 // all steps, including skipped ones
	slots   [2]lossSlot
	results piecewise.Results // of the latest step
	latest  int               // index of its loss
}

// lossFuncs has the functions of one loss.
type lossFuncs struct {
	step, accumulate, update stagedFunc
	advance                  int64 // the largest of its generators
}

// stagedFunc is a function of the backend with the sources of its parameters.
type stagedFunc struct {
	*piecewise.Func
	params []stagedParam
}

type stagedParam struct {
	name      string
	input     int // index in Program.Inputs; -1: a generator
	generator int
	last      []byte // of a read-only batch: the bytes of the last run
}

// lossSlot is host memory for the loss of a step.
type lossSlot struct {
	memory device.HostMemory
	copied device.Fence
	step   int64 // its step, from 1; 0: unused
}

// New compiles the functions of a program, with the options of [piecewise.New]: Ops implement the extern
// ops of the module, Capture.Mode selects the captures, and Rank is the rank of the device in the group of
// the program. Generator k of a loss ([Loss].Generators) has the seed seed + k.
func New(ctx context.Context, p *Program, seed int64, o piecewise.Options) (*Step, error) {
	if p == nil {
		return nil, fmt.Errorf("train: %w", ir.ErrNoModule)
	}
	b, err := piecewise.New(ctx, p.Module, o)
	if err != nil {
		return nil, err
	}
	s := &Step{program: p, backend: b, dev: o.Device, seed: seed, rank: int64(o.Rank)}
	if o.Device == nil && o.Pool != nil {
		s.dev = o.Pool.Stream().Device()
	}
	for i := range p.Losses {
		l := &p.Losses[i]
		f := lossFuncs{step: s.staged(l.Step, l), accumulate: s.staged(l.Accumulate, l), update: s.staged(l.Update, l)}
		for _, g := range l.Generators {
			f.advance = max(f.advance, g.Advance)
		}
		s.losses = append(s.losses, f)
	}
	s.choose = s.staged(p.Choose, &Loss{})
	return s, nil
}

// staged finds the sources of a function's parameters.
func (s *Step) staged(f *ir.Func, l *Loss) stagedFunc {
	if f == nil {
		return stagedFunc{}
	}
	out := stagedFunc{Func: s.backend.Func(f.Name)}
	for _, v := range f.Params {
		p := stagedParam{name: f.Values[v].Name, input: -1}
		for i, in := range s.program.Inputs {
			if in.Name == p.name {
				p.input = i
			}
		}
		for i, g := range l.Generators {
			if g.Name == p.name {
				p.generator = i
			}
		}
		out.params = append(out.params, p)
	}
	return out
}

// Program returns the step's program.
func (s *Step) Program() *Program { return s.program }

// Backend returns the step's backend, for its plan and statistics.
func (s *Step) Backend() *piecewise.Backend { return s.backend }

// Steps returns the number of steps, including skipped ones and those before a resumption.
func (s *Step) Steps() int64 { return s.taken }

// Seed returns the seed of the random numbers; after Restore, the seed of the resumed run.
func (s *Step) Seed() int64 { return s.seed }

// Skipped waits for the enqueued steps and returns the number of steps that updated no weight
// because a gradient was not finite.
func (s *Step) Skipped() (int64, error) {
	data, err := s.State(stateStep)
	if err != nil {
		return 0, err
	}
	return s.taken - int64(int32(binary.LittleEndian.Uint32(data))), nil
}

// Run enqueues one step. It checks the context before the step only, so that it does not stop between
// micro-batches. If the batch returns an error, the step can be run again. The failed run has changed
// no weight or state, except states that the function that chooses the loss writes, or the loss itself for
// the micro-batches before the error.
func (s *Step) Run(ctx context.Context, batch Batch) error {
	if batch == nil {
		return errors.New("train: no batch is given")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	results, latest := s.results, s.latest
	if err := s.train(context.Background(), batch); err != nil {
		s.results, s.latest = results, latest
		return err
	}
	s.taken++
	s.offset += s.losses[s.latest].advance * int64(s.program.options.MicroBatches*s.program.options.Ranks)
	return s.keepLoss()
}

// train runs the functions of a step, and sets the results and the index of the loss.
func (s *Step) train(ctx context.Context, batch Batch) error {
	if s.choose.Func != nil {
		if err := s.chosen(ctx, batch); err != nil {
			return err
		}
	}
	f := &s.losses[s.latest]
	if f.step.Func != nil {
		return s.run(ctx, &f.step, batch, 0)
	}
	if err := s.accumulate(ctx, f, batch); err != nil {
		return errors.Join(err, s.clearSums())
	}
	return nil
}

// accumulate runs the micro-batches of a step and its optimizer.
func (s *Step) accumulate(ctx context.Context, f *lossFuncs, batch Batch) error {
	for part := range s.program.options.MicroBatches {
		if err := s.run(ctx, &f.accumulate, batch, part); err != nil {
			return err
		}
	}
	return s.run(ctx, &f.update, batch, 0)
}

// run fills the inputs of a function and runs it.
func (s *Step) run(ctx context.Context, f *stagedFunc, batch Batch, part int) error {
	err := s.fillAndRun(ctx, f, batch, part)
	if err != nil {
		for i := range f.params { // the device may not have these bytes
			f.params[i].last = nil
		}
	}
	return err
}

func (s *Step) fillAndRun(ctx context.Context, f *stagedFunc, batch Batch, part int) error {
	in, err := f.Inputs(1)
	for errors.Is(err, piecewise.ErrSlotBusy) { // more runs are in flight than there are slots
		runtime.Gosched()
		in, err = f.Inputs(1)
	}
	if err != nil {
		return err
	}
	fixed, ok := batch.(ReadOnly)
	readOnly := ok && fixed.ReadOnly()
	for i := range f.params {
		p := &f.params[i]
		if kept, err := s.keep(in, p, batch, part, readOnly); kept || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		to, err := in.Bytes(p.name)
		if err != nil {
			return err
		}
		if p.input < 0 {
			binary.LittleEndian.PutUint64(to, uint64(s.seed+int64(p.generator)))
			binary.LittleEndian.PutUint64(to[8:], uint64(s.drawn(part)))
			continue
		}
		from, err := batch.Input(part, p.input)
		if err != nil {
			return err
		}
		if len(from) != len(to) {
			return fmt.Errorf("train: input %s of the batch has %d bytes, want %d", p.name, len(from), len(to))
		}
		copy(to, from)
		if p.last = nil; readOnly {
			p.last = from
		}
	}
	s.results, err = f.Run(ctx, in, nil)
	return err
}

// drawn returns the offset of the generators in a micro-batch. The micro-batches of all ranks
// draw different numbers.
func (s *Step) drawn(part int) int64 {
	before := s.rank*int64(s.program.options.MicroBatches) + int64(part)
	return s.offset + before*s.losses[s.latest].advance
}

// keep keeps a parameter on the device if the batch returns the same slice as in the run before.
func (s *Step) keep(in piecewise.Inputs, p *stagedParam, batch Batch, part int, readOnly bool) (bool, error) {
	if !readOnly || p.input < 0 || p.last == nil {
		return false, nil
	}
	from, err := batch.Input(part, p.input)
	if err != nil || len(from) != len(p.last) || unsafe.SliceData(from) != unsafe.SliceData(p.last) {
		return false, err
	}
	return in.Keep(p.name)
}

// chosen sets the loss of the step, which the device computes from the batch.
func (s *Step) chosen(ctx context.Context, batch Batch) error {
	if err := s.run(ctx, &s.choose, batch, 0); err != nil {
		return err
	}
	var out [4]byte
	if err := s.results.At(0).CopyTo(out[:]); err != nil {
		return err
	}
	i := int(int32(binary.LittleEndian.Uint32(out[:])))
	if i < 0 || i >= len(s.losses) {
		return fmt.Errorf("train: @%s chose loss %d, there are %d, counted from 0", s.choose.Name(), i, len(s.losses))
	}
	s.latest = i
	return nil
}

// keepLoss copies the loss of the step to its slot.
func (s *Step) keepLoss() error {
	slot := &s.slots[s.taken%int64(len(s.slots))]
	if err := slot.copied.Wait(); err != nil {
		return err
	}
	slot.step = s.taken
	if err := s.results.At(0).StartCopy(slot.memory.Bytes()); err != nil {
		return err
	}
	return slot.copied.Set(s.backend.Stream(), nil)
}

// Loss waits for a step, counted from 1, and returns its loss. The losses of the latest two steps
// since Load or Restore are available, so a loop that reads the previous loss keeps the device busy.
// If this step or another one met an index out of range, Loss returns the loss with a
// [*device.IndexError].
func (s *Step) Loss(step int64) (float32, error) {
	slot := &s.slots[max(step, 0)%int64(len(s.slots))]
	if step < 1 || slot.step != step {
		return 0, fmt.Errorf("train: no loss of step %d: the latest step is %d, and only the losses of the last two steps since Load or Restore are kept", step, s.taken)
	}
	if err := slot.copied.Wait(); err != nil {
		return 0, err
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(slot.memory.Bytes())), s.backend.Faults()
}

// forgetResults drops the results and losses of the steps before a Restore.
func (s *Step) forgetResults() {
	s.results = piecewise.Results{}
	for i := range s.slots {
		s.slots[i].step = 0
	}
}

// Chosen returns the index of the loss of the latest step.
func (s *Step) Chosen() int { return s.latest }

// Result returns a result of the latest step by its name in [Loss.Results]. Before the first step, and
// between Restore and the next step, it returns an error.
func (s *Step) Result(name string) (piecewise.Result, error) {
	if s.results.Len() == 0 {
		return piecewise.Result{}, fmt.Errorf("train: no step ran since New or Restore, so there is no result %q", name)
	}
	for i, r := range s.program.Losses[s.latest].Results {
		if r == name {
			return s.results.At(i), nil
		}
	}
	return piecewise.Result{}, fmt.Errorf("train: the latest step has no result %q", name)
}

// Close frees all memory of the step.
func (s *Step) Close() error {
	var errs []error
	for i := range s.slots {
		slot := &s.slots[i]
		if slot.memory != nil {
			errs = append(errs, slot.copied.Wait(), slot.copied.Close(), slot.memory.Free())
			*slot = lossSlot{}
		}
	}
	return errors.Join(append(errs, s.backend.Close())...)
}
