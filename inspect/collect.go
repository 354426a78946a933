package inspect

import (
	"errors"
	"fmt"
	"slices"

	"pwc/cache"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/padding"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/program/vec"
	"pwc/split"
)

// Options are the inputs of a report.
type Options struct {
	Module  *ir.Module
	Name    string // of the model, for display
	Version string // of pwc
	Mode    piecewise.Mode
	Backend *piecewise.Backend                     // compiled by Recorder, without a cache
	SplitOn []string                               // as the backend was split
	Sizes   []int64                                // rows of steps that the report has numbers for; rising
	Symbols map[string]int64                       // values of symbols other than batch symbols; missing: the lower bound, at least 1
	Cached  func(cache.Key) bool                   // whether the cache had an artifact before
	Graph   func(fn string, splitting bool) string // the graph that has an item: own, whole, both or none

	Recorder *Recorder
}

// Collect returns the report of a compiled model.
func Collect(o Options) (*Report, error) {
	if o.Module == nil {
		return nil, fmt.Errorf("inspect: Options.Module: %w", ir.ErrNoModule)
	}
	if o.Backend == nil || o.Recorder == nil || o.Graph == nil || o.Cached == nil {
		return nil, errors.New("inspect: Options need Backend, Recorder, Graph and Cached")
	}
	// Here and below, lists are empty and not nil, which would be null in JSON: the page reads their lengths.
	r := &Report{Schema: Schema, Model: o.Name, Target: o.Recorder.Target(), Mode: o.Mode.String(), Version: o.Version,
		Sizes: append([]int64{}, o.Sizes...), Functions: []Function{}, Pieces: []Piece{}}
	c := &collector{o: o, r: r, at: map[[32]byte]int{}}
	for _, f := range o.Module.Funcs {
		plan, err := split.Split(o.Module, f, o.SplitOn)
		if err != nil {
			return nil, err
		}
		c.plans = append(c.plans, plan)
		if err := c.function(f, plan); err != nil {
			return nil, err
		}
	}
	c.shapes()
	return r, nil
}

// collector fills a report.
type collector struct {
	o     Options
	r     *Report
	at    map[[32]byte]int // by hash: index in Report.Pieces
	plans []*split.Plan    // by function
	first []*split.Piece   // by index: the first use, whose symbols name the module's
}

func (c *collector) function(f *ir.Func, plan *split.Plan) error {
	size, _ := padding.SizeSymbol(c.o.Module, f)
	fn := Function{Name: f.Name, Size: size, Units: []Unit{}, Memory: []Storage{}}
	for _, u := range plan.Units {
		item := plan.Items[u.Item]
		unit := Unit{Item: item.ID, Piece: -1, Graph: c.o.Graph(f.Name, item.Splitting)}
		if u.Piece == nil {
			unit.Call, unit.Loc = f.Nodes[u.Call].Name(), f.Nodes[u.Call].Loc
		} else {
			unit.Loc = sharedLoc(plan, u.Piece.Origins)
			unit.Piece = c.piece(f, u.Piece, unit.Loc)
		}
		fn.Units = append(fn.Units, unit)
	}
	memory, err := c.o.Backend.Memory(f.Name, c.o.Sizes)
	if err != nil {
		return err
	}
	fn.Arena = append([]int64{}, memory.Arena...)
	for _, s := range memory.Storages {
		fn.Memory = append(fn.Memory, Storage{Name: s.Name, Type: s.Type.String(), First: s.First, Last: s.Last, Where: s.Where, Bytes: s.Bytes, Offset: s.Offset})
	}
	for i, n := range memory.Captured {
		fn.Captures = append(fn.Captures, Capture{Size: n, From: memory.From[i]})
	}
	c.r.Functions = append(c.r.Functions, fn)
	return nil
}

// piece returns the index of a piece in the report.
func (c *collector) piece(f *ir.Func, p *split.Piece, loc string) int {
	i, ok := c.at[p.Hash]
	if !ok {
		i = len(c.r.Pieces)
		c.at[p.Hash] = i
		c.first = append(c.first, p)
		piece := Piece{Hash: fmt.Sprintf("%x", p.Hash)[:12], Nodes: len(p.Func.Nodes), Function: f.Name, Loc: loc, Text: ir.Print(p.Module), Ops: []int64{}, Shapes: []Shape{}}
		for _, n := range p.Func.Nodes {
			if n.Extern != nil {
				piece.Calls = append(piece.Calls, n.Name())
			}
		}
		for _, rows := range c.o.Sizes {
			piece.Ops = append(piece.Ops, operations(p.Func, c.env(p, rows)))
		}
		c.r.Pieces = append(c.r.Pieces, piece)
	}
	c.r.Pieces[i].Uses++
	return i
}

