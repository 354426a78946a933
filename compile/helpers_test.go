package compile_test

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"testing"

	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/internal/irgen"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// bound is the memory of one run: a tensor for each parameter, weight and
// state of a module with one function.
type bound struct {
	symbols map[string]int64
	params  []*interp.Tensor
	weights map[string]*interp.Tensor
	states  map[string]*interp.Tensor
}

func (b *bound) clone() *bound {
	c := &bound{symbols: b.symbols, weights: b.weights, states: make(map[string]*interp.Tensor)}
	for _, p := range b.params {
		c.params = append(c.params, p.Clone())
	}
	for name, s := range b.states {
		c.states[name] = s.Clone()
	}
	return c
}

// all returns the tensors in the order of a program's parameters.
func (b *bound) all(m *ir.Module) []*interp.Tensor {
	out := append([]*interp.Tensor{}, b.params...)
	for _, w := range m.Weights {
		out = append(out, b.weights[w.Name])
	}
	for _, s := range m.States {
		out = append(out, b.states[s.Name])
	}
	return out
}

// random binds a module to random elements for the symbol values.
func random(r *rand.Rand, m *ir.Module, symbols map[string]int64) (*bound, error) {
	b := &bound{symbols: symbols, weights: make(map[string]*interp.Tensor), states: make(map[string]*interp.Tensor)}
	tensor := func(t ir.Type) (*interp.Tensor, error) {
		shape, err := extents(t.Shape, symbols)
		if err != nil {
			return nil, err
		}
		x, err := interp.Zeros(t.DType, shape)
		if err != nil {
			return nil, err
		}
		for i := range x.Len() {
			if v := irgen.Input(r, t.DType); t.DType.Float() {
				x.Set(i, v)
			} else {
				x.SetInt(i, int64(v))
			}
		}
		return x, nil
	}
	f := m.Funcs[0]
	for _, p := range f.Params {
		x, err := tensor(f.Type(p))
		if err != nil {
			return nil, err
		}
		b.params = append(b.params, x)
	}
	for _, w := range m.Weights {
		x, err := tensor(w.Type)
		if err != nil {
			return nil, err
		}
		b.weights[w.Name] = x
	}
	for _, s := range m.States {
		x, err := tensor(s.Type)
		if err != nil {
			return nil, err
		}
		b.states[s.Name] = x
	}
	return b, nil
}

func extents(shape []dim.Dim, symbols map[string]int64) ([]int64, error) {
	out := make([]int64, len(shape))
	for i, d := range shape {
		n, err := d.Eval(func(s string) (int64, bool) { v, ok := symbols[s]; return v, ok })
		if err != nil {
			return nil, err
		}
		out[i] = n
	}
	return out, nil
}

// interpret runs the module's function in the interpreter.
func interpret(m *ir.Module, b *bound) ([]*interp.Tensor, error) {
	env := &interp.Env{Weights: b.weights, States: b.states, Symbols: b.symbols, Externs: map[string]interp.Extern{"silly::attention": sillyReference}}
	return interp.Run(context.Background(), m, m.Funcs[0], env, b.params)
}

// sillyReference is silly::attention(q, k, v, mut out): out = (q + 2k - v) / 4.
func sillyReference(c *interp.Call) error {
	q, k, v, out := c.Args[0], c.Args[1], c.Args[2], c.Args[3]
	for i := range out.Len() {
		if out.Type.Float() {
			out.Set(i, (q.At(i)+2*k.At(i)-v.At(i))/4)
		} else {
			out.SetInt(i, (q.Int(i)+2*k.Int(i)-v.Int(i))/4)
		}
	}
	return nil
}

// sillyOp is silly::attention on the host device.
type sillyOp struct{ dev *host.Device }

func (o sillyOp) Signature() device.Signature {
	return device.Signature{Name: "silly::attention", Mut: []bool{false, false, false, true}}
}

func (o sillyOp) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (o sillyOp) Launch(c *device.OpCall) error {
	return c.Stream.(*host.Stream).Call(func() error {
		call := &interp.Call{Name: "silly::attention"}
		for _, a := range c.Args {
			data, err := o.dev.Bytes(a.Buffer)
			if err != nil {
				return err
			}
			x, err := interp.FromBytes(a.DType, a.Shape, data)
			if err != nil {
				return err
			}
			call.Args = append(call.Args, x)
		}
		if err := sillyReference(call); err != nil {
			return err
		}
		out, err := o.dev.Bytes(c.Args[3].Buffer)
		if err != nil {
			return err
		}
		copy(out, call.Args[3].Bytes())
		return nil
	})
}

