package pt2

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Options say how an exported program becomes a module.
type Options struct {
	Name     string           // of the module; empty: the file name without its extension, or the program's name if the archive is in memory
	BatchDim string           // the dynamic dimension that becomes the batch symbol; empty: that of the first dynamic axis, if it is the same in all inputs
	Dims     map[string]int64 // dynamic dimensions to fix, with their sizes
	Max      map[string]int64 // largest sizes of dynamic dimensions, within the exported ranges
	Externs  []string         // ops to keep as extern ops, which the runner implements: "toy::attention"; they must not write their arguments
}

// Model is an imported program.
type Model struct {
	Module *ir.Module
	Dims   []Dim // the dynamic dimensions, by name

	Attentions Attentions
}

// Attentions counts the calls of scaled_dot_product_attention by how they were imported.
type Attentions struct {
	Fused int    // as the op attention, which stores no matrix of scores
	Plain int    // as plain ops, which store a matrix of scores
	Why   string // why the first plain call is not fused; empty if Plain is 0
}

// Dim is a dynamic dimension of the exported program.
type Dim struct {
	Name   string
	Lo, Hi int64  // both included
	Batch  bool   // it is the batch symbol
	Where  string // the first axis of an input whose size depends on it: "axis 0 of x"
}

// FuncName is the name of the function that an import makes.
const FuncName = "forward"

// Import makes a module of the program, with one function @forward. Its parameters are the tensor inputs of the
// program, in their order. Weights have the names of the archive's tensors; tensors that are the same part of
// one entry, with the same dtype, shape and strides, share one. A buffer that the program writes becomes a state of the
// same name, an input that it writes a mut parameter. The error is an [*ImportError] that lists all nodes that cannot be
// imported, a [*FormatError] about an input, an output, a dimension or a guard, or an error of [ir.Builder.Build].
func (a *Archive) Import(o Options) (*Model, error) {
	if o.Name == "" {
		o.Name = a.model
		if a.path != "" {
			o.Name = strings.TrimSuffix(filepath.Base(a.path), filepath.Ext(a.path))
		}
	}
	// The first pass finds the buffers and inputs that the program writes. The second pass declares them as states
	// and mut parameters.
	m, writes, err := a.importWith(&o, nil)
	if err == nil && len(writes) > 0 {
		m, _, err = a.importWith(&o, writes)
	}
	return m, err
}

// target is a buffer or an input that a program writes. An input may have the name of a buffer.
type target struct {
	input bool
	name  string // of an input in the graph, or of a buffer in the archive
}

// importWith imports the program with these buffers and inputs as states and mut parameters. It returns those that the
// program writes.
func (a *Archive) importWith(o *Options, targets map[target]bool) (m *Model, writes map[target]bool, err error) {
	im := newImporter(a, o, targets)
	if e := try(func() { m, err = im.run() }); e != nil {
		return nil, nil, a.errorf("", "%v", e)
	}
	return m, im.writes, err
}

// importer makes one function of the graph.
type importer struct {
	a       *Archive
	graph   *graph
	sig     *signature
	options *Options
	syms    *symbols
	b       *ir.Builder
	emitter
	values  map[string]*tensor
	weights map[string]string // weight name by payload: tensors with the same entry, dtype, shape, strides and offset share a weight
	targets map[target]bool   // states and mut parameters
	writes  map[target]bool   // buffers and inputs that the program writes
	written map[string]bool   // states that the module declares already
	externs map[string]*ir.Extern
	missing []Missing
	index   map[[2]string]int          // index into missing by op and reason
	reads   map[*graph]map[string]bool // names of the values that each graph reads, see [call.used]
	dims    []Dim

	attentions Attentions
	masks      map[ir.Value]visible // attention masks that were evaluated; layers share them
	evaluated  int64                // elements that the evaluation of masks computed so far
	bandBytes  int64                // target for the patches of a band of a convolution, in bytes
	autocast   bool                 // the nodes are in an autocast region: operands are cast to the dtype of the result
}

