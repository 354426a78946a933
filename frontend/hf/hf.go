// Package hf imports Hugging Face checkpoints: config.json, with the tensors in its directory,
// becomes a module of the IR.
//
// A [Registry] maps the architecture of a config to a [Family]. A family reads the config and
// composes blocks (norm, attention, rope, MLP, experts) on a [Net]; the families of [Builtin] are
// settings of one [Decoder]. Two rules hold for all of them. A family refuses an unknown setting
// by name. The module depends only on the config and the options, so a model can be compiled
// without its weights. There are three exceptions if the checkpoint is available: its tensors
// determine the names and the storage of weights, on which no compiled code depends; the dtype, if
// neither the config nor the options give one; and a head that the config ties to the embedding
// is read if it differs from the embedding.
//
// The module has two functions, T being the dtype of [Options]:
//
//	@forward(%ids: i32[N], %pos: i32[N]) -> (T[N, hidden])
//	@logits(%h: T[N, hidden], %rows: i32[M]) -> (f32[M, vocab])
//
// Attention is the extern op [AttentionOp], at which the graph is split; its caches are states @l0.kv, @l1.kv, ….
package hf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"pwc/checkpoint"
	"pwc/internal/openfile"
	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// Options is how a checkpoint is imported. The zero value imports in the checkpoint's own dtype.
type Options struct {
	// DType is the dtype of weights, activations and caches: F32, F16, BF16, or Invalid for the checkpoint's.
	DType dtype.DType

	// MaxTokens bounds the tokens of a step, and the rows of a call of @logits. 0 means 8192.
	MaxTokens int64

	// BlockSize is the number of tokens in a block of the KV cache. 0 means 16.
	BlockSize int64

	// Ranks is the number of devices that run the model together (tensor parallelism). 0 means 1. All ranks run the
	// same module. The number must divide the query heads and the features of each MLP, and be a divisor or a multiple
	// of the KV heads. With ExpertParallel it must divide the number of routed experts instead of their features.
	// Otherwise Import returns an error.
	Ranks int64

	// ExpertParallel gives each rank whole routed experts, instead of a part of every one. A shared expert, which all
	// tokens compute, is divided like a dense MLP.
	ExpertParallel bool

	// Weights is the directory that the module declares for its weights ("weights from"). It does not enter any hash.
	Weights string

	// Source, if set, is the checkpoint. The module then follows the actual dtypes of its tensors, and a tensor that is
	// missing, unexpected or of another shape is an error. Without Source, import uses the config's dtype, and
	// [Model.Check] can be called later.
	Source safetensors.Source

	// Context is the longest sequence that will be served, in tokens. The frequencies of some ropes depend on it: if
	// it is 0, rope_type longrope is refused and dynamic is not scaled. [Model.MaxPositions] is then the config's.
	Context int64

	// Architecture, if set, replaces the name in the config, for checkpoints that a known architecture describes.
	Architecture string

	// IgnoreKeys are keys of the config that the caller knows to have no effect on the model. A key in an object has
	// the names of the objects as a prefix ("rope_scaling.strange"). A key that the config does not have is an error.
	IgnoreKeys []string

	// IgnoreTensors are names of tensors that the caller knows to have no effect on the model. Dots separate the parts
	// of a name: the part * matches any one part, and ** as the last part matches one or more. A pattern must not match a
	// tensor that the model reads. If Source is set, a pattern must match a tensor of Source.
	IgnoreTensors []string

	// GenerationConfig is the text of the checkpoint's generation_config.json. Its eos_token_id takes precedence over
	// the config's. If it is nil, [Registry.ImportDir] and, for a config.json, [Registry.ImportFile] read the file if the
	// directory has one.
	GenerationConfig []byte
}

// Model is an imported checkpoint.
type Model struct {
	Module       *ir.Module
	Architecture string  // as registered: "LlamaForCausalLM"
	Params       []Param // every checkpoint tensor that the module reads, in the order it declares them

	// MaxPositions is the longest sequence that the model supports, in tokens. It is the number of learned positions if
	// the model has them; else Options.Context if that is set; else the larger of the config's max_position_embeddings
	// and the length that its other keys give (YaRN scaling, n_positions); 0 if the config has no such key. The module
	// declares it as its context. The caller that makes the positions must keep them below it.
	MaxPositions int64

	// Notes are sentences about properties of the module that a reader of the checkpoint may not expect.
	Notes []string

	ignored map[string]ignored // tensors that a checkpoint may hold and the module does not read
	leftOut []string           // prefixes of further such tensors: parts of the model that are not imported
}