// execute runs a program on the host device and returns its results. Mutable
// parameters and states of b are written.
func execute(p *program.Program, m *ir.Module, b *bound) ([]*interp.Tensor, error) {
	dev := host.Open(host.Options{Workers: 2})
	defer dev.Close()
	exe, err := dev.Load(p, device.OpSet{"silly::attention": sillyOp{dev}})
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	symbols := make([]int64, len(p.Symbols))
	for i, s := range p.Symbols {
		symbols[i] = b.symbols[s]
	}
	alloc := func(n int64) (device.Buffer, error) {
		mem, err := dev.Alloc(max(n, 1))
		if err != nil {
			return device.Buffer{}, err
		}
		buf := device.Buffer{Memory: mem, Size: n}
		return buf, stream.Fill(buf, 0xa5) // what nothing wrote must not look like an answer
	}
	var args device.Args
	for _, x := range b.all(m) {
		buf, err := alloc(int64(len(x.Bytes())))
		if err != nil {
			return nil, err
		}
		if err := stream.CopyToDevice(buf, x.Bytes()); err != nil {
			return nil, err
		}
		args.Params = append(args.Params, buf)
	}
	shapes := make([][]int64, len(p.Results))
	for i, r := range p.Results {
		if shapes[i], err = extents(r.Shape, b.symbols); err != nil {
			return nil, err
		}
		x, err := interp.Zeros(r.DType, shapes[i])
		if err != nil {
			return nil, err
		}
		buf, err := alloc(int64(len(x.Bytes())))
		if err != nil {
			return nil, err
		}
		args.Results = append(args.Results, buf)
	}
	n, err := exe.ScratchBytes(symbols)
	if err != nil {
		return nil, err
	}
	if args.Scratch, err = alloc(n); err != nil {
		return nil, err
	}
	launch, err := exe.Bind(symbols, args)
	if err != nil {
		return nil, err
	}
	if err := stream.Launch(launch); err != nil {
		return nil, err
	}
	read := func(buf device.Buffer, dt dtype.DType, shape []int64) (*interp.Tensor, error) {
		data := make([]byte, buf.Size)
		if err := stream.CopyToHost(data, buf); err != nil {
			return nil, err
		}
		return interp.FromBytes(dt, shape, data)
	}
	var out []*interp.Tensor
	for i, r := range p.Results {
		buf := args.Results[i]
		if r.Alias >= 0 {
			buf = args.Params[r.Alias]
		} else if r.Same >= 0 {
			buf = args.Results[r.Same]
		}
		x, err := read(buf, r.DType, shapes[i])
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	for i, x := range b.all(m) {
		if !p.Params[i].Mut {
			continue
		}
		y, err := read(args.Params[i], x.Type, x.Shape)
		if err != nil {
			return nil, err
		}
		for j := range x.Len() {
			if x.Type.Float() {
				x.Set(j, y.At(j))
			} else {
				x.SetInt(j, y.Int(j))
			}
		}
	}
	return out, nil
}

// parse reads a module.
func parse(t testing.TB, text string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("test.ir", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// compileHost compiles a module for the host.
func compileHost(t testing.TB, m *ir.Module, s compile.Shape, o compile.Options) *program.Program {
	t.Helper()
	p, err := compile.Compile(context.Background(), m, s, hostbackend.New(), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// check compiles, runs and compares against the interpreter, with the
// tolerance for each dtype; with each set, element by element too.
func check(m *ir.Module, s compile.Shape, o compile.Options, b *bound, each bool) error {
	p, err := compile.Compile(context.Background(), m, s, hostbackend.New(), o)
	if err != nil {
		return err
	}
	if err := p.Validate(); err != nil {
		return fmt.Errorf("%w\n%s", err, p)
	}
	want, wantMem := b.clone(), b.clone()
	expect, err := interpret(m, want)
	if err != nil {
		return err
	}
	got, err := execute(p, m, wantMem)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p)
	}
	for i := range expect {
		if each {
			for j := range expect[i].Len() {
				if a, b := got[i].At(j), expect[i].At(j); !near(expect[i].Type, a, b) {
					return fmt.Errorf("result %d, element %d: %v, want %v\n%s", i, j, a, b, p)
				}
			}
		}
		if d := interp.Compare(got[i], expect[i]); !d.Within(tolerance(expect[i].Type)) {
			return fmt.Errorf("result %d: %s\ngot  %v\nwant %v\n%s", i, d, got[i], expect[i], p)
		}
	}
	left, right := wantMem.all(m), want.all(m)
	for i := range left {
		if d := interp.Compare(left[i], right[i]); !d.Within(tolerance(left[i].Type)) {
			return fmt.Errorf("parameter %d after the run: %s\n%s", i, d, p)
		}
	}
	return nil
}

// tolerance is the relative error ‖a−b‖/‖b‖ that the dtype's roundings allow.
func tolerance(dt dtype.DType) float64 {
	switch dt {
	case dtype.F32:
		return 1e-5
	case dtype.F16:
		return 2e-3
	case dtype.BF16:
		return 1.6e-2
	}
	return 0
}

// near reports whether two elements differ by no more than a few of the last
// places of their dtype. A NaN is near a NaN; the sign of a zero counts.
func near(dt dtype.DType, a, b float64) bool {
	switch {
	case a != a || b != b:
		return a != a && b != b
	case a == b:
		return a != 0 || math.Signbit(a) == math.Signbit(b)
	}
	// A last place of the smallest number: a narrow value is rounded twice, to
	// f32 and then to its dtype.
	least := map[dtype.DType]float64{dtype.F32: 0x1p-148, dtype.BF16: 0x1p-133, dtype.F16: 0x1p-24}[dt]
	return math.Abs(a-b) <= math.Max(tolerance(dt)/2*math.Max(math.Abs(a), math.Abs(b)), least)
}
