package ir_test

import (
	"fmt"
	"math/rand"
	"runtime"
	"strings"
	"testing"

	"pwc/internal/irgen"
	"pwc/ir"
)

// TestVerifyOfDamage changes one field of a finished function, as a faulty pass may. Verify must
// not panic, and must refuse at least half of the functions: some changes leave them valid.
func TestVerifyOfDamage(t *testing.T) {
	refused := 0
	const seeds = 3000
	for seed := range int64(seeds) {
		r := rand.New(rand.NewSource(seed))
		m := irgen.Generate(r, irgen.Options{MixRows: true, Load: seed%2 == 0, MaxOps: 1 + r.Intn(12)})
		if len(m.Funcs[0].Nodes) == 0 {
			continue // no op fitted the module's values
		}
		what := damage(r, m.Funcs[0])
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Fatalf("seed %d: %s: %v\n%s", seed, what, p, ir.Print(m))
				}
			}()
			if m.Verify() != nil {
				refused++
			}
		}()
	}
	if refused < seeds/2 {
		t.Errorf("%d of %d damaged functions were refused", refused, seeds)
	}
}

// damage changes one field of a function and returns a description of the change.
func damage(r *rand.Rand, f *ir.Func) string {
	value := func() ir.Value { return ir.Value(r.Intn(len(f.Values)+4) - 2) }
	number := func() int32 { return int32(r.Intn(len(f.Nodes)+4) - 2) }
	v := &f.Values[r.Intn(len(f.Values))]
	n := f.Nodes[r.Intn(len(f.Nodes))]
	arg := func(list []ir.Value) string {
		if len(list) == 0 {
			return "nothing"
		}
		i := r.Intn(len(list))
		list[i] = value()
		return fmt.Sprintf("entry %d is %d", i, list[i])
	}
	switch r.Intn(14) {
	case 0:
		return "operands: " + arg(n.Args)
	case 1:
		return "results: " + arg(n.Results)
	case 2:
		return "returns: " + arg(f.Returns)
	case 3:
		return "parameters: " + arg(f.Params)
	case 4:
		v.Node = number()
		return fmt.Sprintf("a value is of node %d", v.Node)
	case 5:
		v.Base = value()
		return fmt.Sprintf("a value's base is %d", v.Base)
	case 6:
		v.Kind = ir.ValueKind(r.Intn(7))
		return fmt.Sprintf("a value is of kind %d", v.Kind)
	case 7:
		v.Index = number()
		return fmt.Sprintf("a value's index is %d", v.Index)
	case 8:
		n.Op = nil
		return "a node has no op"
	case 9:
		n.Op = ir.Ops()[r.Intn(len(ir.Ops()))]
		return "a node's op is " + n.Op.Name
	case 10:
		n.Attrs = nil
		return "a node has no attributes"
	case 11:
		n.Versions = append(n.Versions, ir.Version{Arg: r.Intn(6) - 1, Value: value()})
		return fmt.Sprintf("a node has version %+v", n.Versions)
	case 12:
		n.Results = append(n.Results, value())
		return "a node has a result more"
	}
	n.Args = append(n.Args, value())
	return "a node has an operand more"
}

// TestManyFunctions: the memory that Verify allocates does not grow with the product of the numbers of
// functions and symbols.
func TestManyFunctions(t *testing.T) {
	const count = 2000
	var text strings.Builder
	text.WriteString(`pwc 1 module "m" {`)
	for i := range count {
		fmt.Fprintf(&text, " sym N%d in [1, 2] func @f%d() {}", i, i)
	}
	m := mustParse(t, text.String()+" }")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := m.Verify()
	runtime.ReadMemStats(&after)
	if bytes := after.TotalAlloc - before.TotalAlloc; err != nil || bytes > count*1000 {
		t.Errorf("%d bytes, %v", bytes, err)
	}
}
