// Package hf imports Hugging Face checkpoints: config.json, with the tensors in its directory,
// becomes a module of the IR.
//
// A [Registry] maps the architecture of a config to a [Family]. A family reads the config and
// composes blocks (norm, attention, rope, MLP, experts) on a [Net]; the families of [Builtin] are
// settings of one [Decoder]. Two rules hold for all of them. A family refuses an unknown setting
// by name. The module depends only on the config and the options, so a model can be compiled
// without its weights. (If the checkpoint is available, its tensors determine names and storage,
// but no compiled code depends on that.)
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

	// MaxTokens bounds the tokens of a step, and the rows that @logits takes. 0 means 8192.
	MaxTokens int64

	// BlockSize is the number of tokens in a block of the KV cache. 0 means 16.
	BlockSize int64

	// Ranks is how many devices run the model together (tensor parallelism). 0 means 1. The
	// module is the same for all of them; heads and features that do not divide are errors.
	Ranks int64

	// ExpertParallel has each rank have all of some experts, in place of its part of each.
	ExpertParallel bool

	// Weights is the directory that the module says its weights are in ("weights from"); it enters no hash.
	Weights string

	// Source, if set, is the checkpoint: the module follows the dtypes its tensors really have, and a tensor that is
	// missing, unexpected or of another shape is an error. Without it the config's dtype is believed, and [Model.Check]
	// can be called later.
	Source safetensors.Source

	// Context is the longest sequence that will be served, in tokens. Only ropes need it whose frequencies depend on it:
	// without it rope_type longrope is refused, and dynamic is not scaled. 0: what the config says.
	Context int64

	// Architecture stands in for the name in the config, for checkpoints that a known architecture describes.
	Architecture string

	// IgnoreKeys are keys of the config, with the objects around them ("rope_scaling.strange"), that the caller knows to be
	// without effect on the model. One that is not there is an error.
	IgnoreKeys []string

	// IgnoreTensors are names of tensors that the caller knows to be without effect on the model; a part between dots that
	// is * stands for any one part. None is of a tensor that the model reads, and where Source is set each is of one
	// that is there.
	IgnoreTensors []string

	// GenerationConfig is the text of the checkpoint's generation_config.json, whose ids that end a sequence come before
	// those of the config; nil: there is none.
	GenerationConfig []byte
}

// Model is an imported checkpoint.
type Model struct {
	Module       *ir.Module
	Architecture string  // as registered: "LlamaForCausalLM"
	Params       []Param // every checkpoint tensor that the module reads, in the order it declares them

	// MaxPositions is the longest sequence that the model is for, in tokens: as many as it has learned positions;
	// Options.Context, if that is set; else the config's max_position_embeddings, what it was trained on, or what a rope
	// that is scaled by YaRN reaches, if that is more; 0 if the config does not say. The module says it too, as its context, and beside it the ids that end a sequence ([ir.Module.EOS]).
	// Whoever makes the positions bounds them.
	MaxPositions int64

	// Notes are what a reader of the checkpoint may not expect of the module, a sentence each.
	Notes []string

	ignored map[string]ignored // tensors that a checkpoint may hold without being read
	leftOut []string           // prefixes of more of them: parts of the model that are not imported
}

// Param is a checkpoint tensor that a module reads. Its DType is the checkpoint's. Mean and Std describe the values of an
// untrained one, which [Dummy] makes.
type Param struct {
	safetensors.Info
	Mean, Std float64
}

const (
	defaultTokens = 8192
	defaultBlock  = 16
	maxTokens     = 1 << 20
	maxBlock      = 1 << 16
	maxPositions  = 1<<31 - 1 // they are i32

	// maxConfig is the most bytes of a config.json that are read; real ones have some thousands.
	maxConfig = 16 << 20
)

// Import builds the module of a config.json. The errors about the config are a [*ConfigError] with every problem and
// every refused key, an architecture that is not registered an [*UnknownArchitectureError].
func (r *Registry) Import(config []byte, o Options) (*Model, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return r.importFrom(config, o, func() (safetensors.Source, error) { return o.Source, nil })
}