// Param is a checkpoint tensor that a module reads. Its DType is the checkpoint's. Mean and Std are the mean and the
// standard deviation of the values that [Dummy] makes for it.
type Param struct {
	safetensors.Info
	Mean, Std float64
}

const (
	defaultTokens = 8192
	defaultBlock  = 16
	maxTokens     = 1 << 20
	maxBlock      = 1 << 16
	maxPositions  = 1<<31 - 1 // positions are i32

	// maxConfig bounds the bytes of a config.json. Published configs have a few thousand.
	maxConfig = 16 << 20
)

// Import builds the module of a config.json. It returns a [*ConfigError] with all problems and all refused keys of the
// config, a [*QuantizedError] if the config marks the checkpoint as quantized, an [*UnknownArchitectureError] if the
// architecture is not registered, or an error of the options, of the module or of [Model.Check].
func (r *Registry) Import(config []byte, o Options) (*Model, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return r.importFrom(config, o, func() (safetensors.Source, error) { return o.Source, nil })
}

// check sets the defaults of MaxTokens and BlockSize, and checks the ranges of options. The error lists all options out
// of range.
func (o *Options) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("hf: "+format, args...)) }
	if o.MaxTokens == 0 {
		o.MaxTokens = defaultTokens
	}
	if o.BlockSize == 0 {
		o.BlockSize = defaultBlock
	}
	if o.MaxTokens < 1 || o.MaxTokens > maxTokens || o.BlockSize < 1 || o.BlockSize > maxBlock {
		bad("MaxTokens %d must be in [1, %d] and BlockSize %d in [1, %d]", o.MaxTokens, maxTokens, o.BlockSize, maxBlock)
	}
	switch o.DType {
	case dtype.Invalid, dtype.F32, dtype.F16, dtype.BF16:
	default:
		bad("a model cannot be imported in %s; use f32, f16 or bf16", o.DType)
	}
	if o.Ranks < 0 || o.Ranks > ir.MaxGroupSize {
		bad("Ranks %d must be in [1, %d]", o.Ranks, ir.MaxGroupSize)
	}
	if o.Context < 0 {
		bad("Context %d must be at least 0", o.Context)
	}
	return errors.Join(errs...)
}