func newImporter(a *Archive, o *Options, targets map[target]bool) *importer {
	b := ir.NewBuilder(o.Name)
	im := &importer{a: a, options: o, b: b, graph: &a.program.GraphModule.Graph, sig: &a.program.GraphModule.Signature,
		values: map[string]*tensor{}, weights: map[string]string{}, targets: targets, writes: map[target]bool{}, masks: map[ir.Value]visible{},
		bandBytes: bandBytes, written: map[string]bool{}, externs: map[string]*ir.Extern{}, index: map[[2]string]int{}}
	return im
}

func (im *importer) errorf(format string, args ...any) error { return im.a.errorf("", format, args...) }

func (im *importer) run() (*Model, error) {
	var err error
	if im.syms, err = newSymbols(&im.a.program, im.options); err != nil {
		return nil, im.errorf("%v", err)
	}
	if err := im.declareDims(); err != nil {
		return nil, err
	}
	im.emitter = emitter{fb: im.b.Func(FuncName), syms: im.syms}
	if err := im.inputs(); err != nil {
		return nil, err
	}
	for i := range im.graph.Nodes {
		if err := im.node(&im.graph.Nodes[i]); err != nil {
			return nil, err
		}
	}
	returned, err := im.outputs()
	if err != nil {
		return nil, err
	}
	if len(im.missing) > 0 {
		return nil, &ImportError{File: im.a.path, Missing: im.missing}
	}
	im.fb.Return(returned...)
	if im.a.path != "" && len(im.b.Module().Loaded()) > 0 {
		im.b.WeightsFrom(im.a.path)
	}
	m, err := im.b.Build()
	if err != nil {
		return nil, fmt.Errorf("%s%w", prefix(im.a.path), err)
	}
	return &Model{Module: m, Dims: im.dims, Attentions: im.attentions}, nil
}

// declareDims declares the symbols: it reads the shapes of inputs, narrows ranges by the guards, and chooses the
// batch symbol.
func (im *importer) declareDims() error {
	var shapes [][]dim.Dim
	where := map[string]string{}
	for i, in := range im.sig.Inputs {
		if in.User == nil || in.User.Arg.Tensor == nil {
			continue
		}
		name := in.User.Arg.Tensor.Name
		meta, ok := im.graph.TensorValues[name]
		if !ok {
			return im.errorf("input %s has no entry in tensor_values", termsafe.Quote(name))
		}
		shape, err := im.syms.shape(&meta)
		if err != nil {
			return im.errorf("input %d (%s): %v", i, termsafe.Clip(name, 60), err)
		}
		shapes = append(shapes, shape)
		for axis, d := range shape {
			for _, s := range d.Symbols() {
				if where[s] == "" {
					where[s] = fmt.Sprintf("axis %d of %s", axis, termsafe.Clip(name, 60))
				}
			}
		}
	}
	im.bindGuardNames()
	for _, g := range im.a.program.GuardsCode {
		if err := im.syms.guard(g); err != nil {
			return im.errorf("a guard of the export cannot be kept: %v", err)
		}
	}
	im.syms.chooseBatch(shapes)
	im.syms.emit(im.b)
	for _, name := range slices.Sorted(maps.Keys(im.syms.lo)) {
		im.dims = append(im.dims, Dim{Name: name, Lo: im.syms.lo[name], Hi: im.syms.hi[name],
			Batch: im.syms.kind[name] == ir.Batch, Where: where[name]})
	}
	return nil
}

// bindGuardNames records the input that each name in a guard means, see [inputName].
func (im *importer) bindGuardNames() {
	for _, in := range im.sig.Inputs {
		if in.User == nil || in.User.Arg.Tensor == nil {
			continue
		}
		name := in.User.Arg.Tensor.Name
		if meta, ok := im.graph.TensorValues[name]; ok {
			im.syms.inputs[inputName(name)] = &meta
		}
	}
}

