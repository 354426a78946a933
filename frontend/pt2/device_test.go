package pt2

import (
	"context"
	"fmt"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/compile/host"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/safetensors"
)

// toyOp is toy::attention on the host, as a runner implements its own op.
type toyOp struct{ dev *hostdev.Device }

func (o *toyOp) Signature() device.Signature {
	return device.Signature{Name: "toy::attention", Mut: make([]bool, 3), Results: 1}
}

func (o *toyOp) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (o *toyOp) Launch(c *device.OpCall) error {
	if c.Stream.Capturing() {
		return device.ErrNotCapturable
	}
	call := interp.Call{}
	for i := range c.Args {
		data, err := o.dev.Bytes(c.Args[i].Buffer)
		if err != nil {
			return err
		}
		t, err := interp.FromBytes(c.Args[i].DType, c.Args[i].Shape, data)
		if err != nil {
			return err
		}
		if i < 3 {
			call.Args = append(call.Args, t)
			continue
		}
		call.Results = append(call.Results, t)
		if err := toyAttention(&call); err != nil {
			return err
		}
		copy(data, t.Bytes())
		// Padded rows must become zero.
		clear(data[int64(len(data))/c.Size*c.Rows:])
	}
	return nil
}

// TestHost compiles programs for the host and runs them eagerly, in pieces and in full graphs at several sizes of their
// dynamic dimension, for which they are captured unless the mode is none. The reference is PyTorch at the size of the
// export, and the interpreter at others.
func TestHost(t *testing.T) {
	for _, name := range []string{"mlp", "moe-dense", "toy-attention", "hf-bert", "hf-llama-eager"} {
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
			if name == "toy-attention" && mode == piecewise.Full {
				continue // its op is not captured
			}
			t.Run(fmt.Sprint(name, "/", mode), func(t *testing.T) {
				dev := hostdev.Open(hostdev.Options{Workers: 1})
				t.Cleanup(func() { dev.Close() })
				runOn(t, name, mode, dev, host.New(), &toyOp{dev})
			})
		}
	}
}

// TestOnGPU is TestHost on a GPU, without the program that needs an extern op. An emulated GPU runs only the smaller
// programs, captured.
func TestOnGPU(t *testing.T) {
	dev := cudatest.Open(t, fake.Options{})
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	if err != nil {
		t.Fatal(err)
	}
	programs := []string{"mlp", "moe-dense"}
	if !dev.Emulated {
		programs = append(programs, "hf-bert", "hf-llama-eager")
	}
	for _, name := range programs {
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
			if dev.Emulated && mode == piecewise.None {
				continue // graphs launch the same kernels
			}
			t.Run(fmt.Sprint(name, "/", mode), func(t *testing.T) { runOn(t, name, mode, dev.Device, backend) })
		}
	}
}

// TestModelsOnHost compiles models of transformers and captures them at the larger of the two batch sizes for which
// there are results of PyTorch. It runs them at both: the smaller one is padded if the rows are independent.
func TestModelsOnHost(t *testing.T) {
	for _, name := range []string{"hf-resnet", "hf-convnext", "hf-swin", "hf-dinov2", "hf-segformer", "hf-whisper-encoder",
		"hf-wav2vec2", "hf-deberta", "hf-modernbert", "hf-gemma3", "hf-mamba", "hf-static-llama"} {
		t.Run(name, func(t *testing.T) {
			dev := hostdev.Open(hostdev.Options{Workers: 1})
			t.Cleanup(func() { dev.Close() })
			modelOn(t, name, dev, host.New())
		})
	}
}

