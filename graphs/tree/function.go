package tree

import (
	"errors"
	"fmt"
	"slices"

	"pwc/graphs"
)

// Function is a Go function over a recorder, which a manager graphs.
type Function struct {
	Name string
	Mode Mode

	// Static lists the inputs that keep their address between calls: weights and states.
	Static []int

	// Mutated lists the inputs that the function writes.
	Mutated []int

	// Generators are the generators that the function draws from.
	Generators []*graphs.Generator

	// Outputs has the position of each output in the module (file:line:col), for messages. It
	// may be shorter than the list of outputs.
	Outputs []string

	// Body runs the function, for warm-ups, recordings and eager runs. It must issue all work on
	// the recorder. An output is a tensor that the body made, another one with an owner, such as an
	// input, or a view of either; the caller gets an owner of each. When the body returns, all other
	// tensors that it made are released, and so are the inputs that it did not release.
	Body func(r *graphs.Recorder, in *Inputs) ([]graphs.Tensor, error)
}

// Inputs are the inputs of one run of a body.
type Inputs struct {
	Keys    []int64 // integer inputs
	tensors []graphs.Tensor
	held    []bool
}

// Len returns the number of tensors.
func (in *Inputs) Len() int { return len(in.tensors) }

// At returns tensor i. The body must release it only with Release.
func (in *Inputs) At(i int) graphs.Tensor { return in.tensors[i] }

// All returns all tensors.
func (in *Inputs) All() []graphs.Tensor { return in.tensors }

// Release ends the body's use of input i. If the input was copied, or taken from the caller, later
// allocations of the body may reuse its memory. A second release matches [graphs.ErrReleased].
func (in *Inputs) Release(i int) error {
	if i < 0 || i >= len(in.tensors) {
		return fmt.Errorf("%w: release of input %d of %d", graphs.ErrArguments, i, len(in.tensors))
	}
	if !in.held[i] {
		return fmt.Errorf("%w: input %d", graphs.ErrReleased, i)
	}
	in.held[i] = false
	return in.tensors[i].Release()
}

func (in *Inputs) releaseAll() error {
	var errs []error
	for i := range in.tensors {
		if in.held[i] {
			errs = append(errs, in.Release(i))
		}
	}
	return errors.Join(errs...)
}

// Input is an operand of a call.
type Input struct {
	Tensor graphs.Tensor

	// Take passes the caller's owner to the call, which may release the input before the call
	// ends. Without Take the call borrows the input.
	Take bool
}

// Borrow returns tensors as inputs that the caller keeps.
func Borrow(ts ...graphs.Tensor) []Input {
	in := make([]Input, len(ts))
	for i, t := range ts {
		in[i].Tensor = t
	}
	return in
}

// Func is a function of a manager.
type Func struct {
	m         *Manager
	def       Function
	byKey     []*instance
	manySizes bool
	bodies    int
}

// instance is a function with one set of integer inputs. Each instance has its own recordings.
type instance struct {
	f       *Func
	id      int
	keys    []int64
	warm    bool
	roots   []*node
	rooted  bool           // looked up or recorded at a root, so its calls may end the path
	hints   []mutationHint // by node
	again   []rerecord     // by node
	makers  []*graphs.Maker
	warned  bool // of mutated inputs
	pending bool // warned of pending backwards
}

// mutationHint counts the inputs that a function, run after node at, would write and a replay could not.
type mutationHint struct {
	at     *node
	inputs int
}

// rerecord counts the recordings after a node that a moved address caused.
type rerecord struct {
	at    *node
	count int
	skip  string // why the function is skipped here; "": the count is within the limit
}

// Add registers a function.
func (m *Manager) Add(def Function) (*Func, error) {
	if def.Body == nil {
		return nil, fmt.Errorf("%w: function %q has no body", graphs.ErrArguments, def.Name)
	}
	def.Static, def.Mutated = slices.Clone(def.Static), slices.Clone(def.Mutated)
	return &Func{m: m, def: def}, nil
}

// Name returns the function's name.
func (f *Func) Name() string { return f.def.Name }

// Bodies returns how often the body ran: warm-ups, recordings and eager runs.
func (f *Func) Bodies() int { return f.bodies }

// instance returns the function's instance for integer inputs.
func (f *Func) instance(keys []int64) *instance {
	for _, i := range f.byKey {
		if slices.Equal(i.keys, keys) {
			return i
		}
	}
	m := f.m
	if n := len(f.byKey) + 1; !f.manySizes && m.opts.DynamicLimit > 0 && n > m.opts.DynamicLimit {
		f.manySizes = true
		m.warn(ManySizes, fmt.Sprintf("%s is called with %d different integer inputs; each is warmed up and recorded on its own: pad them to few sizes, or list those that matter in CaptureSizes", f.def.Name, n))
	}
	i := &instance{f: f, id: m.functions, keys: slices.Clone(keys)}
	m.functions++
	f.byKey, m.all = append(f.byKey, i), append(m.all, i)
	return i
}

// maker returns the maker of output i.
func (i *instance) maker(o int) *graphs.Maker {
	for len(i.makers) <= o {
		n := len(i.makers)
		loc := ""
		if n < len(i.f.def.Outputs) {
			loc = i.f.def.Outputs[n]
		}
		i.makers = append(i.makers, &graphs.Maker{Name: fmt.Sprintf("output %d of %s", n, i.f.def.Name), Loc: loc, Output: n})
	}
	return i.makers[o]
}

func (i *instance) static(n int) bool  { return slices.Contains(i.f.def.Static, n) }
func (i *instance) mutates(n int) bool { return slices.Contains(i.f.def.Mutated, n) }
