package split_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/split"
)

// reporter is the part of testing.T and rapid.T that checks use.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

// checkPlan checks the invariants of every plan.
func checkPlan(t reporter, p *split.Plan) {
	t.Helper()
	f := p.Func
	seen := make([]int, len(f.Nodes))
	id, seq := -1, 0
	for i, it := range p.Items {
		if it.ID <= id {
			t.Errorf("item %d has id %d after %d", i, it.ID, id)
		}
		id = it.ID
		if !slices.IsSorted(it.Nodes) || len(it.Nodes) == 0 {
			t.Errorf("item %d has nodes %v", it.ID, it.Nodes)
		}
		if !it.Splitting && (len(it.Units) != 1 || it.Units[0].Piece == nil) {
			t.Errorf("item %d is not one piece", it.ID)
		}
		var nodes []int
		for _, u := range it.Units {
			if u.Seq != seq || u.Item != i || p.Units[seq] != u || (u.Call < 0) == (u.Piece == nil) {
				t.Errorf("unit %d: %+v", seq, u)
			}
			seq++
			if u.Piece == nil {
				nodes = append(nodes, u.Call)
				continue
			}
			nodes = append(nodes, u.Piece.Origins...)
			if len(u.Piece.Origins) != len(u.Piece.Func.Nodes) {
				t.Errorf("unit %d: %d origins for %d nodes", u.Seq, len(u.Piece.Origins), len(u.Piece.Func.Nodes))
			}
			for j, o := range u.Piece.Origins {
				got, want := u.Piece.Func.Nodes[j].Name(), f.Nodes[o].Name()
				if got != want && (got != "empty" || want != "empty_like") {
					t.Errorf("unit %d: node %d is %s, came from %s", u.Seq, j, got, want)
				}
			}
			if err := u.Piece.Module.Verify(); err != nil {
				t.Errorf("unit %d: %v", u.Seq, err)
			}
			again, err := ir.Parse("piece", []byte(ir.Print(u.Piece.Module)))
			if err != nil {
				t.Errorf("unit %d: %v", u.Seq, err)
			} else if ir.HashFunc(again, again.Funcs[0]) != ir.HashFunc(u.Piece.Module, u.Piece.Func) {
				t.Errorf("unit %d changes when printed and parsed", u.Seq)
			}
		}
		if !slices.Equal(nodes, it.Nodes) {
			t.Errorf("item %d has nodes %v, its units %v", it.ID, it.Nodes, nodes)
		}
		for _, n := range it.Nodes {
			seen[n]++
		}
	}
	for n, k := range seen {
		if k != 1 {
			t.Errorf("node %d is in %d items", n, k)
		}
	}
	checkLives(t, p)
}

// checkLives compares Storages with the operands and results of units.
func checkLives(t reporter, p *split.Plan) {
	t.Helper()
	f := p.Func
	want := map[ir.Value]split.Storage{}
	for _, v := range f.Params {
		want[v] = split.Storage{Base: v, First: -1, Last: -1}
	}
	version := map[ir.Value]ir.Value{} // by base: the newest so far
	take := func(u *split.Unit, v ir.Value) {
		base := f.Base(v)
		if k := f.Values[base].Kind; k == ir.WeightValue || k == ir.StateValue {
			return
		}
		s, ok := want[base]
		if now, written := version[base]; !ok || written && v != now || !written && v != base {
			t.Errorf("unit %d takes value %d of storage %d, which is not its newest version", u.Seq, v, base)
		}
		s.Last = u.Seq
		want[base] = s
	}
	give := func(u *split.Unit, v ir.Value) {
		want[f.Base(v)] = split.Storage{Base: f.Base(v), First: u.Seq, Last: u.Seq}
	}
	for _, u := range p.Units {
		nodes := []int{u.Call}
		if u.Piece != nil {
			nodes = u.Piece.Origins
			for _, b := range u.Piece.Params {
				if b.Base != f.Base(b.Value) {
					t.Errorf("unit %d binds value %d with base %d, want %d", u.Seq, b.Value, b.Base, f.Base(b.Value))
				}
				take(u, b.Value)
			}
		} else {
			for _, a := range f.Nodes[u.Call].Args {
				take(u, a)
			}
			for _, r := range f.Nodes[u.Call].Results {
				give(u, r)
			}
		}
		for _, n := range nodes {
			for _, w := range f.Nodes[n].Versions {
				version[f.Base(w.Value)] = w.Value
			}
		}
		if u.Piece == nil {
			continue
		}
		for _, b := range u.Piece.Results {
			give(u, b.Base)
			if now, written := version[b.Base]; b.Base != f.Base(b.Value) || written && b.Value != now || !written && b.Value != b.Base {
				t.Errorf("unit %d: the newest version of storage %d is %d, but the result is bound to %d", u.Seq, b.Base, now, b.Value)
			}
		}
	}
	for _, v := range f.Returns {
		if s, ok := want[f.Base(v)]; ok {
			s.Returned = true
			want[f.Base(v)] = s
		}
	}
	for _, s := range p.Storages {
		if s != want[s.Base] {
			t.Errorf("storage %+v, want %+v by its uses", s, want[s.Base])
		}
		delete(want, s.Base)
	}
	if len(want) > 0 {
		t.Errorf("the plan lacks storages: %v", want)
	}
}

