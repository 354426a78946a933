package graphs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// Generator makes random numbers by Philox4x32-10 (Salmon et al., SC 2011). A number is a
// function of seed, offset and the element's index (C19). A run, eager or replayed, reads seed
// and offset from the device, and its draws advance the offset, so one seed gives one sequence in
// any mixture of both. A run that fails before its launch is enqueued does not advance the offset, unless
// another run of the generator began meanwhile. (PyTorch advances it before the launch.)
type Generator struct {
	s *Session

	mu        sync.Mutex
	state     GeneratorState
	capturing *Graph // during a capture that lists the generator
	inside    uint64 // by how much the capture's draws advance the offset so far
}

// GeneratorState determines the numbers of a generator.
type GeneratorState struct {
	Seed   uint64
	Offset uint64 // a multiple of program.DrawStep
}

// NewGenerator returns a generator of the session with offset 0.
func (s *Session) NewGenerator(seed uint64) *Generator {
	return &Generator{s: s, state: GeneratorState{Seed: seed}}
}

// State returns seed and offset. During a capture that lists the generator (Options.Generators)
// they are undefined, and the error matches [ErrGenerator].
func (g *Generator) State() (GeneratorState, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.capturing != nil {
		return GeneratorState{}, fmt.Errorf("%w: the state is read while %s captures draws: read it before or after", ErrGenerator, g.capturing.name)
	}
	return g.state, nil
}

// SetState sets seed and offset for the next run, eager or replayed. The error matches
// [ErrGenerator] during a capture that lists the generator, and if the offset is not a multiple of
// program.DrawStep.
func (g *Generator) SetState(s GeneratorState) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.capturing != nil:
		return fmt.Errorf("%w: the state is set while %s captures draws: set it before or after", ErrGenerator, g.capturing.name)
	case s.Offset%program.DrawStep != 0:
		return fmt.Errorf("%w: offset %d is not a multiple of %d", ErrGenerator, s.Offset, program.DrawStep)
	}
	g.state = s
	return nil
}

// Seed sets the seed, and the offset to 0. During a capture that lists the generator it changes
// nothing, and the error matches [ErrGenerator] unless the seed is the current one.
func (g *Generator) Seed(seed uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.capturing != nil {
		if seed == g.state.Seed {
			return nil
		}
		return fmt.Errorf("%w: seed %d while %s captures draws of seed %d: set it before or after", ErrGenerator, seed, g.capturing.name, g.state.Seed)
	}
	g.state = GeneratorState{Seed: seed}
	return nil
}

// advance returns the state and then adds by to its offset.
func (g *Generator) advance(by uint64) GeneratorState {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.state
	g.state.Offset += by
	return s
}

// retract undoes takes whose launch was not enqueued. A generator whose state has changed since stays as it
// is, so no number is drawn twice.
func retract(takes []take) {
	for i := range takes {
		t := &takes[len(takes)-1-i]
		t.gen.mu.Lock()
		if t.gen.state == (GeneratorState{Seed: t.now.Seed, Offset: t.now.Offset + t.by}) {
			t.gen.state = t.now
		}
		t.gen.mu.Unlock()
	}
}

// draw is one use of a generator by a recorded launch. A replay writes seed and offset to its
// slot of 16 bytes on the device.
type draw struct {
	gen    *Generator
	within uint64 // offset relative to the generator's at the start of a replay
}

const (
	stateBytes = 16               // of a seed and an offset
	slotBytes  = program.MaxAlign // distance of slots: the largest alignment of a parameter
	slotsMost  = 256              // of one graph
)

// Draw takes numbers from g for a launch. It returns the state that the launch reads, i64[2] with
// one owner, and adds `by` to the generator's offset; in a capture, each replay does so. `by` is the
// Advance of the launch's parameter ([program.Param]), which does not depend on the number of elements.
// The error matches [ErrGenerator] if `by` is not a multiple of program.DrawStep, for a generator of
// another session, and for one that the capture does not list.
//
// Draw serves runs that repeat their draws, such as the backward of a dropout: both launches get the
// tensor in place of the generator. If the next run of an eager recorder fails before its launch is
// enqueued, the generator gets the numbers back (see [Generator]), and the tensor must not be used any more.
func (r *Recorder) Draw(g *Generator, by uint64) (Tensor, error) {
	switch {
	case g.s != r.s:
		return Tensor{}, fmt.Errorf("%w: it belongs to another session", ErrGenerator)
	case by%program.DrawStep != 0:
		return Tensor{}, fmt.Errorf("%w: a launch advances the offset by %d, want a multiple of %d", ErrGenerator, by, program.DrawStep)
	}
	if !r.Capturing() {
		return r.drawNow(g, by)
	}
	slot, err := r.slot(g, by, "a launch")
	if err != nil {
		return Tensor{}, err
	}
	return r.Clone("state of a generator", slot)
}

// draw returns the state of g for parameter i of p.
func (r *Recorder) draw(g *Generator, p *Program, i int) (Tensor, error) {
	if g.s != r.s {
		return Tensor{}, fmt.Errorf("%w: it belongs to another session", ErrGenerator)
	}
	if !p.prog.Params[i].Generator {
		return Tensor{}, fmt.Errorf("%w: parameter %d of @%s is not the state of a generator", ErrArguments, i, p.name)
	}
	by := uint64(p.prog.Params[i].Advance)
	if r.Capturing() {
		return r.slot(g, by, "@"+p.name)
	}
	t, err := r.drawNow(g, by)
	if err == nil {
		r.run.temps = append(r.run.temps, t)
	}
	return t, err
}

