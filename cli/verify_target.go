package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pwc/attention"
	"pwc/compile"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/piecewise"
	"pwc/verify"
)

// verifyTarget runs modules for package verify on the session's device.
type verifyTarget struct{ *session }

// Workload implements verify.Target.
func (t verifyTarget) Workload(ctx context.Context, m *ir.Module, c verify.Config) ([]verify.Call, error) {
	r := &recorder{}
	s := t.configured(c)
	s.observe = r.around
	if _, err := s.runOnce(ctx, m); err != nil {
		return nil, err
	}
	return r.calls, nil
}

// Function implements verify.Target.
func (t verifyTarget) Function(ctx context.Context, m *ir.Module, args []*interp.Tensor, c verify.Config) ([]*interp.Tensor, error) {
	s := t.configured(c)
	s.build.uncached = true // the cache has no parts of functions
	build := s.build.declaredIn(m)
	one, err := oneCall(m, args, build)
	if err != nil {
		return nil, err
	}
	s.work, s.build = one, one.withoutBound(build)
	outputs, err := s.runOnce(ctx, m)
	return tensorsOf(outputs), err
}

// configured returns the session with a compiler for the Config. With a Config that changes how the target compiles, or
// reports variants, the session does not use the cache: keys of artifacts do not have the variants that the Config
// excludes. The cache gets no record of a module, because its functions have further results.
func (t verifyTarget) configured(c verify.Config) *session {
	s, build, target := *t.session, *t.build, *t.target
	build.unrecorded = true
	if len(c.Disable) > 0 || len(c.Avoid) > 0 || c.Seen != nil {
		build.uncached = true
	}
	build.disable = slices.Concat(build.disable, c.Disable)
	target.backend = verify.Variants(target.backend, c)
	target.ops = nil // runOnce closes those of this session only
	target.configure(&build)
	s.build, s.target = &build, &target
	return &s
}

// runOnce runs the module and closes the ops that the run opened.
func (s *session) runOnce(ctx context.Context, m *ir.Module) ([]output, error) {
	outputs, err := s.run(ctx, m, nil)
	return outputs, errors.Join(err, s.target.closeOps())
}

// verifyReference runs modules for package verify in the interpreter.
type verifyReference struct{ *session }

// Workload implements verify.Target.
func (t verifyReference) Workload(ctx context.Context, m *ir.Module, _ verify.Config) ([]verify.Call, error) {
	c, err := t.app.newReference(ctx, m, t.weights, overlay(t.work.symbols(), t.build.symbols))
	if err != nil {
		return nil, err
	}
	r := &recorder{}
	if _, err := t.work.run(ctx, r.around(c)); err != nil {
		return nil, err
	}
	return r.calls, nil
}

// Function implements verify.Target.
func (t verifyReference) Function(ctx context.Context, m *ir.Module, args []*interp.Tensor, _ verify.Config) ([]*interp.Tensor, error) {
	build := t.build.declaredIn(m)
	one, err := oneCall(m, args, build)
	if err != nil {
		return nil, err
	}
	s := *t.session
	s.work, s.build = one, build
	outputs, err := s.reference(ctx, m)
	return tensorsOf(outputs), err
}

// oneCall is the workload of one call of a module's only function.
func oneCall(m *ir.Module, args []*interp.Tensor, bf *buildFlags) (*single, error) {
	f := m.Funcs[0]
	if len(args) != len(f.Params) {
		return nil, fmt.Errorf("@%s takes %d arguments, got %d", f.Name, len(f.Params), len(args))
	}
	bound := map[string]int64{}
	for i, p := range f.Params {
		if err := bindShape(f, f.Values[p], args[i].Shape, bound); err != nil {
			return nil, err
		}
	}
	return singleOf(m, args, bound, bf), nil
}

func tensorsOf(outputs []output) []*interp.Tensor {
	out := make([]*interp.Tensor, len(outputs))
	for i, o := range outputs {
		out[i] = o.tensor
	}
	return out
}

// recorder keeps the calls that a workload makes.
type recorder struct {
	caller
	calls []verify.Call
}

// around returns a caller that forwards to c and records the calls.
func (r *recorder) around(c caller) caller {
	r.caller = c
	return r
}

func (r *recorder) call(ctx context.Context, f *ir.Func, args []value, symbols map[string]int64, batch *attention.Batch) ([]value, error) {
	made := verify.Call{Func: f.Name}
	for _, a := range args {
		t, err := a.tensor()
		if err != nil {
			return nil, err
		}
		made.Args = append(made.Args, t)
	}
	results, err := r.caller.call(ctx, f, args, symbols, batch)
	if err != nil {
		return nil, err
	}
	for _, v := range results {
		t, err := v.tensor()
		if err != nil {
			return nil, err
		}
		made.Results = append(made.Results, t)
	}
	r.calls = append(r.calls, made)
	return results, nil
}

// search returns the search of package verify for a departure.
func (s *session) search(reference verify.Target) *verify.Search {
	var passes []string
	for _, p := range compile.Passes() {
		if !p.Required && !slices.Contains(s.build.disable, p.Name) && p.Name != "user" {
			passes = append(passes, p.Name)
		}
	}
	return &verify.Search{Module: s.work.module(), SplitOn: s.build.splitOn, Test: verifyTarget{s}, Reference: reference, Passes: passes}
}

// inMode returns the session in another mode.
func (s *session) inMode(mode piecewise.Mode) *session {
	out := *s
	out.mode = mode
	return &out
}