// check completes the options, or says what is wrong with them.
func (o *Options) check() error {
	if o.MaxTokens == 0 {
		o.MaxTokens = defaultTokens
	}
	if o.BlockSize == 0 {
		o.BlockSize = defaultBlock
	}
	if o.MaxTokens < 1 || o.MaxTokens > maxTokens || o.BlockSize < 1 || o.BlockSize > maxBlock {
		return fmt.Errorf("hf: MaxTokens %d must be in [1, %d] and BlockSize %d in [1, %d]", o.MaxTokens, maxTokens, o.BlockSize, maxBlock)
	}
	switch o.DType {
	case dtype.Invalid, dtype.F32, dtype.F16, dtype.BF16:
	default:
		return fmt.Errorf("hf: a model cannot be imported in %s; use f32, f16 or bf16", o.DType)
	}
	if o.Ranks < 0 || o.Ranks > ir.MaxGroupSize {
		return fmt.Errorf("hf: Ranks %d must be in [1, %d]", o.Ranks, ir.MaxGroupSize)
	}
	if o.Context < 0 {
		return fmt.Errorf("hf: Context %d is below 0", o.Context)
	}
	return nil
}

// importFrom is Import with a checkpoint that is opened once the config is understood.
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
			c.Errorf("dtype", "is missing, and torch_dtype too: say in which dtype to import (Options.DType)")
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
		// The module declares buffers itself; the caller may know that their values do not matter.
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

// ofWhole honours what every model's config says: the dtype of its tensors, Invalid if it does not; the longest sequence
// that it was trained on, 0 likewise; and the ids that end a sequence. The file goes before the part that reads text.
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

// eosKey is the key of the ids that end a sequence, one or a list, in both files.
const eosKey = "eos_token_id"

// generationEOS returns the ids that end a sequence by a generation_config.json; nil if it does not say.
func generationEOS(text []byte) ([]int32, error) {
	c, err := parseConfig(text)
	if err != nil {
		if e, ok := errors.AsType[*ConfigError](err); ok {
			e.File = generationFile
		}
		return nil, err
	}
	ids := c.tokenIDs(eosKey)
	if len(c.report.problems) > 0 { // the other keys are of sampling, which the caller chooses
		return nil, &ConfigError{File: generationFile, Problems: c.report.problems}
	}
	if ids == nil && c.Has(eosKey) {
		ids = []int32{}
	}
	return ids, nil
}

// ignore drops the checks of tensors that the caller knows to be without effect.
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

// tensorsDType returns the dtype of most elements of a checkpoint; Invalid if there is none that a model is imported in.
func tensorsDType(src safetensors.Source) dtype.DType {
	if src == nil {
		return dtype.Invalid
	}
	count := map[dtype.DType]int64{}
	for _, name := range src.Names() {
		info, err := src.Info(name)
		if err != nil {
			continue // Check reports it, if it is read
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

// storedDType honours the key that names the checkpoint's dtype, in its old and its new spelling. It is Invalid if the
// config has neither.
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

// ReadConfig reads the text of a config: a regular file of at most 16 MiB.
func ReadConfig(path string) ([]byte, error) {
	text, err := openfile.Read(path, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("hf: %w", err)
	}
	return text, nil
}

// ImportDir imports the checkpoint in a directory: its config.json, held against the tensors beside it where there are
// any, with its generation_config.json unless Options.GenerationConfig is set. Options.Weights is dir unless it is set,
// Options.Source is the directory's. The tensors are opened last.
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

// ImportFile imports a config alone. If it is named config.json, the other files of its directory are read as ImportDir
// does, but for the tensors. Options.Weights is the directory unless it is set.
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

// CheckError has the differences between a checkpoint and its module.
type CheckError struct {
	Missing    []string // tensors that the checkpoint lacks
	Different  []string // "NAME is f32[2, 3], the config says bf16[3, 2]"
	Unexpected []string // tensors that the config does not account for: ignoring a bias would change the model
}

// Error lists the differences, some of each kind.
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

// Check holds a checkpoint against what the module reads, by names, shapes and dtypes, and the tensors that go unread
// against what the module computes in their place, by their bytes. What differs is a [*CheckError]; a head that is tied
// and has other values, a [*checkpoint.Error]; a checkpoint that is quantized, a [*QuantizedError].
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