// inputs makes a tensor of each input, parameter, buffer and constant of the graph.
func (im *importer) inputs() error {
	for _, in := range im.sig.Inputs {
		var name, source string
		buffer := false
		switch {
		case in.User != nil:
			if err := im.userInput(&in.User.Arg); err != nil {
				return err
			}
			continue
		case in.Parameter != nil:
			name, source = in.Parameter.Arg.Name, in.Parameter.Name
		case in.Buffer != nil:
			name, source, buffer = in.Buffer.Arg.Name, in.Buffer.Name, true
		case in.Constant != nil:
			name, source = in.Constant.Arg.Name, in.Constant.Name
		case in.ConstantInput != nil || in.Token != nil:
			continue // the graph has the constant's value; tokens order side effects, and nodes keep their order
		case in.CustomObject != nil:
			return im.errorf("the program has an input that is a script object (custom_obj); only tensors are supported")
		default:
			return im.errorf("the program has an input of an unknown kind")
		}
		if im.values[name] != nil {
			return im.errorf("two inputs are named %s", termsafe.Quote(name))
		}
		im.values[name] = &tensor{st: &storage{value: ir.NoValue, source: source, buffer: buffer}}
	}
	return nil
}

func (im *importer) userInput(arg *argument) error {
	switch {
	case arg.Tensor == nil && arg.kind == "as_none":
		return nil
	case arg.Tensor == nil:
		return im.errorf("the program takes a scalar (%s); export it with the value fixed, or as a tensor", termsafe.Clip(arg.kind, 40))
	case im.values[arg.Tensor.Name] != nil:
		return im.errorf("two inputs are named %s", termsafe.Quote(arg.Tensor.Name))
	}
	name := arg.Tensor.Name
	meta := im.graph.TensorValues[name]
	t, err := im.metaType(&meta)
	if err != nil {
		return im.errorf("input %s: %v", termsafe.Quote(name), err)
	}
	st := &storage{input: name}
	if im.targets[target{true, name}] {
		st.value = im.fb.MutParam(name, t)
	} else {
		st.value = im.fb.Param(name, t)
	}
	im.values[name] = &tensor{st: st}
	return nil
}

// metaType returns the type of a tensor by its metadata in the archive.
func (im *importer) metaType(m *tensorMeta) (ir.Type, error) {
	dt, ok := scalarTypes[m.DType]
	if !ok {
		return ir.Type{}, fmt.Errorf("%s, which the IR does not have", scalarTypeName(m.DType))
	}
	if m.Layout != strided {
		return ir.Type{}, errors.New("its layout is sparse")
	}
	shape, err := im.syms.shape(m)
	return ir.Type{DType: dt, Shape: shape}, err
}

// weight returns the value of a tensor of the archive: a state if the program writes the tensor, else a weight.
func (im *importer) weight(st *storage) ir.Value {
	p := im.a.tensors[st.source]
	if p == nil {
		im.refuse("the archive has no tensor %s", termsafe.Quote(st.source))
	}
	if p.dtype == dtype.Invalid {
		im.refuse("%s is %s, which the IR does not have", termsafe.Quote(st.source), scalarTypeName(p.scalar))
	}
	t := ir.Type{DType: p.dtype}
	for _, n := range p.shape {
		t.Shape = append(t.Shape, dim.Const(n))
	}
	if im.targets[target{false, st.source}] {
		if !im.written[st.source] {
			im.b.AddState(&ir.State{Name: st.source, Type: t, Expr: &ir.WeightExpr{Name: st.source}})
			im.written[st.source] = true
		}
		return im.fb.State(st.source)
	}
	key := fmt.Sprint(p.entry, p.dtype, p.shape, p.strides, p.offset)
	name, ok := im.weights[key]
	if !ok {
		name = st.source
		im.weights[key] = name
		im.b.Weight(name, t, nil)
	}
	return im.fb.Weight(name)
}