func modelOn(t *testing.T, name string, dev device.Device, backend compile.Backend) {
	a := open(t, name)
	m, err := a.Import(optionsOf[name])
	if err != nil {
		t.Fatal(err)
	}
	b := loaded(t, a, m, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: backend}},
		Capture: piecewise.CaptureOptions{Mode: piecewise.Full, Sizes: []int64{4}}})
	f := m.Module.Func(FuncName)
	param := f.Values[f.Params[0]]
	for _, path := range matching(t, name+"/expected*.safetensors") {
		golden, err := safetensors.Parse(content(t, path))
		if err != nil {
			t.Fatal(err)
		}
		in, want := widened(tensorOf(t, golden, "in0"), param.Type.DType), tensorOf(t, golden, "out0")
		got := onDevice(t, b, param.Name, in, in.Shape[0], want)
		if d := interp.Compare(got, want); !d.Within(1e-4) {
			t.Errorf("%s: %s", path, d)
		}
	}
	if err := b.Faults(); err != nil {
		t.Error(err)
	}
}

// loaded returns a backend that is ready to run. The end of the test closes it.
func loaded(t *testing.T, a *Archive, m *Model, o piecewise.Options) *piecewise.Backend {
	t.Helper()
	ctx := context.Background()
	b, err := piecewise.New(ctx, m.Module, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, step := range []func() error{func() error { return b.Load(ctx, a, nil) }, func() error { return b.Capture(ctx) }, b.Seal} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func runOn(t *testing.T, name string, mode piecewise.Mode, dev device.Device, backend compile.Backend, ops ...device.Op) {
	ctx := context.Background()
	a := open(t, name)
	m, err := a.Import(optionsOf[name])
	if err != nil {
		t.Fatal(err)
	}
	golden, err := safetensors.Parse(content(t, name+"/expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	in, want := tensorOf(t, golden, "in0"), tensorOf(t, golden, "out0")
	f := m.Module.Func(FuncName)
	param := f.Values[f.Params[0]]
	in = widened(in, param.Type.DType)
	axis := len(in.Shape) - 1
	if in.Type.Float() {
		axis = 0
	}
	full := in.Shape[axis]
	o := piecewise.Options{Device: dev, Ops: ops,
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: backend}, SplitOn: optionsOf[name].Externs},
		Capture: piecewise.CaptureOptions{Mode: mode}}
	if mode != piecewise.None {
		o.Capture.Sizes = []int64{2, 5, full}
	}
	b := loaded(t, a, m, o)
	env := &interp.Env{Weights: map[string]*interp.Tensor{}, Externs: externs}
	for _, w := range m.Module.Weights {
		env.Weights[w.Name] = tensorOf(t, a, w.Name)
	}
	for _, n := range []int64{full, 2, 5} {
		part := first(t, in, axis, n)
		if n != full {
			out, err := interp.Run(ctx, m.Module, f, env, []*interp.Tensor{part})
			if err != nil {
				t.Fatal(err)
			}
			want = out[0]
		}
		got := onDevice(t, b, param.Name, part, n, want)
		if d := interp.Compare(got, want); !d.Within(1e-4) {
			t.Errorf("size %d: %s", n, d)
		}
	}
	if err := b.Faults(); err != nil {
		t.Error(err)
	}
}

// first returns the first n indices of an axis. All axes before it must have size 1.
func first(t *testing.T, x *interp.Tensor, axis int, n int64) *interp.Tensor {
	t.Helper()
	shape := append([]int64{}, x.Shape...)
	data := x.Bytes()
	data = data[:int64(len(data))/shape[axis]*n]
	shape[axis] = n
	out, err := interp.FromBytes(x.Type, shape, data)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// onDevice runs the function and returns its result, which has the type of like.
func onDevice(t *testing.T, b *piecewise.Backend, param string, x *interp.Tensor, n int64, like *interp.Tensor) *interp.Tensor {
	t.Helper()
	in, err := b.Func(FuncName).Inputs(n)
	if err != nil {
		t.Fatal(err)
	}
	data, err := in.Bytes(param)
	if err != nil {
		t.Fatal(err)
	}
	copy(data, x.Bytes())
	r, err := b.Func(FuncName).Run(context.Background(), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, len(like.Bytes()))
	if err := r.At(0).CopyTo(out); err != nil {
		t.Fatal(err)
	}
	v, err := interp.FromBytes(like.Type, like.Shape, out)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
