package compile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/ir"
	"pwc/program"
)

// Version is the version of the pipeline. It changes whenever the same piece
// may give another program.
const Version = "42"

// PassInfo describes one pass.
type PassInfo struct {
	Name     string
	Does     string
	Required bool // cannot be switched off: later passes do not know what it removes
	Order    []Order
}

// Order is a constraint between two passes.
type Order struct {
	After  string // the pass comes after that one
	Before string // or before that one
	Reason string
}

// Passes returns the pipeline in its order. The first is Static; User stands
// for the passes of Options.
func Passes() []PassInfo {
	return []PassInfo{
		{Name: "static", Does: "puts constants in place of symbols whose range is one number",
			Order: []Order{{Before: "noop", Reason: "a slice may become one of everything"}, {Before: "fuse", Reason: "constant extents take simpler addresses"}}},
		{Name: "user", Does: "runs the passes of Options, in their order",
			Order: []Order{{After: "static", Reason: "they see the extents that will run"}, {Before: "lower", Reason: "they see whole ops, as the piece was written"}}},
		{Name: "lower", Does: "replaces norms, softmax, rope and integer products by primitive ops in f32", Required: true,
			Order: []Order{{Before: "noop", Reason: "it casts f32 to f32"}, {Before: "cse", Reason: "two norms of one value share their mean"}, {Before: "fuse", Reason: "fusion knows no composite ops"}}},
		{Name: "noop", Does: "drops ops that give their operand, bit for bit",
			Order: []Order{{Before: "cse", Reason: "operands become equal"}}},
		{Name: "fold", Does: "computes constants from constants, where the result is the same on every machine",
			Order: []Order{{After: "noop", Reason: "fewer ops stand between constants"}, {Before: "cse", Reason: "equal constants become one"}}},
		{Name: "cse", Does: "computes equal nodes once",
			Order: []Order{{Before: "dce", Reason: "it leaves the second of them unused"}}},
		{Name: "dce", Does: "drops nodes that nothing uses",
			Order: []Order{{Before: "fuse", Reason: "a use that is none would keep a value in memory"}}},
		{Name: "fuse", Does: "puts nodes together into kernels; switched off, each node is one",
			Order: []Order{{Before: "inplace", Reason: "memory exists between kernels only"}}},
		{Name: "chain", Does: "lets kernels in a row become code together, where the target can",
			Order: []Order{{After: "fuse", Reason: "it is about kernels"}, {Before: "inplace", Reason: "what shares memory by the order of two kernels must not become one"}, {Before: "emit", Reason: "it changes the list of steps"}}},
		{Name: "inplace", Does: "lets outputs take the scratch memory of inputs that die",
			Order: []Order{{Before: "emit", Reason: "it changes which buffers there are"}}},
		{Name: "beside", Does: "lets neighbouring kernels that do not depend on each other run as one launch, where the target can",
			Order: []Order{{After: "inplace", Reason: "kernels that share memory depend on each other"}, {Before: "emit", Reason: "it changes the list of steps"}}},
		{Name: "emit", Does: "makes code for the target and the list of steps", Required: true},
	}
}

// Pass is a pass that a user adds. Run gets a function whose nodes are as
// written, and returns another one (see [ir.Rewrite]) or the same.
//
// It must be a function of its input without the origins: of pieces that differ in
// nothing else one is compiled. Each node that it returns has the [ir.Origin] of a
// node that it got, as those have that a Rewriter makes, or the zero Origin where it
// is made for none of them.
type Pass struct {
	Name    string
	Version string // together with Name its identity, which enters keys
	Run     func(m *ir.Module, f *ir.Func) (*ir.Func, error)
}

// Options change what the pipeline does.
type Options struct {
	Disable []string // names of passes that are switched off
	Passes  []Pass
	Dump    func(pass, text string) // nil: no dumps; gets the function or the kernels after each pass
}

// Fingerprint identifies everything in the options that may change a program,
// and the pipeline itself; two compilations of one piece with equal
// fingerprints give equal programs.
func (o Options) Fingerprint() string {
	disable := slices.Compact(slices.Sorted(slices.Values(o.Disable)))
	s := "pipeline " + Version
	if len(disable) > 0 {
		s += " without " + strings.Join(disable, ",")
	}
	for _, p := range o.Passes {
		s += fmt.Sprintf(" pass %q %q", p.Name, p.Version)
	}
	return s
}

// pipeline is checked options.
type pipeline struct {
	o        Options
	disabled map[string]bool
}

