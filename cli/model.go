package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pwc/frontend/hf"
	"pwc/frontend/pt2"
	"pwc/internal/openfile"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// modelFlags are the flags of the commands that read a model.
type modelFlags struct {
	dtype   string
	weights string
	arch    string
	ignore  []string
	unread  []string // names or patterns of tensors to ignore
	context int64

	ranks          int64
	expertParallel bool

	batchDim string
	dims     assignments
	externs  []string

	ofDims bool           // --max is for the dynamic dimensions of an exported program, and not for symbols of a module
	common []string       // flags that apply to models of any kind
	set    *pflag.FlagSet // nil: no flags
}

// addImport adds the flags for reading checkpoints and exported programs.
func (f *modelFlags) addImport(cmd *cobra.Command, dtype string) {
	fl := cmd.Flags()
	fl.StringVar(&f.dtype, "dtype", dtype, "`DTYPE` of weights, activations and caches of a checkpoint: f32, f16, bf16, or auto for the checkpoint's own")
	if dtype == "auto" { // run, verify and train ignore the environment: their default is f32
		fromEnv(cmd, "dtype", "PWC_DTYPE")
	}
	fl.StringVar(&f.arch, "architecture", "", "import a checkpoint as architecture `NAME` instead of the one in its config")
	fl.Var(&wholeNumber[int64]{&f.context, 1, maxNumber}, "context", "the longest sequence to serve, in `TOKENS`; the positions of some checkpoints are scaled for this length (default: the longest that the checkpoint supports)")
	fl.StringSliceVar(&f.ignore, "ignore-key", nil, "config `KEY`s to ignore, if they have no effect on the model")
	fl.StringSliceVar(&f.unread, "ignore-tensor", nil, "`PATTERN`s of tensors to ignore, if they have no effect on the model; * matches one part of a name between dots")
	fl.Var(&wholeNumber[int64]{&f.ranks, 1, ir.MaxGroupSize}, "tp", "divide a checkpoint among `N` devices that run it together (tensor parallelism)")
	fl.BoolVar(&f.expertParallel, "expert-parallel", false, "with --tp: divide the experts among the devices, instead of dividing each expert")
	fl.StringVar(&f.batchDim, "batch-dim", "", "the dynamic `DIM`ension of an exported program that counts rows (default: the first dynamic dimension of each input, if all have the same)")
	fl.Var(&f.dims, "dim", "fix a dynamic dimension of an exported program: `DIM=VALUE`")
	fl.StringSliceVar(&f.externs, "extern", nil, "`OP`s of an exported program to import as extern ops, which a runner implements: ns::op or ns::op.overload")
	f.set = fl
}

// hideDivision removes --tp and --expert-parallel from the help of a command that refuses modules for
// several devices. The command still reads them, for its error.
func hideDivision(cmd *cobra.Command) {
	for _, name := range []string{"tp", "expert-parallel"} {
		cmd.Flags().Lookup(name).Hidden = true
	}
}

// addMax adds --max for the bounds of dynamic dimensions, to a command that does not call
// buildFlags.addSymbols, which adds a --max too.
func (f *modelFlags) addMax(cmd *cobra.Command) {
	cmd.Flags().Var(&assignments{}, "max", "")
	f.maxOfDims(cmd)
}

// maxOfDims makes --max bound only the dynamic dimensions of an exported program.
func (f *modelFlags) maxOfDims(cmd *cobra.Command) {
	f.ofDims = true
	cmd.Flags().Lookup("max").Usage = "the largest size of a dynamic dimension of an exported program: `DIM=VALUE`"
}

// limits returns the values of --max.
func (f *modelFlags) limits() map[string]int64 {
	if f.set == nil {
		return nil
	}
	if flag := f.set.Lookup("max"); flag != nil {
		if a, ok := flag.Value.(*assignments); ok {
			return *a
		}
	}
	return nil
}

func (f *modelFlags) addWeights(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.weights, "weights", "", "`DIR` or safetensors file with the checkpoint's tensors, or dummy for made-up values (default: the checkpoint itself, or the path in the module)")
}

// model is the model of a FILE argument.
type model struct {
	path    string // the argument
	module  *ir.Module
	weights string // directory or file with the tensors; empty: not known

	from   string                         // an architecture or a version of PyTorch; empty: the module was parsed from text
	params []hf.Param                     // tensors that the model reads of a checkpoint; nil: each weight is a tensor
	notes  []string                       // differences from the checkpoint that may surprise a reader
	check  func(safetensors.Source) error // compares tensors with the config; nil: there is no config
	dims   []pt2.Dim                      // dynamic dimensions of an exported program
	calls  pt2.Attentions                 // calls of attention in an exported program
}

func (f *modelFlags) options() (hf.Options, error) {
	o := hf.Options{Architecture: f.arch, IgnoreKeys: f.ignore, IgnoreTensors: f.unread, Context: f.context, Ranks: f.ranks, ExpertParallel: f.expertParallel}
	switch f.dtype {
	case "auto", "":
	case "f32", "f16", "bf16":
		o.DType, _ = dtype.Parse(f.dtype)
	default:
		return o, usagef("--dtype %s is not one of f32, f16, bf16 and auto", f.dtype)
	}
	return o, nil
}

