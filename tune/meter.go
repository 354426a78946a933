package tune

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"pwc/ir/dim"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// meter measures programs on cold memory.
type meter struct {
	dev    *cuda.Device
	stream *cuda.Stream
	memory device.Memory // parameters, results and scratch of launches, which take parts of it in turn
	work   device.Memory // workspace of library routines
	used   int64
}

func newMeter(dev *cuda.Device, bytes int64) (m *meter, err error) {
	m = &meter{dev: dev}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	s, err := dev.NewStream()
	if err != nil {
		return m, err
	}
	m.stream = s.(*cuda.Stream)
	if n := dev.WorkspaceBytes(); n > 0 {
		if m.work, err = dev.Alloc(n); err != nil {
			return m, err
		}
		if err := m.stream.UseWorkspace(device.Buffer{Memory: m.work, Size: n}); err != nil {
			return m, err
		}
	}
	if m.memory, err = dev.Alloc(bytes); err != nil {
		return m, err
	}
	// Bytes of 0x3c are a finite number in every dtype of a GEMM.
	return m, m.stream.Fill(device.Buffer{Memory: m.memory, Size: bytes}, 0x3c)
}

func (m *meter) close() error {
	var errs []error
	if m.stream != nil {
		errs = append(errs, m.stream.Synchronize(), m.stream.Close())
	}
	for _, mem := range []device.Memory{m.memory, m.work} {
		if mem != nil {
			errs = append(errs, mem.Free())
		}
	}
	return errors.Join(errs...)
}

// take returns the part of memory that was unused for the longest time.
func (m *meter) take(bytes int64) (device.Buffer, error) {
	at := (m.used + 511) &^ 511
	if bytes > m.memory.Size() {
		return device.Buffer{}, fmt.Errorf("%d bytes of an operand or of scratch memory do not fit into the %d bytes for measurements: raise Options.Memory", bytes, m.memory.Size())
	}
	if at+bytes > m.memory.Size() {
		at = 0
	}
	m.used = at + bytes
	return device.Buffer{Memory: m.memory, Offset: at, Size: bytes}, nil
}

// Parameters of a measurement. One graph has several launches with different operands. The result is the
// least time of several runs of the graph, divided by its launches.
const (
	coldBytes = 512 << 20 // a graph gets launches until their parameters have this many bytes together,
	launches  = 24        // or until it has this many launches
	runs      = 4         // timed runs, which follow one that is not timed
)

// time returns the time of one launch of the program, on cold operands.
func (m *meter) time(p *program.Program, symbols []int64) (d time.Duration, err error) {
	x, err := m.dev.Load(p, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	bound, err := m.bind(x, symbols)
	if err != nil {
		return 0, err
	}
	if err := m.stream.WarmLibraries(bound[0]); err != nil {
		return 0, err
	}
	if err := m.stream.Launch(bound[0]); err != nil {
		return 0, err
	}
	if err := m.stream.BeginCapture(device.CaptureThreadLocal); err != nil {
		return 0, err
	}
	for _, l := range bound {
		if err = m.stream.Launch(l); err != nil {
			break
		}
	}
	g, endErr := m.stream.EndCapture()
	if endErr == nil { // a graph must be closed also if a launch failed
		defer func() { err = errors.Join(err, g.Close()) }()
	}
	if err = errors.Join(err, endErr); err != nil {
		return 0, err
	}
	for i := range runs + 1 {
		one, err := m.replay(g)
		if err != nil {
			return 0, err
		}
		if i == 1 || i > 1 && one < d {
			d = one
		}
	}
	return d / time.Duration(len(bound)), nil
}

// bind returns launches of a program, bound to parts of the memory in turn (take).
func (m *meter) bind(x device.Executable, symbols []int64) ([]device.BoundLaunch, error) {
	p := x.Program()
	env, err := device.Env(p, symbols, m.dev.Info().Properties)
	if err != nil {
		return nil, err
	}
	scratch, err := x.ScratchBytes(symbols)
	if err != nil {
		return nil, err
	}
	var out []device.BoundLaunch
	read := int64(0)
	for len(out) == 0 || len(out) < launches && read < coldBytes {
		var args device.Args
		for _, a := range p.Params {
			b, err := m.tensor(program.Bytes(a.DType, a.Shape, env))
			if err != nil {
				return nil, err
			}
			args.Params = append(args.Params, b)
			read += b.Size
		}
		for _, r := range p.Results {
			b, err := m.tensor(program.Bytes(r.DType, r.Shape, env))
			if err != nil {
				return nil, err
			}
			args.Results = append(args.Results, b)
		}
		if args.Scratch, err = m.take(scratch); err != nil {
			return nil, err
		}
		l, err := x.Bind(symbols, args)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

func (m *meter) tensor(bytes int64, err error) (device.Buffer, error) {
	if err != nil {
		return device.Buffer{}, err
	}
	return m.take(bytes)
}

// replay returns the time of a graph on the device.
func (m *meter) replay(g device.Graph) (d time.Duration, err error) {
	var events [2]device.Event
	for i := range events {
		if events[i], err = m.dev.NewTimedEvent(); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, events[i].Close()) }()
	}
	if err := errors.Join(m.stream.Record(events[0]), m.stream.LaunchGraph(g), m.stream.Record(events[1]), m.stream.Synchronize()); err != nil {
		return 0, err
	}
	return m.dev.Elapsed(events[0], events[1])
}

// alone returns a program with only the given steps of p, in order. Buffers that they do not use, except
// constants, have size 0.
func alone(p *program.Program, steps []program.Step) *program.Program {
	out := *p
	out.Steps = steps
	out.Params, out.Results, out.Buffers = slices.Clone(p.Params), slices.Clone(p.Results), slices.Clone(p.Buffers)
	used := map[int32]bool{}
	params, results := map[int32]bool{}, map[int32]bool{}
	for _, s := range steps {
		for _, a := range s.Args {
			used[a] = true
			switch b := &p.Buffers[a]; b.Kind {
			case program.BufferParam:
				params[b.Index] = true
			case program.BufferResult:
				results[b.Index] = true
			}
		}
	}
	none := []dim.Dim{dim.Const(0)}
	for i := range out.Buffers {
		b := &out.Buffers[i]
		if !used[int32(i)] && b.Kind != program.BufferConst {
			b.Shape = none
		}
		if b.Kind == program.BufferScratch {
			b.First, b.Last = 0, int32(len(steps)-1)
		}
	}
	for i := range out.Params {
		if !params[int32(i)] {
			out.Params[i].Shape = none
		}
	}
	for i := range out.Results {
		if !results[int32(i)] {
			out.Results[i].Shape = none
		}
	}
	return &out
}
