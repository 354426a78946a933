// Package hf imports Hugging Face checkpoints: config.json, with the tensors beside it, becomes a module of the IR.
//
// A [Registry] maps the architecture that a config names to a [Family]. A family reads the config and composes blocks
// (norm, attention, rope, MLP, experts) on a [Net]; the families of [Builtin] are settings of one [Decoder]. Two rules hold for
// all of them: a setting that a family does not understand is refused by name, never dropped, and the module depends on
// the config and the options alone, so that a model can be compiled where its weights are not. (Where the checkpoint is at
// hand, its tensors say how they are called and stored, which no compiled code depends on.)
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
	"path/filepath"
	"slices"
	"strings"

	"pwc/internal/openfile"
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

	// Weights is the directory that the module says its weights are in ("weights from"); it enters no hash.
	Weights string

	// Source, if set, is the checkpoint: the module follows the dtypes its tensors really have, and a tensor that is
	// missing, unexpected or of another shape is an error. Without it the config's dtype is believed, and [Model.Check]
	// can be called later.
	Source safetensors.Source

	// Context is the longest sequence that will be served, in tokens. Only ropes need it whose frequencies depend on it
	// (rope_type longrope): without it they are refused. 0: what the config says.
	Context int64

	// Architecture stands in for the name in the config, for checkpoints that a known architecture describes.
	Architecture string

	// IgnoreKeys are keys of the config that the caller knows to be without effect on the model.
	IgnoreKeys []string
}

// Model is an imported checkpoint.
type Model struct {
	Module       *ir.Module
	Architecture string  // as registered: "LlamaForCausalLM"
	Params       []Param // every checkpoint tensor that the module reads, in the order it declares them

	// MaxPositions is the longest sequence that the model is for, in tokens: as many as it has learned positions;
	// Options.Context, if that is set; else the config's max_position_embeddings, what it was trained on; 0 if the config
	// does not say. The module does not hold it: whoever makes the positions bounds them.
	MaxPositions int64

	ignored map[string]bool // tensors that a checkpoint may hold without being read
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
	if o.MaxTokens == 0 {
		o.MaxTokens = defaultTokens
	}
	if o.BlockSize == 0 {
		o.BlockSize = defaultBlock
	}
	if o.MaxTokens < 1 || o.MaxTokens > maxTokens || o.BlockSize < 1 || o.BlockSize > maxBlock {
		return nil, fmt.Errorf("hf: MaxTokens %d must be in [1, %d] and BlockSize %d in [1, %d]", o.MaxTokens, maxTokens, o.BlockSize, maxBlock)
	}
	switch o.DType {
	case dtype.Invalid, dtype.F32, dtype.F16, dtype.BF16:
	default:
		return nil, fmt.Errorf("hf: a model cannot be imported in %s; use f32, f16 or bf16", o.DType)
	}
	if o.Context < 0 {
		return nil, fmt.Errorf("hf: Context %d is below 0", o.Context)
	}
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
	c.Inert(o.IgnoreKeys...)
	name := c.StringOr("model_type", arch)
	fixedKeys(c)
	stored := storedDType(c)
	trained := c.IntOr("max_position_embeddings", 0, 1, maxPositions)
	emit := family(c)
	if stored == dtype.Invalid && o.DType == dtype.Invalid {
		c.Errorf("dtype", "is missing, and torch_dtype too: say in which dtype to import")
	}
	if err := c.err(); err != nil {
		return nil, fmt.Errorf("hf: %w", err)
	}

	n := newNet(name, stored, o)
	emit(n)
	module, err := n.finish()
	if err != nil {
		return nil, fmt.Errorf("hf: %s: %w", arch, err)
	}
	m := &Model{Module: module, Architecture: arch, Params: n.params, MaxPositions: cmp.Or(n.learned, o.Context, trained), ignored: n.ignored}
	if o.Source != nil {
		if err := m.Check(o.Source); err != nil {
			return nil, err
		}
	}
	return m, nil
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
// any. Options.Weights is dir unless it is set, Options.Source is the directory's.
func (r *Registry) ImportDir(dir string, o Options) (m *Model, err error) {
	config, err := ReadConfig(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	if o.Weights == "" {
		o.Weights = dir
	}
	switch set, err := safetensors.OpenDir(dir); {
	case err == nil:
		defer set.Close()
		o.Source = set
	case !errors.Is(err, safetensors.ErrNoCheckpoint):
		return nil, fmt.Errorf("hf: %w", err)
	}
	m, err = r.Import(config, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return m, nil
}

// CheckError is how a checkpoint differs from what a module reads.
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
		const shown = 8
		if len(part.list) == 0 {
			continue
		}
		fmt.Fprintf(&b, "; %s: %s", part.what, strings.Join(part.list[:min(shown, len(part.list))], ", "))
		if len(part.list) > shown {
			fmt.Fprintf(&b, " and %d more", len(part.list)-shown)
		}
	}
	return b.String()
}

// Check holds a checkpoint against what the module reads, by names, shapes and dtypes, without touching a tensor's bytes.
// What differs is a [*CheckError].
func (m *Model) Check(src safetensors.Source) error {
	var e CheckError
	read := make(map[string]bool, len(m.Params))
	for _, p := range m.Params {
		read[p.Name] = true
		info, err := src.Info(p.Name)
		switch {
		case errors.Is(err, safetensors.ErrNotFound):
			e.Missing = append(e.Missing, quote(p.Name))
		case err != nil:
			return fmt.Errorf("hf: %w", err)
		case info.DType != p.DType || !slices.Equal(info.Shape, p.Shape):
			e.Different = append(e.Different, fmt.Sprintf("%s is %s%v, the config says %s%v", quote(p.Name), info.DType, info.Shape, p.DType, p.Shape))
		}
	}
	for _, name := range src.Names() {
		if !read[name] && !m.ignored[name] {
			e.Unexpected = append(e.Unexpected, quote(name))
		}
	}
	if len(e.Missing)+len(e.Different)+len(e.Unexpected) > 0 {
		return &e
	}
	return nil
}
