package autodiff_test

import (
	"context"
	"math/rand"
	"slices"
	"testing"

	"pwc/autodiff"
	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/internal/irgen"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/interp"
)

// Random modules have gradients by all their floats, which compile. In the interpreter, forward and
// backward give the results of the function and the gradients of the joint module, to the bit, however
// much is saved.
func TestRandomModules(t *testing.T) {
	var ops []string
	for _, op := range ir.Ops() {
		if has, _ := autodiff.Rule(op); op.Class != ir.Call && (has || op.Class != ir.Attention) {
			ops = append(ops, op.Name)
		}
	}
	differentiated := 0
	for seed := range int64(60) {
		r := rand.New(rand.NewSource(seed))
		m := irgen.Generate(r, irgen.Options{MixRows: true, Load: true, MaxOps: 1 + r.Intn(40), Ops: ops, Faults: seed%4 == 0})
		f := m.Funcs[0]
		wrt := floats(m)
		if len(wrt) == 0 || !slices.ContainsFunc(f.ResultTypes, func(typ ir.Type) bool { return typ.DType.Float() }) {
			continue
		}
		differentiated++
		g, err := autodiff.Joint(m, f.Name, wrt, autodiff.Options{})
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, ir.Print(m))
		}
		g = testkit.Parse(t, ir.Print(g))
		if _, err := compile.Compile(context.Background(), g, compile.Shape{}, hostbackend.New(), compile.Options{}); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, ir.Print(g))
		}
		symbols := map[string]int64{}
		for _, s := range m.Symbols {
			symbols[s.Name] = max(s.Lo, min(s.Hi, 5))
		}
		in, err := oracle.Draw(r, m, symbols, nil)
		if err != nil {
			t.Fatal(err)
		}
		var cotangents []*interp.Tensor
		for _, typ := range f.ResultTypes {
			if typ.DType.Float() {
				shape, err := oracle.Extents(typ.Shape, symbols)
				if err != nil {
					t.Fatal(err)
				}
				x, err := interp.Zeros(typ.DType, shape)
				if err != nil {
					t.Fatal(err)
				}
				for i := range x.Len() {
					x.Set(i, irgen.Input(r, typ.DType))
				}
				cotangents = append(cotangents, x)
			}
		}
		whole, all := in.Clone(), in.Clone()
		results := interpret(t, m, whole)
		all.Params = append(all.Params, cotangents...)
		want := interpret(t, g, all)
		if err := oracle.SameBits(all.All(m)[:len(f.Params)], whole.All(m)[:len(f.Params)]); err != nil {
			t.Fatalf("seed %d: contents of parameters after the run: %v", seed, err)
		}
		for _, save := range []autodiff.Save{autodiff.SaveAuto, autodiff.SaveAll, autodiff.SaveNothing} {
			d, err := autodiff.Gradients(m, f.Name, wrt, autodiff.Options{Save: save})
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, ir.Print(m))
			}
			if err := oracle.SameBits(interpret(t, only(d.Module, d.Forward), in.Clone())[:len(results)], results); err != nil {
				t.Errorf("seed %d, save %d: results of the forward: %v", seed, save, err)
			}
			if err := oracle.SameBits(twoSteps(t, d, in, cotangents, interpret), want); err != nil {
				t.Errorf("seed %d, save %d: %v\n%s", seed, save, err, ir.Print(d.Module))
			}
		}
	}
	if differentiated < 30 {
		t.Errorf("only %d of the modules had something to differentiate", differentiated)
	}
}