// env sets the symbols of a piece. A batch symbol gets the rows, up to its upper bound.
func (c *collector) env(p *split.Piece, rows int64) program.Env {
	return func(name string) (int64, bool) {
		for i, s := range p.Module.Symbols {
			if s.Name != name {
				continue
			}
			if s.Kind == ir.Batch {
				return min(rows, s.Hi), true
			}
			if n, ok := c.o.Symbols[p.Symbols[i]]; ok {
				return n, true
			}
			return max(s.Lo, 1), true
		}
		return 1, true // a property of the device
	}
}

// operations counts the arithmetic of a piece: 2·M·N·K for a GEMM; 1 for each element of the first operand or
// the result of a reduction or composite op, whichever has more; 1 for each element of another op's result; 0 for
// layout ops, creations and calls.
func operations(f *ir.Func, env program.Env) int64 {
	sum := int64(0)
	for _, n := range f.Nodes {
		if len(n.Results) == 0 {
			continue
		}
		elements := count(f.Type(n.Results[0]).Shape, env)
		switch n.Op.Class {
		case ir.Layout, ir.Creation, ir.Call:
		case ir.Contract:
			k := int64(1)
			if shape := f.Type(n.Args[0]).Shape; len(shape) > 0 {
				k = count(shape[len(shape)-1:], env)
			}
			sum += 2 * elements * k
		case ir.Reduction, ir.Composite:
			sum += max(elements, count(f.Type(n.Args[0]).Shape, env))
		default:
			sum += elements
		}
	}
	return sum
}

func count(shape []dim.Dim, env program.Env) int64 {
	n := int64(1)
	for _, d := range shape {
		v, err := d.Eval(env)
		if err != nil {
			return 0
		}
		n *= v
	}
	return n
}

// shapes adds the compiled shapes of the pieces.
func (c *collector) shapes() {
	built := c.o.Backend.Build()
	for _, a := range built.Artifacts {
		seen := map[int]bool{}
		for _, u := range a.Uses {
			i := c.at[c.plans[u.Plan].Units[u.Unit].Piece.Hash]
			if !seen[i] {
				seen[i] = true
				c.r.Pieces[i].Shapes = append(c.r.Pieces[i].Shapes, c.shape(c.first[i], a))
			}
		}
	}
}

func (c *collector) shape(p *split.Piece, a *pieces.Artifact) Shape {
	s := Shape{Range: "any size", Kernels: []Kernel{}, Cached: c.o.Cached(a.Key), Program: a.Program.String(), Passes: c.o.Recorder.passes(p.Module, a.Program)}
	if a.Range != (pieces.Range{}) {
		s.Range = a.Range.String()
	}
	for i := range a.Program.Steps {
		step := &a.Program.Steps[i]
		if step.Kind != program.StepChoice {
			s.Kernels = append(s.Kernels, c.kernel(p, a.Program, step, i))
			continue
		}
		for j, v := range step.Variants {
			for k := range v.Steps {
				kernel := c.kernel(p, a.Program, &v.Steps[k], i)
				kernel.Variant = j
				if !v.Guard.Always() {
					kernel.Guard = fmt.Sprintf("%v in [%d, %d]", v.Guard.Expr, v.Guard.Lo, v.Guard.Hi)
				}
				s.Kernels = append(s.Kernels, kernel)
			}
		}
	}
	return s
}

// kernel describes a launch.
func (c *collector) kernel(p *split.Piece, prog *program.Program, step *program.Step, i int) Kernel {
	k := Kernel{Step: i, Bytes: []int64{}}
	if o := int(step.Origin); o >= 0 && o < len(p.Func.Nodes) {
		k.Origin = p.Module.NodeString(p.Func, o)
	}
	for _, rows := range c.o.Sizes {
		sum := int64(0)
		for _, b := range slices.Compact(slices.Sorted(slices.Values(step.Args))) {
			if n, err := prog.Buffers[b].Bytes(c.env(p, rows)); err == nil {
				sum += n
			}
		}
		k.Bytes = append(k.Bytes, sum)
	}
	if step.Kind != program.StepKernel {
		k.Name, k.Library = step.Extern, step.Kind == program.StepLibrary
		return k
	}
	code := &prog.Kernels[step.Kernel]
	k.Name = code.Name
	switch code.Format {
	case program.KernelCUDA:
		k.Language, k.Source = "CUDA C", c.o.Recorder.source(code.Code)
		k.Registers, k.Shared = resources(code.Code, code.Name)
		k.Grid, k.Block = fmt.Sprint(step.Launch.Grid), fmt.Sprint(step.Launch.Block)
		if n, ok := step.Launch.Shared.Const(); !ok || n > 0 {
			k.Dynamic = step.Launch.Shared.String()
		}
	case program.KernelVec:
		k.Language = "vector program"
		if v, err := vec.Decode(code.Code); err == nil {
			k.Source = v.String()
		}
	}
	return k
}
