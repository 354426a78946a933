package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"

	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/ir/dtype"
	"pwc/runtime/device"
	"pwc/runtime/device/failing"
)

// Compiled is a function of the scenario's module on the device.
type Compiled interface {
	// Run runs the function on a recorder. inputs are its parameters in order. Owners of the
	// results are those of whole.Function.Run.
	Run(r *graphs.Recorder, inputs []graphs.Tensor) ([]graphs.Tensor, error)

	// Mutates lists the parameters that the function writes.
	Mutates() []int

	// Locs returns the position of each result in the module.
	Locs() []string
}

// Config configures the run of a scenario.
type Config struct {
	// Open returns the device that the option device names; "" is the caller's choice.
	Open func(name string) (device.Device, error)

	// Compile compiles a function of the module whole, for the session's device.
	Compile func(ctx context.Context, s *graphs.Session, f *File, name string) (Compiled, error)

	// Log, if not nil, gets the transitions and the warnings.
	Log io.Writer
}

// Result is the result of a scenario.
type Result struct {
	Steps   []StepResult   `json:"steps"`
	Expects []ExpectResult `json:"expects"`
}

// StepResult is a step that ran.
type StepResult struct {
	Line  int    `json:"line"`
	Step  string `json:"step"`
	State string `json:"state"`
	Error string `json:"error,omitempty"`
}

// ExpectResult compares an expectation of a step with the actual value: of an expect, a check, a
// comparison of addresses, an explain, an error, a warning or a skip.
type ExpectResult struct {
	Line int              `json:"line"`
	OK   bool             `json:"ok"`
	Want map[string]Value `json:"want"`
	Got  map[string]Value `json:"got"`
}

// Value is an expected or actual value, as scenarios write it: 1, none, [1,0], [(0,1)], or a text.
type Value string

// MarshalJSON returns numbers and lists as JSON numbers and arrays, and other values as strings.
func (v Value) MarshalJSON() ([]byte, error) {
	if list := strings.NewReplacer("(", "[", ")", "]").Replace(string(v)); json.Valid([]byte(list)) && strings.Trim(list, "-+.e0123456789[], ") == "" {
		return []byte(list), nil
	}
	return json.Marshal(string(v))
}

// OK reports whether every expectation holds.
func (r *Result) OK() bool {
	return !slices.ContainsFunc(r.Expects, func(e ExpectResult) bool { return !e.OK })
}

// run is a running scenario.
type run struct {
	ctx     context.Context
	file    *File
	conf    Config
	s       *graphs.Session
	dev     *failing.Device
	m       *tree.Manager
	vars    map[string]graphs.Tensor
	progs   map[string]Compiled
	funcs   map[string]*tree.Func
	names   map[string][]*tree.Func
	streams map[string]*graphs.Stream
	last    map[string]graphs.Tensor // the last tensor of each name, dropped or not
	said    []tree.Warning
	result  *Result
}

// Run runs the scenario. The result has every expectation of the steps that ran, met or not. A step that
// fails although no error is expected ends the run. At the end every name is dropped; storages, and
// segments or uses of the pool, that are left are errors.
func (f *File) Run(ctx context.Context, c Config) (_ *Result, err error) {
	opened, err := c.Open(f.Options.Device)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	dev := failing.New(opened)
	x := &run{ctx: ctx, file: f, conf: c, dev: dev, vars: map[string]graphs.Tensor{}, progs: map[string]Compiled{}, funcs: map[string]*tree.Func{},
		names: map[string][]*tree.Func{}, last: map[string]graphs.Tensor{}, streams: map[string]*graphs.Stream{}, result: &Result{Steps: []StepResult{}, Expects: []ExpectResult{}}}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if x.s, err = graphs.NewSession(dev, graphs.SessionOptions{}); err != nil {
		return nil, err
	}
	if x.m, err = tree.New(x.s, f.treeOptions(x)); err != nil {
		return nil, errors.Join(err, x.s.Close())
	}
	err = x.block(f.steps)
	return x.result, errors.Join(err, x.finish())
}

