package host

import (
	"encoding/binary"
	"math"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/program/vec"
	"pwc/runtime/device"
)

// tensor is a kernel argument: a 1-d buffer of elements.
type tensor struct {
	dt   dtype.DType
	data []byte
}

func floats(dt dtype.DType, vs ...float64) tensor {
	var b []byte
	for _, v := range vs {
		switch dt {
		case dtype.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
		case dtype.F16:
			b = binary.LittleEndian.AppendUint16(b, dtype.F64ToF16(v))
		case dtype.BF16:
			b = binary.LittleEndian.AppendUint16(b, dtype.F64ToBF16(v))
		}
	}
	return tensor{dt, b}
}

func integers(dt dtype.DType, vs ...int64) tensor {
	var b []byte
	for _, v := range vs {
		switch dt.Bits() {
		case 8:
			b = append(b, byte(v))
		case 16:
			b = binary.LittleEndian.AppendUint16(b, uint16(v))
		case 32:
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		case 64:
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
	}
	return tensor{dt, b}
}

// empty is room for n elements, all bits set.
func empty(dt dtype.DType, n int) tensor {
	b := make([]byte, int(dt.Bytes(int64(n))))
	for i := range b {
		b[i] = 0xff
	}
	return tensor{dt, b}
}

// zeros is n elements of value 0.
func zeros(dt dtype.DType, n int) tensor { return tensor{dt, make([]byte, int(dt.Bytes(int64(n))))} }

// values returns the elements of a float tensor.
func (x tensor) values() []float64 {
	var out []float64
	for b := x.data; len(b) > 0; b = b[x.dt.Bits()/8:] {
		switch x.dt {
		case dtype.F32:
			out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		case dtype.F16:
			out = append(out, float64(dtype.F16ToF32(binary.LittleEndian.Uint16(b))))
		case dtype.BF16:
			out = append(out, float64(dtype.BF16ToF32(binary.LittleEndian.Uint16(b))))
		}
	}
	return out
}

// ints returns the elements of an integer tensor.
func (x tensor) ints() []int64 {
	var out []int64
	for b := x.data; len(b) > 0; b = b[x.dt.Bits()/8:] {
		switch x.dt {
		case dtype.U8, dtype.Bool:
			out = append(out, int64(b[0]))
		case dtype.I8:
			out = append(out, int64(int8(b[0])))
		case dtype.I16:
			out = append(out, int64(int16(binary.LittleEndian.Uint16(b))))
		case dtype.I32:
			out = append(out, int64(int32(binary.LittleEndian.Uint32(b))))
		case dtype.I64:
			out = append(out, int64(binary.LittleEndian.Uint64(b)))
		}
	}
	return out
}

func openDevice(t testing.TB, workers int) *Device {
	t.Helper()
	d := Open(Options{Workers: workers})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// wrapKernel makes a program of one kernel whose arguments are its parameters,
// all of them writable.
func wrapKernel(t testing.TB, k *vec.Kernel, args ...tensor) *program.Program {
	t.Helper()
	code, err := k.Encode()
	if err != nil {
		t.Fatal(err)
	}
	p := &program.Program{Target: Target, Kernels: []program.Kernel{{Name: "test", Code: code}}}
	st := program.Step{Origin: 0}
	for i, a := range args {
		shape := testkit.Consts(int64(len(a.data) * 8 / a.dt.Bits()))
		p.Params = append(p.Params, program.Param{Mut: true, DType: a.dt, Shape: shape})
		p.Buffers = append(p.Buffers, program.Buffer{Kind: program.BufferParam, Index: int32(i), DType: a.dt, Shape: shape})
		st.Args = append(st.Args, int32(i))
	}
	p.Steps = []program.Step{st}
	return p
}

// loaded is a kernel in device memory.
type loaded struct {
	dev    *Device
	stream device.Stream
	exec   device.Executable
	launch device.BoundLaunch
	args   []tensor
	mem    []device.Buffer
}

func load(t testing.TB, d *Device, k *vec.Kernel, args ...tensor) *loaded {
	t.Helper()
	l, err := tryLoad(t, d, k, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, k)
	}
	return l
}

func tryLoad(t testing.TB, d *Device, k *vec.Kernel, args ...tensor) (*loaded, error) {
	t.Helper()
	l := &loaded{dev: d, args: args}
	var err error
	if l.stream, err = d.NewStream(); err != nil {
		return nil, err
	}
	if l.exec, err = d.Load(wrapKernel(t, k, args...), nil); err != nil {
		return nil, err
	}
	for _, a := range args {
		m, err := d.Alloc(int64(len(a.data)))
		if err != nil {
			return nil, err
		}
		b := device.Buffer{Memory: m, Size: int64(len(a.data))}
		if err := l.stream.CopyToDevice(b, a.data); err != nil {
			return nil, err
		}
		l.mem = append(l.mem, b)
	}
	l.launch, err = l.exec.Bind(nil, device.Args{Params: l.mem})
	return l, err
}

// run launches once and returns argument i afterwards.
func (l *loaded) run(t testing.TB, i int) tensor {
	t.Helper()
	if err := l.stream.Launch(l.launch); err != nil {
		t.Fatal(err)
	}
	return l.read(t, i)
}

func (l *loaded) read(t testing.TB, i int) tensor {
	t.Helper()
	out := tensor{l.args[i].dt, make([]byte, len(l.args[i].data))}
	if err := l.stream.CopyToHost(out.data, l.mem[i]); err != nil {
		t.Fatal(err)
	}
	return out
}

// flat is a contiguous access of a loop over [n].
func flat(arg int32, dt dtype.DType) vec.Access {
	return vec.Access{Arg: arg, DType: dt, Inner: testkit.Consts(1)}
}

// pointwiseF is a kernel out = op(in…) over n float32 elements.
func pointwiseF(n int64, op vec.Op, operands int) *vec.Kernel {
	l := vec.Loop{Inner: testkit.Consts(n), Regs: vec.RegCount{F: uint16(operands + 1)}, Phases: make([]vec.Phase, 1)}
	var body []vec.Instr
	for i := range operands {
		l.Access = append(l.Access, flat(int32(i), dtype.F32))
		body = append(body, vec.Instr{Op: vec.OpLoadF, Dst: uint16(i), X: int32(i)})
	}
	l.Access = append(l.Access, flat(int32(operands), dtype.F32))
	out := uint16(operands)
	body = append(body, vec.Instr{Op: op, Dst: out, A: 0, B: uint16(operands - 1)}, vec.Instr{Op: vec.OpStoreF, A: out, X: int32(operands)})
	l.Phases[0].Body = body
	return &vec.Kernel{Loop: l, Args: int32(operands + 1)}
}
