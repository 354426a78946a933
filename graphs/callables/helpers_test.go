package callables_test

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	comphost "pwc/compile/host"
	"pwc/graphs"
	"pwc/graphs/callables"
	"pwc/graphs/whole"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

var ctx = context.Background()

// rig is a device with a compiler for it.
type rig struct {
	dev      device.Device
	compiler pieces.Compiler
	store    pieces.Store
	stays    bool // several sessions share the device: close leaves it open
}

func hostRig() rig {
	return rig{dev: host.Open(host.Options{Workers: 1}), compiler: pieces.Pipeline{Backend: comphost.New()}, store: pieces.NewMemoryStore()}
}

// env is a session with the functions of a module.
type env struct {
	rig
	testing.TB
	s   *graphs.Session
	mod *ir.Module
	end []func() error // run in reverse order before the session is closed
}

func open(t testing.TB, g rig, text string) *env {
	t.Helper()
	return &env{rig: g, TB: t, s: testkit.Must[*graphs.Session](t)(graphs.NewSession(g.dev, graphs.SessionOptions{})), mod: testkit.Must[*ir.Module](t)(ir.Parse("m.ir", []byte(text)))}
}

// close closes the session. Graphs and storages that are left are errors.
func (e *env) close() {
	e.Helper()
	for i := len(e.end) - 1; i >= 0; i-- {
		testkit.Check(e, e.end[i]())
	}
	testkit.Check(e, e.s.Close())
	if !e.stays {
		testkit.Check(e, e.dev.Close())
	}
}

func (e *env) options() whole.Options { return whole.Options{Compiler: e.compiler, Store: e.store} }

// compile compiles a function.
func (e *env) compile(name string) *whole.Function {
	e.Helper()
	f := testkit.Must[*whole.Function](e)(whole.Compile(ctx, e.s, e.mod, name, e.options()))
	e.end = append(e.end, f.Close)
	return f
}

// callable compiles a function with its gradients.
func (e *env) callable(name string, o whole.CallableOptions) *whole.Callable {
	e.Helper()
	o.Options = e.options()
	c := testkit.Must[*whole.Callable](e)(whole.CompileCallable(ctx, e.s, e.mod, name, o))
	e.end = append(e.end, c.Close)
	return c
}

// tensor makes a tensor that close releases.
func (e *env) tensor(name string, values []float32, shape ...int64) graphs.Tensor {
	e.Helper()
	t := testkit.Must[graphs.Tensor](e)(e.s.TensorOf(name, bytes(values), dtype.F32, shape...))
	e.end = append(e.end, t.Release)
	return t
}

func (e *env) read(t graphs.Tensor) []float32 {
	e.Helper()
	b := make([]byte, t.Size())
	testkit.Check(e, e.s.Read(t, b))
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

func bytes(values []float32) (b []byte) {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// draw returns n numbers of a normal distribution.
func draw(r *rand.Rand, n int, scale float64) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(scale * r.NormFloat64())
	}
	return out
}

// args returns the arguments of a call: those with an index in grad require a gradient.
func args(ts []graphs.Tensor, grad ...int) []callables.Arg {
	out := make([]callables.Arg, len(ts))
	for i, t := range ts {
		out[i].Tensor = t
	}
	for _, i := range grad {
		out[i].RequiresGrad = true
	}
	return out
}