func (f *File) treeOptions(x *run) tree.Options {
	o := f.Options
	t := tree.Options{Check: true, SkipWarmup: o.SkipWarmup, FixedStatics: o.FixedStatics, CaptureSizes: o.CaptureSizes, NoMutation: o.NoMutation, OrError: o.OrError,
		Warn: func(w tree.Warning) { x.said = append(x.said, w) }}
	limit := func(to *int, v *int) {
		if v != nil {
			if *to = *v; *v == 0 {
				*to = -1 // 0 asks for the default
			}
		}
	}
	limit(&t.RerecordLimit, o.RerecordLimit)
	limit(&t.DynamicLimit, o.DynamicLimit)
	if o.GenerationCall {
		t.Generations = tree.ByCall
	}
	if x.conf.Log != nil {
		t.Log = slog.New(slog.NewTextHandler(x.conf.Log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	}
	return t
}

// finish drops all names and closes the manager and the session. It returns an error if memory, or
// a use of the pool, is left.
func (x *run) finish() error {
	var errs []error
	for n, t := range x.vars {
		if err := t.Release(); err != nil && !errors.Is(err, graphs.ErrStale) && !errors.Is(err, graphs.ErrReleased) {
			errs = append(errs, fmt.Errorf("%s: at the end: dropping %s: %w", x.file.Name, n, err))
		}
	}
	clear(x.vars)
	pool := x.m.Pool()
	errs = append(errs, x.m.Close())
	for _, p := range x.progs {
		if c, ok := p.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	if _, err := x.s.EmptyCache(); err != nil {
		errs = append(errs, err)
	}
	if u := pool.Use(); u != (graphs.PoolUse{}) {
		errs = append(errs, fmt.Errorf("%s: at the end the pool has %d uses, %d live blocks and %d segments, want none", x.file.Name, u.Uses, u.Blocks, u.Segments))
	}
	return errors.Join(append(errs, x.s.Close())...)
}

// at puts the step's position before an error.
func (x *run) at(s *step, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return fmt.Errorf("%s:%d:%d: %w", x.file.Name, s.line, s.col, err)
}

func (x *run) block(steps []*step) error {
	for _, s := range steps {
		if err := x.ctx.Err(); err != nil {
			return err
		}
		if s.kind == stepRepeat {
			for range s.count {
				if err := x.block(s.block); err != nil {
					return err
				}
			}
			continue
		}
		err := x.step(s)
		res := StepResult{Line: s.line, Step: s.text}
		if in, ierr := x.m.Inspect(); ierr == nil {
			res.State = in.State.String()
		}
		if err != nil {
			res.Error = err.Error()
		}
		x.result.Steps = append(x.result.Steps, res)
		if err != nil {
			return x.at(s, err)
		}
	}
	return nil
}

func (x *run) tensor(name string) (graphs.Tensor, error) {
	t, ok := x.vars[name]
	if !ok {
		return t, fmt.Errorf("%s has no value", name)
	}
	return t, nil
}

// set gives a name to a tensor and drops the tensor that had the name before.
func (x *run) set(name string, t graphs.Tensor) error {
	old, ok := x.vars[name]
	x.vars[name], x.last[name] = t, t
	if !ok {
		return nil
	}
	return dropped(old)
}

// dropped releases a tensor that has lost its name. An overwritten tensor has no owner any more, so
// ErrStale is not an error.
func dropped(t graphs.Tensor) error {
	if err := t.Release(); err != nil && !errors.Is(err, graphs.ErrStale) {
		return err
	}
	return nil
}

func (x *run) step(s *step) error {
	switch s.kind {
	case stepTensor:
		t, err := x.newTensor(s)
		if err != nil {
			return err
		}
		return x.set(s.to[0], t)
	case stepCall:
		return x.call(s)
	case stepDrop:
		for _, n := range s.names {
			t, err := x.tensor(n)
			if err != nil {
				return err
			}
			delete(x.vars, n)
			if err := dropped(t); err != nil {
				return err
			}
		}
	case stepRetain:
		t, err := x.tensor(s.names[0])
		if err != nil {
			return err
		}
		if err := t.Retain(); err != nil {
			return err
		}
		return x.set(s.to[0], t)
	case stepClone:
		t, err := x.tensor(s.names[0])
		if err != nil {
			return err
		}
		c, err := x.s.Clone(s.to[0], t)
		if err != nil {
			return err
		}
		return x.set(s.to[0], c)
	case stepView:
		t, err := x.tensor(s.names[0])
		if err != nil {
			return err
		}
		v, err := t.View(s.offset, s.dt, s.shape...)
		if err != nil {
			return err
		}
		if err := v.Retain(); err != nil {
			return err
		}
		return x.set(s.to[0], v)
	case stepMark:
		x.m.MarkStep()
	case stepMove:
		t, err := x.tensor(s.names[0])
		if err != nil {
			return err
		}
		c, err := x.s.Clone(s.names[0], t)
		if err != nil {
			return err
		}
		return x.set(s.names[0], c)
	case stepSame, stepDistinct:
		return x.compare(s)
	case stepCheck:
		return x.check(s)
	case stepError:
		err := x.step(s.inner)
		got := "no error"
		if err != nil {
			got = err.Error()
		}
		x.expected(s, err != nil && strings.Contains(got, s.message), "error", s.message, got)
	case stepWarn, stepSkip:
		return x.warned(s)
	case stepExpect:
		return x.expect(s)
	case stepExplain:
		f, in, err := x.operands(s.inner)
		if err != nil {
			return err
		}
		got, err := x.m.Explain(f, in, s.inner.keys...)
		if err != nil {
			return err
		}
		x.expected(s, strings.Contains(got, s.message), "explain", s.message, strings.TrimSpace(got))
	case stepEmptyCache:
		_, err := x.s.EmptyCache()
		return err
	case stepFailDriver:
		x.dev.FailCall(int(s.count))
	case stepReset:
		return x.m.Reset()
	}
	return nil
}

// newTensor makes a tensor of the session's default pool.
func (x *run) newTensor(s *step) (graphs.Tensor, error) {
	n := int64(1)
	for _, d := range s.shape {
		n *= d
	}
	vs := make([]float64, n)
	// PCG of math/rand/v2: the same numbers on every machine.
	rng := rand.New(rand.NewPCG(uint64(s.seed), 0))
	for i := range vs {
		switch {
		case s.values != nil:
			vs[i] = s.values[i]
		case s.fill != nil:
			vs[i] = *s.fill
		case s.dt.Float():
			vs[i] = 2*rng.Float64() - 1
		case s.dt == dtype.Bool:
			vs[i] = float64(rng.IntN(2))
		default:
			vs[i] = float64(rng.IntN(100))
		}
	}
	data, err := encode(s.dt, vs)
	if err != nil {
		return graphs.Tensor{}, err
	}
	return x.s.TensorOf(s.to[0], data, s.dt, s.shape...)
}

// function returns the tree's function for a call's settings.
func (x *run) function(s *step) (*tree.Func, error) {
	mode := tree.Inference
	switch s.mode {
	case "forward":
		mode = tree.Forward
	case "backward":
		mode = tree.Backward
	}
	key := fmt.Sprint(s.name, mode, s.static, s.saved)
	if f := x.funcs[key]; f != nil {
		return f, nil
	}
	def := tree.Function{Name: s.name, Mode: mode, Static: slices.Concat(s.static, s.saved)}
	if sc := x.file.scripts[s.name]; sc != nil {
		def.Body, def.Mutated = x.body(sc), sc.mutates
	} else {
		c, err := x.compiled(s.name)
		if err != nil {
			return nil, err
		}
		def.Mutated, def.Outputs = c.Mutates(), c.Locs()
		def.Body = func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) { return c.Run(r, in.All()) }
	}
	f, err := x.m.Add(def)
	if err != nil {
		return nil, err
	}
	x.funcs[key] = f
	x.names[s.name] = append(x.names[s.name], f)
	return f, nil
}

// compiled returns a function of the module.
func (x *run) compiled(name string) (Compiled, error) {
	if c := x.progs[name]; c != nil {
		return c, nil
	}
	if x.file.scripts[name] != nil {
		return nil, fmt.Errorf("@%s is one of the section functions, and a statement calls only functions of the module", name)
	}
	if x.file.Module == nil || x.file.Module.Func(name) == nil {
		return nil, fmt.Errorf("%s is neither a function of the module nor one of the section functions", name)
	}
	c, err := x.conf.Compile(x.ctx, x.s, x.file, name)
	if err != nil {
		return nil, err
	}
	x.progs[name] = c
	return c, nil
}

// stream returns a stream that scripts fork to.
func (x *run) stream(name string) (*graphs.Stream, error) {
	if st := x.streams[name]; st != nil {
		return st, nil
	}
	st, err := x.s.NewStream(name)
	if err != nil {
		return nil, err
	}
	x.streams[name] = st
	return st, nil
}

func (x *run) operands(s *step) (*tree.Func, []tree.Input, error) {
	f, err := x.function(s)
	if err != nil {
		return nil, nil, err
	}
	in := make([]tree.Input, len(s.args))
	for i, a := range s.args {
		t, err := x.tensor(a.name)
		if err != nil {
			return nil, nil, err
		}
		in[i] = tree.Input{Tensor: t, Take: a.take}
	}
	return f, in, nil
}

func (x *run) call(s *step) error {
	f, in, err := x.operands(s)
	if err != nil {
		return err
	}
	// Compile before the first run: a recording must not compile.
	if sc := x.file.scripts[s.name]; sc != nil {
		if err := x.compileAll(sc.body); err != nil {
			return err
		}
	}
	outs, err := f.Call(in, nil, s.keys...)
	if err != nil {
		return err
	}
	for _, a := range s.args {
		if a.take {
			delete(x.vars, a.name)
		}
	}
	if s.to != nil && len(s.to) != len(outs) {
		err = fmt.Errorf("%s has %d outputs, %d names are given", s.name, len(outs), len(s.to))
	}
	for i, t := range outs {
		if s.to == nil || err != nil || s.to[i] == "_" {
			err = errors.Join(err, t.Release())
			continue
		}
		if serr := x.set(s.to[i], t); serr != nil {
			err = errors.Join(err, serr)
		}
	}
	return err
}

func (x *run) compileAll(as []*action) error {
	for _, a := range as {
		if a.kind == actCall {
			if _, err := x.compiled(a.name); err != nil {
				return fmt.Errorf("%s:%d:%d: %w", x.file.Name, a.line, a.col, err)
			}
		}
		if err := x.compileAll(a.block); err != nil {
			return err
		}
	}
	return nil
}