// importFrom is Import for options that check has checked. It opens the checkpoint only after it has read the config
// without problems.
func (r *Registry) importFrom(config []byte, o Options, open func() (safetensors.Source, error)) (*Model, error) {
	c, err := parseConfig(config)
	if err != nil {
		return nil, fmt.Errorf("hf: %w", err)
	}
	c.context = o.Context
	arch, family, err := r.choose(c, o.Architecture)
	if err != nil {
		return nil, fmt.Errorf("hf: %w", err)
	}
	c.Inert(inertKeys()...)
	c.ignore(o.IgnoreKeys)
	name := c.StringOr("model_type", arch)
	fixedKeys(c)
	emit := family(c)
	stored, trained, eos := ofWhole(c)
	if err := c.err(); err != nil {
		return nil, fmt.Errorf("hf: %w", err)
	}
	if o.GenerationConfig != nil {
		ids, err := generationEOS(o.GenerationConfig)
		if err != nil {
			return nil, fmt.Errorf("hf: %w", err)
		}
		if ids != nil {
			eos = ids
		}
	}

	if o.Source, err = open(); err != nil {
		return nil, err
	}
	if o.Source != nil {
		if err := quantizedTensors(o.Source); err != nil {
			return nil, fmt.Errorf("hf: %w", err)
		}
	}
	if stored == dtype.Invalid && o.DType == dtype.Invalid {
		if stored = tensorsDType(o.Source); stored == dtype.Invalid {
			c.Errorf("dtype", "is missing, as is torch_dtype: set the dtype to import in (Options.DType)")
			return nil, fmt.Errorf("hf: %w", c.err())
		}
	}

	n := newNet(name, stored, o)
	emit(n)
	positions := cmp.Or(n.learned, o.Context, max(trained, c.report.longest))
	if positions > 0 {
		n.B.Context(positions)
	}
	if len(eos) > 0 {
		n.B.EOS(eos...)
	}
	for _, pattern := range o.IgnoreTensors {
		// The module already declares its buffers unread. The caller may ignore one so that its values are not checked.
		if !slices.ContainsFunc(n.B.Module().Unread, func(u *ir.Unread) bool { return u.Name == pattern }) {
			n.B.Unread(pattern, "")
		}
	}
	module, err := n.finish()
	if err != nil {
		return nil, fmt.Errorf("hf: %s: %w", arch, err)
	}
	m := &Model{Module: module, Architecture: arch, Params: n.params, MaxPositions: positions, Notes: n.notes, ignored: n.ignored, leftOut: n.leftOut}
	if err := m.ignore(o.IgnoreTensors, o.Source); err != nil {
		return nil, err
	}
	if o.Source != nil {
		if err := m.Check(o.Source); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// ofWhole honours the keys that every config may have: the dtype of the tensors (Invalid if absent), the longest
// sequence of training (0 if absent) and the ids that end a sequence. A key of the file takes precedence over one of
// its text_config.
func ofWhole(c *Config) (stored dtype.DType, trained int64, eos []int32) {
	for _, o := range []*Config{c, c.text} {
		if o == nil {
			continue
		}
		stored = cmp.Or(stored, storedDType(o))
		trained = cmp.Or(trained, o.IntOr("max_position_embeddings", 0, 1, maxPositions))
		if ids := o.tokenIDs(eosKey); eos == nil {
			eos = ids
		}
	}
	return stored, trained, eos
}

// Files of a checkpoint other than tensors.
const (
	configFile     = "config.json"
	generationFile = "generation_config.json"
)

// eosKey is the key of the id, or the list of ids, that ends a sequence, in both files.
const eosKey = "eos_token_id"

// generationEOS returns the ids that end a sequence according to a generation_config.json. They are nil if it has no
// such key, and empty if the key has no id that is at least 0.
func generationEOS(text []byte) ([]int32, error) {
	c, err := parseConfig(text)
	if err != nil {
		if e, ok := errors.AsType[*ConfigError](err); ok {
			e.File = generationFile
		}
		return nil, err
	}
	ids := c.tokenIDs(eosKey)
	if len(c.report.problems) > 0 { // unread keys are no problem: they set sampling, which the caller chooses
		return nil, &ConfigError{File: generationFile, Problems: c.report.problems}
	}
	if ids == nil && c.Has(eosKey) {
		ids = []int32{}
	}
	return ids, nil
}

// ignore drops the checks of tensors that match the patterns of Options.IgnoreTensors, and checks the patterns.
func (m *Model) ignore(patterns []string, src safetensors.Source) error {
	for _, pattern := range patterns {
		u := ir.Unread{Name: pattern}
		for _, p := range m.Params {
			if u.Matches(p.Name) {
				return fmt.Errorf("hf: IgnoreTensors: %s matches tensor %s, which the model reads", termsafe.Quote(pattern), termsafe.Quote(p.Name))
			}
		}
		found := src == nil
		if src != nil {
			for _, name := range src.Names() {
				if u.Matches(name) {
					m.ignored[name], found = ignored{}, true
				}
			}
		}
		if !found {
			return fmt.Errorf("hf: IgnoreTensors: the checkpoint has no tensor %s", termsafe.Quote(pattern))
		}
	}
	return nil
}

// tensorsDType returns the dtype that most elements of a checkpoint have, among those that a model can be imported in;
// Invalid if no tensor has one of these.
func tensorsDType(src safetensors.Source) dtype.DType {
	if src == nil {
		return dtype.Invalid
	}
	count := map[dtype.DType]int64{}
	for _, name := range src.Names() {
		info, err := src.Info(name)
		if err != nil {
			continue // Check reports the error if the module reads the tensor
		}
		n := int64(1)
		for _, d := range info.Shape {
			n *= d
		}
		count[info.DType] += n
	}
	best := dtype.Invalid
	for _, d := range []dtype.DType{dtype.F32, dtype.BF16, dtype.F16} {
		if count[d] > count[best] {
			best = d
		}
	}
	return best
}

// storedDType honours dtype and torch_dtype, the new and the old key of the checkpoint's dtype. It returns Invalid if
// the config has neither.
func storedDType(c *Config) dtype.DType {
	table := map[string]dtype.DType{"float32": dtype.F32, "float16": dtype.F16, "bfloat16": dtype.BF16}
	var found dtype.DType
	for _, key := range []string{"dtype", "torch_dtype"} {
		if !c.Has(key) {
			continue
		}
		d := OneOf(c, key, "", table)
		if found != dtype.Invalid && d != dtype.Invalid && d != found {
			c.Errorf(key, "%s contradicts dtype %s", d, found)
		}
		found = d
	}
	return found
}

// ReadConfig returns the text of a config, which must be a regular file of at most 16 MiB.
func ReadConfig(path string) ([]byte, error) {
	text, err := openfile.Read(path, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("hf: %w", err)
	}
	return text, nil
}

// ImportDir imports the checkpoint in a directory. It reads config.json, and generation_config.json unless
// Options.GenerationConfig is set. It refuses a directory with a file that marks a quantized checkpoint or an adapter.
// If the directory has tensors, they replace Options.Source; otherwise the import has no source. They are opened after
// the config is read. Options.Weights defaults to dir.
func (r *Registry) ImportDir(dir string, o Options) (*Model, error) {
	var set *safetensors.Set
	m, err := r.importFile(filepath.Join(dir, configFile), o, func() (_ safetensors.Source, err error) {
		switch set, err = safetensors.OpenDir(dir); {
		case errors.Is(err, safetensors.ErrNoCheckpoint):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("hf: %w", err)
		}
		return set, nil
	})
	if set != nil {
		if m != nil {
			m.Notes = append(set.Notes(), m.Notes...)
		}
		err = errors.Join(err, set.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return m, nil
}

// ImportFile imports a config without the tensors of its directory. If the file is named config.json, ImportFile reads
// generation_config.json and refuses marks of quantization and adapters as ImportDir does. Options.Weights defaults to
// the directory.
func (r *Registry) ImportFile(path string, o Options) (*Model, error) {
	m, err := r.importFile(path, o, func() (safetensors.Source, error) { return o.Source, nil })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

func (r *Registry) importFile(path string, o Options, open func() (safetensors.Source, error)) (*Model, error) {
	config, err := ReadConfig(path)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if o.Weights == "" {
		o.Weights = dir
	}
	if filepath.Base(path) == configFile {
		if err := besideConfig(dir); err != nil {
			return nil, err
		}
		if o.GenerationConfig == nil {
			text, err := ReadConfig(filepath.Join(dir, generationFile))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			o.GenerationConfig = text
		}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	return r.importFrom(config, o, open)
}

// CheckError lists the differences between a checkpoint and its module. Names are quoted.
type CheckError struct {
	Missing    []string // tensors that the module reads and the checkpoint does not have
	Different  []string // the name with both types, or with the reason why a buffer must not stay unread
	Unexpected []string // tensors that the config does not account for: ignoring a bias would change the model
}

// Error lists the first differences of each kind, and the number of others.
func (e *CheckError) Error() string {
	var b strings.Builder
	b.WriteString("hf: the checkpoint is not the one that config.json describes")
	for _, part := range []struct {
		what string
		list []string
	}{{"missing", e.Missing}, {"different", e.Different}, {"unexpected", e.Unexpected}} {
		if len(part.list) > 0 {
			fmt.Fprintf(&b, "; %s: %s", part.what, some(part.list))
		}
	}
	return b.String()
}

// Check compares a checkpoint with the module: the names, shapes and dtypes of the tensors that the module reads, and
// the values of buffers, which it computes instead of reading them. It returns a [*CheckError] with all differences, a
// [*checkpoint.Error] if a tied head differs from the embedding, or a [*QuantizedError] if the checkpoint is
// quantized.
func (m *Model) Check(src safetensors.Source) error {
	if err := quantizedTensors(src); err != nil {
		return fmt.Errorf("hf: %w", err)
	}
	var e CheckError
	read := make(map[string]bool, len(m.Params))
	for _, p := range m.Params {
		read[p.Name] = true
		info, err := src.Info(p.Name)
		switch {
		case errors.Is(err, safetensors.ErrNotFound):
			e.Missing = append(e.Missing, termsafe.Quote(p.Name))
		case err != nil:
			return fmt.Errorf("hf: %w", err)
		case info.DType != p.DType || !slices.Equal(info.Shape, p.Shape):
			e.Different = append(e.Different, fmt.Sprintf("%s is %s%v, the config says %s%v", termsafe.Quote(p.Name), info.DType, info.Shape, p.DType, p.Shape))
		}
	}
	for _, name := range src.Names() {
		if read[name] {
			continue
		}
		unread, ok := m.ignored[name]
		switch {
		case !ok && slices.ContainsFunc(m.leftOut, func(part string) bool { return strings.HasPrefix(name, part) }):
		case !ok:
			e.Unexpected = append(e.Unexpected, termsafe.Quote(name))
		case unread.check:
			t, err := src.Tensor(name)
			if err != nil {
				return fmt.Errorf("hf: %w", err)
			}
			reason := ""
			if err := safetensors.Guard(src, func() error { reason = unread.kind.hides(t, unread.rope); return nil }); err != nil {
				return fmt.Errorf("hf: %w", err)
			}
			if reason != "" {
				e.Different = append(e.Different, fmt.Sprintf("%s, which the model does not read, %s", termsafe.Quote(name), reason))
			}
		}
	}
	if len(e.Missing)+len(e.Different)+len(e.Unexpected) > 0 {
		return &e
	}
	if err := checkpoint.Check(m.Module, src); err != nil {
		return fmt.Errorf("hf: %w", err)
	}
	return nil
}