func (o Options) pipeline() (*pipeline, error) {
	p := &pipeline{o: o, disabled: make(map[string]bool)}
	for _, name := range o.Disable {
		i := slices.IndexFunc(Passes(), func(i PassInfo) bool { return i.Name == name })
		switch {
		case i < 0:
			return nil, fmt.Errorf("compile: there is no pass %q to switch off", name)
		case Passes()[i].Required:
			return nil, fmt.Errorf("compile: pass %s cannot be switched off", name)
		}
		p.disabled[name] = true
	}
	for _, u := range o.Passes {
		if u.Name == "" || u.Run == nil {
			return nil, fmt.Errorf("compile: a pass of the options has no name or no function")
		}
	}
	return p, nil
}

func (p *pipeline) off(name string) bool { return p.disabled[name] }

func (p *pipeline) dump(name, text string) {
	if p.o.Dump != nil {
		p.o.Dump(name, text)
	}
}

// rewrite runs the pass of that name on the function.
func rewrite(name string, m *ir.Module, fn *ir.Func) (*ir.Func, error) {
	switch name {
	case "lower":
		return lower(m, fn)
	case "noop":
		return noop(m, fn)
	case "fold":
		return fold(m, fn)
	case "cse":
		return cse(m, fn)
	case "dce":
		return dce(m, fn)
	}
	return nil, fmt.Errorf("no such pass")
}

// checkPass reports what a user's pass may not do and the verifier does not see:
// change the interface of the function, or lose which node of the piece, of those
// known, a node is from.
func checkPass(before, after *ir.Func, known map[ir.Origin]bool) error {
	params := func(f *ir.Func) (t []ir.Type) {
		for _, v := range f.Params {
			t = append(t, f.Type(v))
		}
		return t
	}
	if !slices.EqualFunc(params(before), params(after), ir.Type.Equal) || !slices.EqualFunc(before.ResultTypes, after.ResultTypes, ir.Type.Equal) {
		return errors.New("changed the types of parameters or results")
	}
	for i, n := range after.Nodes {
		if n.Origin != (ir.Origin{}) && !known[n.Origin] {
			return fmt.Errorf("node %d (%s) has an origin that no node of the piece has: %s, ID %d; take that of the node it is made from", i, n.Name(), n.At(), n.ID)
		}
	}
	return nil
}

// run takes a specialized module through the pipeline.
func (p *pipeline) run(ctx context.Context, m *ir.Module, b Backend) (*program.Program, error) {
	fn := m.Funcs[0]
	ops, known := make([]string, len(fn.Nodes)), make(map[ir.Origin]bool, len(fn.Nodes))
	for i, n := range fn.Nodes {
		ops[i], known[n.Origin] = n.Name(), true
	}
	named := returnedAs(fn)
	drawn := make(advances)
	drawn.add(m, fn)
	text := func() string {
		if p.o.Dump == nil {
			return ""
		}
		return ir.PrintFunc(m, fn)
	}
	var fused *fuser
	var steps []*planned
	for _, info := range Passes() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if p.off(info.Name) && info.Name != "fuse" {
			continue
		}
		var err error
		switch info.Name {
		case "static":
			p.dump("static", text())
		case "user":
			for _, u := range p.o.Passes {
				next, err := u.Run(m, fn)
				if err == nil && next == nil {
					err = errors.New("returned no function")
				}
				if err != nil {
					return nil, fmt.Errorf("pass %s: %w", u.Name, err)
				}
				m.Funcs[0] = next
				if err = m.Verify(); err == nil {
					err = checkPass(fn, next, known)
				}
				if err != nil {
					return nil, fmt.Errorf("after pass %s: %w", u.Name, err)
				}
				fn = next
				drawn.add(m, fn)
				p.dump(u.Name, text())
			}
		case "fuse":
			if fused, err = fuse(ctx, m, fn, named, p.off); err != nil {
				return nil, err
			}
			steps = planSteps(fused, ops)
			if p.o.Dump != nil {
				p.dump("fuse", kernelText(steps))
			}
		case "chain":
			steps = chain(steps, b)
		case "inplace":
			inPlace(steps)
		case "beside":
			steps = beside(steps, b)
		case "emit":
			prog, err := emit(ctx, m, fused, steps, b)
			if err != nil {
				return nil, err
			}
			drawn.declare(prog)
			return prog, nil
		default:
			next, err := rewrite(info.Name, m, fn) // verified by ir.Rewrite
			if err != nil {
				return nil, fmt.Errorf("internal error in pass %s: %w", info.Name, err)
			}
			fn, m.Funcs[0] = next, next
			p.dump(info.Name, text())
		}
	}
	return nil, fmt.Errorf("internal error: the pipeline does not end with emit")
}
