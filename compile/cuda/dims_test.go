package cuda_test

import (
	"context"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"pwc/compile"
	"pwc/internal/irgen"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/program"
)

// TestDimsAreBounded: the dims of launches satisfy the check that a device makes when it binds
// a launch (program.LaunchDims): they are at most the number of elements of the largest buffer,
// except those in LaunchFree. Otherwise a device would refuse a program for some sizes. The test
// also limits how many are in LaunchFree, because the device does not check these.
func TestDimsAreBounded(t *testing.T) {
	d := &dimsCheck{T: t, rnd: rand.New(rand.NewSource(1))}
	for i := range 60 {
		rnd := rand.New(rand.NewSource(int64(i)))
		m := irgen.Generate(rnd, irgen.Options{MixRows: true, Load: rnd.Intn(2) == 0, Odd: rnd.Intn(8) == 0, MaxOps: 1 + rnd.Intn(60)})
		d.check(m, archs[i%len(archs)])
	}
	random := *d
	d.dims, d.free = 0, 0
	for _, config := range []string{shape1B, shapeToy} {
		for _, m := range pieces(t, config) {
			d.check(m, "sm_90")
		}
	}
	if d.dims == 0 || random.dims == 0 || d.free*10 > d.dims || random.free*4 > random.dims {
		t.Errorf("%d of %d dims of models and %d of %d of random modules are in LaunchFree, want at most a tenth and a quarter", d.free, d.dims, random.free, random.dims)
	}
	t.Logf("%d of %d dims of models and %d of %d of random modules are in LaunchFree", d.free, d.dims, random.free, random.dims)
	files, err := filepath.Glob("../testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no modules", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ir.Parse(name, txtar.Parse(data).Files[0].Data)
		if err != nil {
			t.Fatal(err)
		}
		d.check(m, "sm_90")
	}
}

type dimsCheck struct {
	*testing.T
	rnd        *rand.Rand
	dims, free int
}

// check compiles a module and checks the launches of all its kernels, for sizes at the ends of
// their ranges and inside.
func (d *dimsCheck) check(m *ir.Module, arch string) {
	d.Helper()
	p, err := compile.Compile(context.Background(), m, compile.Shape{}, newRecorder(d.T, "cuda:"+arch), compile.Options{})
	if err != nil {
		d.Fatal(err)
	}
	var steps []*program.Step
	for i := range p.Steps {
		steps = append(steps, &p.Steps[i])
		for v := range p.Steps[i].Variants {
			for s := range p.Steps[i].Variants[v].Steps {
				steps = append(steps, &p.Steps[i].Variants[v].Steps[s])
			}
		}
	}
	for i := range 8 {
		values := map[string]int64{}
		for _, s := range m.Symbols {
			values[s.Name] = [...]int64{s.Lo, s.Hi, s.Lo + d.rnd.Int63n(s.Hi-s.Lo+1)}[min(i, 2)]
		}
		env := func(name string) (int64, bool) { v, ok := values[name]; return v, ok }
		for _, s := range steps {
			if s.Kind == program.StepKernel {
				d.step(m, p, s, env, i == 0)
			}
		}
	}
}

func (d *dimsCheck) step(m *ir.Module, p *program.Program, s *program.Step, env program.Env, count bool) {
	d.Helper()
	most := int64(0)
	for _, a := range s.Args {
		n := int64(1)
		for _, e := range p.Buffers[a].Shape {
			v, err := e.Eval(env)
			if err != nil {
				d.Fatal(err)
			}
			n *= v
		}
		most = max(most, n)
	}
	attr := func(name string) []dim.Dim {
		i := slices.IndexFunc(s.Launch.Attrs, func(a program.Attr) bool { return a.Name == name })
		if i < 0 {
			return nil
		}
		return s.Launch.Attrs[i].Dims
	}
	free := attr(program.LaunchFree)
	if count {
		d.dims += len(attr(program.LaunchDims))
		d.free += len(free)
	}
	for _, g := range s.Launch.Grid {
		if n, err := g.Eval(env); err == nil && n == 0 {
			return // it is not launched
		}
	}
	for i, e := range attr(program.LaunchDims) {
		n, err := e.Eval(env)
		if err == nil && n > most && !slices.ContainsFunc(free, dim.Const(int64(i)).Equal) {
			d.Errorf("kernel %s: dim %d, %s = %d, of buffers of at most %d elements\n%s", p.Kernels[s.Kernel].Name, i, e, n, most, ir.Print(m))
		}
	}
}