// maxModule bounds the text of a module, in bytes; 100,000 nodes are about 20 MB.
const maxModule = 1 << 30

// open reads the model of a FILE argument.
func (a *app) open(path string, f *modelFlags) (*model, error) {
	start := time.Now()
	m, err := a.openModel(path, f)
	if err != nil {
		return nil, err
	}
	a.showOnOneLine(moduleNames(m.module))
	nodes, bytes := 0, int64(0)
	for _, fn := range m.module.Funcs {
		nodes += len(fn.Nodes)
	}
	for _, w := range m.module.Weights {
		n := int64(1)
		for _, d := range w.Type.Shape {
			e, _ := d.Const() // sizes of weights are constants
			n *= e
		}
		bytes += w.Type.DType.Bytes(n)
	}
	a.logger().Info("read", "model", m.path, "dtype", modelDType(m.module), "nodes", nodes, "weight_bytes", bytes, "seconds", time.Since(start).Seconds())
	return m, nil
}

// moduleNames returns the names that messages about a module may print.
func moduleNames(m *ir.Module) []string {
	out := []string{m.Name}
	for _, f := range m.Funcs {
		out = append(out, f.Name)
		for i := range f.Values {
			out = append(out, f.Values[i].Name)
		}
		for _, n := range f.Nodes {
			out = append(out, n.Loc)
		}
	}
	for _, w := range m.Weights {
		out = append(out, w.Name)
	}
	for _, s := range m.States {
		out = append(out, s.Name)
	}
	return out
}

func (a *app) openModel(path string, f *modelFlags) (*model, error) {
	if path == standardStream {
		return a.openText(path, "<standard input>", f, func() ([]byte, error) { return readText("<standard input>", a.in) })
	}
	info, err := os.Stat(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: no such file or directory", path)
		}
		return nil, err
	}
	l := loaderOf(path, info)
	if l == nil {
		return a.openText(path, path, f, func() ([]byte, error) { return readModule(path) })
	}
	if err := f.fits(path, l); err != nil {
		return nil, err
	}
	m, err := l.load(path, f)
	if err != nil {
		return nil, err
	}
	for _, note := range m.notes {
		fmt.Fprintf(a.err, "pwc: %s: %s\n", m.path, note)
	}
	return m, nil
}

// standardStream stands for standard input where a file is read, and for standard output where one is written.
const standardStream = "-"

// openText reads a module's text. shown is its name in messages.
func (a *app) openText(path, shown string, f *modelFlags, read func() ([]byte, error)) (*model, error) {
	if err := f.fits(shown, nil); err != nil {
		return nil, err
	}
	text, err := read()
	if err != nil {
		return nil, err
	}
	m, err := ir.Parse(shown, text)
	if err != nil {
		return nil, err
	}
	out := &model{path: shown, module: m, weights: m.WeightsFrom}
	if out.weights != "" && !filepath.IsAbs(out.weights) {
		out.weights = filepath.Join(filepath.Dir(path), out.weights)
	}
	return out, nil
}

// readModule reads the text of a module from a file, which may be a pipe.
func readModule(path string) ([]byte, error) {
	f, info, err := openfile.Stream(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > maxModule {
		return nil, tooLarge(path)
	}
	return readText(path, f)
}

// readText reads the text of a module.
func readText(name string, r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	if err == nil && len(text) > maxModule {
		err = tooLarge(name)
	}
	return text, err
}

func tooLarge(name string) error {
	return fmt.Errorf("%s: the text of a module is limited to %s, and this file has more", name, byteCount(maxModule))
}

// explainImport adds the flags that help with an error of the frontend.
func explainImport(err error) error {
	var unknown *hf.UnknownArchitectureError
	var config *hf.ConfigError
	var tensors *hf.CheckError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("%w\nOn the command line: --architecture NAME imports the checkpoint as one of them", err)
	case strings.Contains(err.Error(), "Options.DType"):
		return fmt.Errorf("%w\nOn the command line: --dtype DTYPE sets the dtype", err)
	case errors.As(err, &tensors) && len(tensors.Unexpected) > 0 || strings.Contains(err.Error(), "IgnoreTensors"):
		return fmt.Errorf("%w\nOn the command line: --ignore-tensor PATTERN ignores tensors that have no effect on the model", err)
	case errors.As(err, &config) && strings.Contains(err.Error(), "IgnoreKeys"):
		return fmt.Errorf("%w\nOn the command line: --ignore-key KEY ignores a key that has no effect on the model", err)
	case errors.As(err, &config) && strings.Contains(err.Error(), "Options.Context"):
		return fmt.Errorf("%w\nOn the command line: --context TOKENS sets the length of the longest sequence", err)
	}
	return err
}