// machine runs a plan on one memory for each storage. After the last unit of a storage, it frees
// the memory, unless the storage is a parameter or the function returns it.
type machine struct {
	p       *split.Plan
	memory  map[ir.Value]*interp.Tensor
	env     *interp.Env
	symbols map[string]int64
}

// sameAsFunction runs the function and, on the same inputs, its plan. It returns an
// error if a number in results, states or parameters differs.
func sameAsFunction(ctx context.Context, p *split.Plan, seed uint64) error {
	m, f := p.Module, p.Func
	rng := rand.New(rand.NewPCG(seed, 0))
	symbols := map[string]int64{}
	for _, s := range m.Symbols {
		symbols[s.Name] = s.Lo + rng.Int64N(min(s.Hi-s.Lo, 3)+1)
	}
	random := func(t ir.Type) (*interp.Tensor, error) {
		shape := make([]int64, t.Rank())
		n := int64(1)
		for i, d := range t.Shape {
			v, err := d.Eval(func(s string) (int64, bool) { x, ok := symbols[s]; return x, ok })
			if err != nil {
				return nil, err
			}
			shape[i] = v
			n *= v
		}
		values := make([]float64, n)
		for i := range values {
			values[i] = float64(rng.IntN(9) - 4)
			if t.DType.Int() {
				values[i] = float64(rng.IntN(4))
			} else if t.DType == dtype.Bool {
				values[i] = float64(rng.IntN(2))
			}
		}
		return interp.FromFloat64s(t.DType, shape, values)
	}
	env := &interp.Env{Weights: map[string]*interp.Tensor{}, States: map[string]*interp.Tensor{}, Symbols: symbols, Externs: externs(m)}
	planEnv := &interp.Env{Weights: env.Weights, States: map[string]*interp.Tensor{}, Symbols: symbols, Externs: env.Externs}
	var err error
	for _, w := range m.Weights {
		if env.Weights[w.Name], err = random(w.Type); err != nil {
			return err
		}
	}
	for _, s := range m.States {
		if env.States[s.Name], err = random(s.Type); err != nil {
			return err
		}
		planEnv.States[s.Name] = env.States[s.Name].Clone()
	}
	mc := &machine{p: p, memory: map[ir.Value]*interp.Tensor{}, env: planEnv, symbols: symbols}
	inputs := make([]*interp.Tensor, len(f.Params))
	for i, v := range f.Params {
		if inputs[i], err = random(f.Values[v].Type); err != nil {
			return err
		}
		mc.memory[v] = inputs[i].Clone()
	}
	want, err := interp.Run(ctx, m, f, env, inputs)
	if err != nil {
		return fmt.Errorf("the function: %w", err)
	}
	got, err := mc.run(ctx)
	if err != nil {
		return fmt.Errorf("the plan: %w", err)
	}
	for i := range want {
		if d := interp.Compare(got[i], want[i]); d.Worst >= 0 || d.Shape != "" {
			return fmt.Errorf("result %d differs: %+v", i, d)
		}
	}
	for name, s := range env.States {
		if d := interp.Compare(planEnv.States[name], s); d.Worst >= 0 {
			return fmt.Errorf("state %s differs: %+v", name, d)
		}
	}
	for i, v := range f.Params {
		if t, ok := mc.memory[v]; ok {
			if d := interp.Compare(t, inputs[i]); d.Worst >= 0 {
				return fmt.Errorf("parameter %d differs: %+v", i, d)
			}
		}
	}
	return nil
}

