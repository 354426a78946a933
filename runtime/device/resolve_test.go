package device_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// routine is a library routine that takes up to most elements. The attribute says how many
// bytes of scratch it asks for per element. With 13 elements it fails.
type routine struct{ most int64 }

func (routine) Signature() device.Signature   { return device.Signature{} }
func (routine) Launch(c *device.OpCall) error { return nil }

func (r routine) ScratchBytes(args []device.Tensor, attrs []program.Attr) (int64, error) {
	switch n := args[0].Shape[0]; {
	case n == 13:
		return 0, errors.New("broken")
	case n > r.most:
		return 0, fmt.Errorf("%w: %d elements, at most %d", device.ErrDeclined, n, r.most)
	}
	each, _ := attrs[0].Dim.Const()
	return each * args[0].Shape[0], nil
}

// TestResolve checks which variant of a choice runs, which routines decline, and the bytes of scratch
// memory.
func TestResolve(t *testing.T) {
	n := dim.Sym("N")
	call := func(name string) program.Step {
		return program.Step{Kind: program.StepLibrary, Extern: name, Args: []int32{0}, Attrs: []program.Attr{{Name: "each", Kind: program.AttrDim, Dim: n}}}
	}
	p := &program.Program{Target: "t", Symbols: []string{"N"}, Params: []program.Param{{DType: dtype.F32, Shape: []dim.Dim{n}}},
		Buffers: []program.Buffer{{Kind: program.BufferParam, DType: dtype.F32, Shape: []dim.Dim{n}}, {Kind: program.BufferScratch, DType: dtype.F32, Shape: []dim.Dim{n}, First: 1, Last: 1}},
		Kernels: []program.Kernel{{Name: "k", Format: program.KernelCUDA, Code: []byte("x")}},
		Steps: []program.Step{{Args: []int32{0}}, {Kind: program.StepChoice, Variants: []program.Variant{
			{Guard: program.Guard{Expr: n, Lo: 1, Hi: 4}, Steps: []program.Step{{Args: []int32{0}}, {Args: []int32{1}}, {Args: []int32{0}}}},
			{Guard: program.Guard{Expr: n, Lo: 3, Hi: 40}, Steps: []program.Step{{Args: []int32{1}}, call("lib::a")}},
			{Guard: program.Guard{Expr: n, Lo: 3, Hi: 50}, Steps: []program.Step{call("lib::b")}},
			{Steps: []program.Step{{Args: []int32{0}}}}}}},
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	both := device.OpSet{"lib::a": routine{20}, "lib::b": routine{30}}
	for _, c := range []struct {
		n    int64
		libs device.OpSet
		want string // steps that run, routines that decline or are missing, bytes of scratch
	}{
		{2, both, "0 1 1 1; ; 8"},
		{3, both, "0 1 1 1; ; 12"},
		{10, both, "0 1 1 lib::a; ; 356"},
		{25, both, "0 1 lib::b; lib::a; 881"},
		{31, both, "0 1; lib::a lib::b; 124"},
		{41, both, "0 1; lib::b; 164"},
		{60, both, "0 1; ; 240"},
		{10, nil, "0 1; lib::a lib::b; 40"},
		{25, device.OpSet{"lib::b": routine{30}}, "0 1 lib::b; lib::a; 881"},
		{13, both, "step 1: lib::a: broken"},
	} {
		env, err := device.Env(p, []int64{c.n}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if r, err := device.Resolve(p, env, nil, c.libs); err != nil {
			got = err.Error()
		} else {
			var steps, declined []string
			for _, s := range r.Steps {
				steps = append(steps, strings.TrimSpace(fmt.Sprint(s.Index, " ", s.Extern)))
			}
			for _, d := range r.Declined {
				if d.Step != 1 || !errors.Is(d.Reason, device.ErrDeclined) {
					t.Errorf("N=%d: declined %+v", c.n, d)
				}
				declined = append(declined, d.Library)
			}
			got = fmt.Sprintf("%s; %s; %d", strings.Join(steps, " "), strings.Join(declined, " "), r.Scratch)
		}
		if got != c.want {
			t.Errorf("N=%d: %s, want %s", c.n, got, c.want)
		}
	}
	if _, err := device.Env(p, nil, nil); err == nil {
		t.Error("no value for N: no error")
	}
	p.Steps[1].Variants[3].Steps = []program.Step{call("collective::all_reduce")}
	env, err := device.Env(p, []int64{60}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := device.Resolve(p, env, nil, both); err == nil || !strings.Contains(err.Error(), `step 1: no variant fits these sizes and this device: `) || !strings.Contains(err.Error(), `no library routine "collective::all_reduce"`) {
		t.Errorf("the last variant lacks its collective: %v", err)
	}
}

// TestVariantsForDevices: a variant for other devices is skipped, and also a variant that needs a
// property which the device does not have.
func TestVariantsForDevices(t *testing.T) {
	n := dim.Sym("N")
	version := dim.Sym("device.major").Mul(dim.Const(10)).Add(dim.Sym("device.minor"))
	p := &program.Program{Target: "t", Symbols: []string{"N"}, Params: []program.Param{{DType: dtype.F32, Shape: []dim.Dim{n}}},
		Buffers: []program.Buffer{{Kind: program.BufferParam, DType: dtype.F32, Shape: []dim.Dim{n}}},
		Kernels: []program.Kernel{{Name: "own", Format: program.KernelCUDA, Code: []byte("x")}, {Name: "other", Format: program.KernelCUDA, Code: []byte("y")}},
		Steps: []program.Step{{Kind: program.StepChoice, Variants: []program.Variant{
			{Guard: program.Guard{Expr: n, Lo: 3, Hi: 4}, Device: program.Guard{Expr: version, Lo: 90, Hi: 90}, Steps: []program.Step{{Kernel: 0, Args: []int32{0}}}},
			{Steps: []program.Step{{Kernel: 1, Args: []int32{0}}}}}}},
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		n          int64
		properties map[string]int64
		want       int32 // the kernel
	}{
		{3, map[string]int64{"device.major": 9, "device.minor": 0}, 0}, {5, map[string]int64{"device.major": 9, "device.minor": 0}, 1},
		{3, map[string]int64{"device.major": 10, "device.minor": 0}, 1}, {3, map[string]int64{"device.major": 8, "device.minor": 9}, 1},
		{3, map[string]int64{"device.major": 9}, 1}, {3, nil, 1},
	} {
		env, err := device.Env(p, []int64{c.n}, c.properties)
		if err != nil {
			t.Fatal(err)
		}
		r, err := device.Resolve(p, env, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Steps[0].Kernel; got != c.want {
			t.Errorf("N=%d on %v: kernel %d, want %d", c.n, c.properties, got, c.want)
		}
	}
}