// source returns the source of the module's tensors, and a function that closes it. The source is nil if the module
// reads no tensors; --weights is then a usage error.
func (m *model) source(f *modelFlags) (safetensors.Source, func() error, error) {
	none := func() error { return nil }
	switch {
	case len(m.module.Loaded()) == 0 && f.set == nil:
		return nil, none, nil
	case len(m.module.Loaded()) == 0:
		return nil, none, refuseOf(f.set, noEffect{true, "weights", ": " + m.path + " has no weights"})
	case f.weights == "dummy":
		if m.params != nil {
			return hf.Dummy(m.params), none, nil
		}
		src, err := m.dummy()
		return src, none, err
	}
	dir := m.weights
	if f.weights != "" {
		dir = f.weights
	}
	if dir == "" {
		return nil, none, usagef("%s has %s and no path to a checkpoint: give --weights DIR, or --weights dummy for made-up values", m.path, plural(int64(len(m.module.Loaded())), "weight"))
	}
	set, err := openTensors(dir)
	if err != nil {
		return nil, none, fmt.Errorf("%w\n--weights DIR sets another directory, --weights dummy makes up values", err)
	}
	// The import of a directory has compared its tensors with the config.
	if m.check != nil && dir != m.path {
		if err := m.check(set); err != nil {
			return nil, none, errors.Join(fmt.Errorf("%s: %w", dir, err), set.Close())
		}
	}
	return set, set.Close, nil
}

// dummy returns made-up values for the weights and the initial states of a module. It changes m.module
// so that each weight is read by its own name, because the expression of a weight has the names of
// tensors but not their shapes. A sharded weight becomes a shard of a tensor with the weight's name.
func (m *model) dummy() (safetensors.Source, error) {
	var params []hf.Param
	for _, w := range m.module.Loaded() {
		p := hf.Param{Info: safetensors.Info{Name: w.Name, DType: w.Type.DType}, Std: 0.02}
		for _, d := range w.Type.Shape {
			n, ok := d.Const()
			if !ok {
				return nil, fmt.Errorf("%s: weight @%s is %s, and made-up values need constant sizes", m.path, w.Name, w.Type)
			}
			p.Shape = append(p.Shape, n)
		}
		if err := m.wholeOf(w, p.Shape); err != nil {
			return nil, err
		}
		if len(p.Shape) < 2 {
			p.Mean = 1 // scales of norms
		}
		params = append(params, p)
	}
	own := *m.module
	own.Weights, own.States = nil, nil
	for _, w := range m.module.Weights {
		made := *w
		if made.Expr = nil; shards(w.Expr) {
			made.Expr = madeUpExpr(w.Name, w.Expr)
		}
		own.Weights = append(own.Weights, &made)
	}
	for _, s := range m.module.States {
		made := *s
		if s.Expr != nil {
			made.Expr = madeUpExpr(s.Name, s.Expr)
		}
		own.States = append(own.States, &made)
	}
	m.module = &own
	return hf.Dummy(params), nil
}

// wholeOf changes the shape of a sharded weight to the shape of the whole tensor.
func (m *model) wholeOf(w *ir.Weight, shape []int64) error {
	e := w.Expr
	for ; e != nil && e.Op == ir.WeightShard; e = e.Args[0] {
		s, _ := e.Shard()
		parts := s.Parts
		if parts == 0 && m.module.Group(s.Group) != nil {
			parts = m.module.Group(s.Group).Size
		}
		axis := s.Axis
		if axis < 0 {
			axis += int64(len(shape))
		}
		shape[axis] *= parts
	}
	if shards(e) {
		return usagef("%s: weight @%s is computed from shards, which --weights dummy does not support: give --weights DIR", m.path, w.Name)
	}
	return nil
}

// shards reports whether an expression contains a shard.
func shards(e *ir.WeightExpr) bool {
	return e != nil && (e.Op == ir.WeightShard || slices.ContainsFunc(e.Args, shards))
}

// madeUpExpr returns the expression of a tensor of this name with the outer shards of e.
func madeUpExpr(name string, e *ir.WeightExpr) *ir.WeightExpr {
	if e == nil || e.Op != ir.WeightShard {
		return &ir.WeightExpr{Name: name}
	}
	made := *e
	made.Args = []*ir.WeightExpr{madeUpExpr(name, e.Args[0])}
	return &made
}

// openFuncs opens a model and returns it with the function that --func names, or all.
func (a *app) openFuncs(path, name string, f *modelFlags) (*model, []*ir.Func, error) {
	m, err := a.open(path, f)
	if err != nil {
		return nil, nil, err
	}
	funcs, err := chooseFuncs(m.module, name)
	return m, funcs, err
}

// chooseFuncs returns the function that --func names, or all.
func chooseFuncs(m *ir.Module, name string) ([]*ir.Func, error) {
	if name == "" {
		return m.Funcs, nil
	}
	if f := m.Func(strings.TrimPrefix(name, "@")); f != nil {
		return []*ir.Func{f}, nil
	}
	var names []string
	for _, f := range m.Funcs {
		names = append(names, "@"+f.Name)
	}
	return nil, usagef("--func %s: the module has %s", name, strings.Join(names, ", "))
}