func (mc *machine) run(ctx context.Context) ([]*interp.Tensor, error) {
	p, f := mc.p, mc.p.Func
	for _, u := range p.Units {
		var err error
		if u.Piece != nil {
			err = mc.piece(ctx, u.Piece)
		} else {
			err = mc.call(f.Nodes[u.Call])
		}
		if err != nil {
			return nil, fmt.Errorf("unit %d: %w", u.Seq, err)
		}
		for _, s := range p.Storages {
			if s.Last == u.Seq && s.First >= 0 && !s.Returned {
				delete(mc.memory, s.Base)
			}
		}
	}
	out := make([]*interp.Tensor, len(f.Returns))
	for i, v := range f.Returns {
		t, err := mc.tensor(v)
		if err != nil {
			return nil, err
		}
		out[i] = t
	}
	return out, nil
}

// tensor returns the memory of a value's storage.
func (mc *machine) tensor(v ir.Value) (*interp.Tensor, error) {
	info := mc.p.Func.Values[mc.p.Func.Base(v)]
	switch info.Kind {
	case ir.WeightValue:
		return mc.env.Weights[mc.p.Module.Weights[info.Index].Name], nil
	case ir.StateValue:
		return mc.env.States[mc.p.Module.States[info.Index].Name], nil
	}
	if t := mc.memory[mc.p.Func.Base(v)]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("value %d is not in memory", v)
}

func (mc *machine) piece(ctx context.Context, p *split.Piece) error {
	env := &interp.Env{Weights: map[string]*interp.Tensor{}, States: map[string]*interp.Tensor{}, Symbols: map[string]int64{}, Externs: mc.env.Externs}
	for i, w := range p.Weights {
		env.Weights[p.Module.Weights[i].Name] = mc.env.Weights[mc.p.Module.Weights[w].Name]
	}
	for i, s := range p.States {
		env.States[p.Module.States[i].Name] = mc.env.States[mc.p.Module.States[s].Name]
	}
	for i, s := range p.Symbols {
		env.Symbols[p.Module.Symbols[i].Name] = mc.symbols[s]
	}
	inputs := make([]*interp.Tensor, len(p.Params))
	for i, b := range p.Params {
		t, err := mc.tensor(b.Value)
		if err != nil {
			return err
		}
		inputs[i] = t
	}
	results, err := interp.Run(ctx, p.Module, p.Func, env, inputs)
	if err != nil {
		return err
	}
	for i, b := range p.Results {
		mc.memory[b.Base] = results[i]
	}
	return nil
}

// call launches an extern op on memory. Its fresh results are step buffers.
func (mc *machine) call(n *ir.Node) error {
	c := &interp.Call{Name: n.Extern.Name, Attrs: n.Attrs}
	for _, a := range n.Args {
		t, err := mc.tensor(a)
		if err != nil {
			return err
		}
		c.Args = append(c.Args, t)
	}
	for _, r := range n.Results {
		if !slices.ContainsFunc(mc.p.Buffers, func(s split.StepBuffer) bool { return s.Value == r }) {
			return fmt.Errorf("result %d of %s has no step buffer", r, n.Name())
		}
		shape := make([]int64, 0, 4)
		for _, d := range mc.p.Func.Values[r].Type.Shape {
			v, err := d.Eval(func(s string) (int64, bool) { x, ok := mc.symbols[s]; return x, ok })
			if err != nil {
				return err
			}
			shape = append(shape, v)
		}
		t, err := interp.Zeros(mc.p.Func.Values[r].Type.DType, shape)
		if err != nil {
			return err
		}
		mc.memory[r] = t
		c.Results = append(c.Results, t)
	}
	return mc.env.Externs[n.Extern.Name](c)
}

// externs gives each declared op a meaning that depends on all it reads: every
// element it writes is a mix of its operands, old contents included.
func externs(m *ir.Module) map[string]interp.Extern {
	out := map[string]interp.Extern{}
	for _, e := range m.Externs {
		out[e.Name] = func(c *interp.Call) error {
			var sum float64
			for i, a := range c.Args {
				for j := range a.Len() {
					sum += a.At(j) * float64(i+1) / float64(j+2)
				}
			}
			fill := func(t *interp.Tensor, salt int) {
				for j := range t.Len() {
					t.Set(j, float64(int64(sum*8)%16)+float64(j+salt))
				}
			}
			for i, a := range c.Args {
				if e.Mut[i] {
					fill(a, i)
				}
			}
			for i, r := range c.Results {
				fill(r, 10+i)
			}
			return nil
		}
	}
	return out
}