// settle ends the draws for a launch: if it was not enqueued, the generators get their numbers back.
func (r *run) settle(enqueued bool) {
	if !enqueued {
		retract(r.drawn)
	}
	r.drawn = r.drawn[:0]
}

// drawNow returns the state for a launch that runs at once.
func (r *Recorder) drawNow(g *Generator, by uint64) (Tensor, error) {
	t, err := r.Alloc("state of a generator", dtype.I64, 2)
	if err != nil {
		return t, err
	}
	r.run.undo.drawn(g)
	state := g.advance(by)
	r.run.drawn = append(r.run.drawn, take{g, by, state})
	if err := r.s.send(r.stream, t.Range(), func(b []byte) { putState(b, state, 0) }); err != nil {
		r.run.settle(false)
		return Tensor{}, errors.Join(err, t.Release())
	}
	return t, nil
}

// slot returns the slot of the next draw of a capture. The memory belongs to the graph and not to
// a pool of graphs. Each graph has its own slots, so graphs that share a generator may run
// concurrently.
func (r *Recorder) slot(g *Generator, by uint64, who string) (Tensor, error) {
	c := r.run.graph
	if !slices.Contains(c.opts.Generators, g) {
		return Tensor{}, fmt.Errorf("%w: %s draws from a generator that %s does not list: add it to Options.Generators", ErrGenerator, who, c.name)
	}
	if len(r.run.draws) == slotsMost {
		return Tensor{}, fmt.Errorf("%w: %s has more than %d launches that draw", ErrGenerator, c.name, slotsMost)
	}
	g.mu.Lock()
	at := g.inside
	g.inside += by
	g.mu.Unlock()
	slot := int64(len(r.run.draws))
	r.run.draws = append(r.run.draws, draw{g, at})
	if c.slots.Storage() == nil {
		t, err := r.s.alloced(r.s.shared, r.s.deflt, &Maker{Name: "generator states of " + c.name, Output: -1}, dtype.U8, []int64{slotBytes * slotsMost})
		if err != nil {
			return t, err
		}
		c.slots = t
	}
	return c.slots.View(slot*slotBytes, dtype.I64, 2)
}

func putState(b []byte, s GeneratorState, within uint64) {
	binary.LittleEndian.PutUint64(b, s.Seed)
	binary.LittleEndian.PutUint64(b[8:], s.Offset+within)
}

// fillSlots writes the states that a replay's draws read, and advances the generators, also if it fails.
func (g *Graph) fillSlots(st *Stream) error {
	if len(g.draws) == 0 {
		return nil
	}
	for i := range g.takes {
		t := &g.takes[i]
		t.now = t.gen.advance(t.by)
	}
	n := int64(len(g.draws)-1)*slotBytes + stateBytes
	return g.s.send(st, g.slots.Range().Slice(0, n), g.put)
}

// putSlots writes the slots that fillSlots sends.
func (g *Graph) putSlots(b []byte) {
	for i := range g.draws {
		d := &g.draws[i]
		for j := range g.takes {
			if g.takes[j].gen == d.gen {
				putState(b[i*slotBytes:], g.takes[j].now, d.within)
			}
		}
	}
}

// take is by how much a replay or a launch advances the offset of a generator.
type take struct {
	gen *Generator
	by  uint64
	now GeneratorState // before the present run
}

// hostRing is host memory for copies to the device. A slot is reused after its copy has ended.
type hostRing struct {
	slots []hostSlot
	next  int
}

type hostSlot struct {
	mem   device.HostMemory
	fence device.Fence
}

const (
	ringSlots = 8
	ringBytes = slotsMost * slotBytes
)

// send enqueues a copy to dst of the bytes that put writes. dst has at most ringBytes.
func (s *Session) send(st *Stream, dst device.Buffer, put func([]byte)) error {
	s.ringMu.Lock()
	defer s.ringMu.Unlock()
	if s.ring.slots == nil {
		for range ringSlots {
			m, err := s.dev.AllocHost(ringBytes)
			if err != nil {
				return errors.Join(err, s.ring.close())
			}
			f, err := device.NewFence(s.dev)
			if err != nil {
				return errors.Join(err, m.Free(), s.ring.close())
			}
			s.ring.slots = append(s.ring.slots, hostSlot{m, f})
		}
	}
	slot := &s.ring.slots[s.ring.next]
	s.ring.next = (s.ring.next + 1) % len(s.ring.slots)
	if err := slot.fence.Wait(); err != nil {
		return err
	}
	b := slot.mem.Bytes()[:dst.Size]
	put(b)
	if err := st.dev.CopyToDevice(dst, b); err != nil {
		return err
	}
	return slot.fence.Set(st.dev, nil)
}

func (r *hostRing) close() error {
	var errs []error
	for i := range r.slots {
		errs = append(errs, r.slots[i].fence.Close(), r.slots[i].mem.Free())
	}
	r.slots, r.next = nil, 0
	return errors.Join(errs...)
}