// outputs returns the results of the program, and writes the final values of buffers and inputs that it changes.
func (im *importer) outputs() ([]ir.Value, error) {
	var out []ir.Value
	im.fb.SetLoc("")
	for _, spec := range im.sig.Outputs {
		switch {
		case spec.User != nil && spec.User.Arg.Tensor != nil:
			v, err := im.output(spec.User.Arg.Tensor.Name)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		case spec.User != nil && spec.User.Arg.kind == "as_none", spec.Token != nil:
		case spec.User != nil && spec.User.Arg.SymInt != nil:
			d, err := im.symInt(spec.User.Arg.SymInt)
			if err != nil {
				return nil, im.errorf("an output: %v", err)
			}
			out = append(out, im.dimValue(d, dtype.I64))
		case spec.User != nil:
			return nil, im.errorf("the program returns a value that is not a tensor (%s)", termsafe.Clip(spec.User.Arg.kind, 40))
		case spec.Buffer != nil:
			if err := im.assign(spec.Buffer.Name, false, spec.Buffer.Arg.Name); err != nil {
				return nil, err
			}
		case spec.UserInput != nil:
			if err := im.assign(spec.UserInput.Name, true, spec.UserInput.Arg.Name); err != nil {
				return nil, err
			}
		case spec.Parameter != nil:
			return nil, im.errorf("the program writes parameter %s; export it for inference", termsafe.Quote(spec.Parameter.Name))
		default:
			return nil, im.errorf("the program has an output of an unknown kind; export it for inference")
		}
	}
	return out, im.writeBack()
}

func (im *importer) output(name string) (v ir.Value, err error) {
	t := im.values[name]
	if t == nil {
		return ir.NoValue, im.errorf("output %s is not a value of the program", termsafe.Quote(name))
	}
	if err := try(func() { v = im.read(t) }); err != nil {
		return ir.NoValue, im.errorf("output %s: %v", termsafe.Quote(name), err)
	}
	return v, nil
}

// assign stores the value that a buffer or an input has after the program.
func (im *importer) assign(target string, input bool, name string) error {
	v, err := im.output(name)
	if err != nil {
		return err
	}
	for _, t := range im.values {
		if t.views == nil && (input && t.st.input == target || !input && t.st.buffer && t.st.source == target) {
			if st := im.values[name].st; v == t.st.value && st.version == 0 && st.operandOf != "" {
				return im.errorf("the program writes %s, an argument of %s: a call of an extern op does not write its tensors; export an op that returns the new value", termsafe.Quote(target), termsafe.Clip(st.operandOf, 60))
			}
			if v == t.st.value {
				return nil // in-place ops wrote this value already
			}
			if err := try(func() { im.write(t, v) }); err != nil {
				return im.errorf("the program writes %s: %v", termsafe.Quote(target), err)
			}
			return nil
		}
	}
	return im.errorf("the program writes %s, which is neither a buffer nor an input", termsafe.Quote(target))
}

// sharing returns another tensor of the archive that the program reads and that may overlap the memory of st; empty if
// there is none.
func (im *importer) sharing(st *storage) string {
	p := im.a.tensors[st.source]
	for _, name := range slices.Sorted(maps.Keys(im.values)) {
		o := im.values[name].st
		q := im.a.tensors[o.source]
		if o != st && o.value != ir.NoValue && p != nil && q != nil && p.overlaps(q) {
			return o.source
		}
	}
	return ""
}

// writeBack copies the final values of changed states and mut parameters to them, sorted by name.
func (im *importer) writeBack() error {
	done := map[*storage]bool{}
	for _, name := range slices.Sorted(maps.Keys(im.values)) {
		st := im.values[name].st
		if st.version == 0 || done[st] {
			continue
		}
		done[st] = true
		to := target{true, st.input}
		if st.buffer {
			to = target{false, st.source}
		}
		switch {
		case to.name == "" && st.source != "":
			return im.errorf("the program writes %s, which is not a buffer", termsafe.Quote(st.source))
		case to.name == "":
			continue // memory that only the program sees
		}
		if other := im.sharing(st); st.buffer && other != "" {
			return im.errorf("the program writes buffer %s, whose memory %s may share: a state has memory of its own; give each a tensor of its own before the export", termsafe.Quote(st.source), termsafe.Quote(other))
		}
		im.writes[to] = true
		if im.targets[to] {
			im.fb.Op("copy", []ir.Value{st.first, st.value})
		}
	}
	return nil
}
