package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pwc/frontend/hf"
	"pwc/frontend/pt2"
	"pwc/safetensors"
)

// loader reads models from files of one kind. A file that no loader takes is the text of a module.
type loader struct {
	kind  string   // the kind's name in messages: "an exported program"
	flags []string // flags of modelFlags that apply to the kind
	takes func(path string, info fs.FileInfo) bool
	load  func(path string, f *modelFlags) (*model, error)
}

var checkpointFlags = []string{"dtype", "architecture", "context", "ignore-key", "ignore-tensor", "tp", "expert-parallel"}

// loaders are tried in this order.
var loaders = []*loader{
	{kind: "a checkpoint", flags: checkpointFlags, load: openDir,
		takes: func(_ string, info fs.FileInfo) bool { return info.IsDir() }},
	{kind: "a checkpoint's config", flags: checkpointFlags, load: openConfig,
		takes: func(path string, _ fs.FileInfo) bool { return filepath.Ext(path) == ".json" }},
	{kind: "an exported program", flags: []string{"batch-dim", "dim", "extern"}, load: openProgram,
		takes: func(path string, _ fs.FileInfo) bool { return filepath.Ext(path) == ".pt2" }},
}

// loaderOf returns the loader of a file, or nil for a module's text.
func loaderOf(path string, info fs.FileInfo) *loader {
	for _, l := range loaders {
		if l.takes(path, info) {
			return l
		}
	}
	return nil
}

// fits returns a usage error if flags were given that do not apply to files of loader l, or have no effect without
// another flag. A nil l is the text of a module.
func (f *modelFlags) fits(path string, l *loader) error {
	kind := "a module"
	own := f.common
	var given []string
	if l != nil {
		kind, own = l.kind, slices.Concat(own, l.flags)
	}
	for _, other := range loaders {
		for _, name := range other.flags {
			if f.set != nil && f.set.Changed(name) && !slices.Contains(own, name) && !slices.Contains(given, name) {
				given = append(given, name)
			}
		}
	}
	if len(given) > 0 {
		return usagef("%s is %s: --%s would have no effect", path, kind, strings.Join(given, " and --"))
	}
	switch {
	case f.ofDims && len(f.limits()) > 0 && !slices.Contains(own, "dim"):
		return usagef("--max bounds dynamic dimensions of an exported program; %s is %s", path, kind)
	case f.expertParallel && f.ranks <= 1:
		return usagef("--expert-parallel has no effect on one device: --tp N divides the model among N")
	}
	return nil
}

func openDir(dir string, f *modelFlags) (*model, error) {
	if _, err := os.Stat(filepath.Join(dir, "config.json")); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: the directory has no config.json, so it is not a checkpoint; give a module's .ir file, or a directory that transformers' save_pretrained wrote", dir)
	}
	o, err := f.options()
	if err != nil {
		return nil, err
	}
	m, err := hf.Builtin().ImportDir(dir, o)
	if err != nil {
		return nil, explainImport(err)
	}
	return ofCheckpoint(m, dir, dir), nil
}

func openConfig(path string, f *modelFlags) (*model, error) {
	o, err := f.options()
	if err != nil {
		return nil, err
	}
	o.Weights = filepath.Dir(path)
	m, err := hf.Builtin().ImportFile(path, o)
	if err != nil {
		return nil, explainImport(err)
	}
	return ofCheckpoint(m, path, o.Weights), nil
}

func ofCheckpoint(m *hf.Model, path, weights string) *model {
	return &model{path: path, module: m.Module, weights: weights, from: m.Architecture, params: m.Params, notes: m.Notes, check: m.Check}
}

// openProgram imports an archive of torch.export.save.
func openProgram(path string, f *modelFlags) (*model, error) {
	a, err := pt2.Open(path)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	m, err := a.Import(pt2.Options{BatchDim: f.batchDim, Dims: f.dims, Max: f.limits(), Externs: f.externs})
	if err != nil {
		return nil, explainProgram(err)
	}
	return &model{path: path, module: m.Module, weights: path, from: "torch " + a.TorchVersion(), dims: m.Dims, calls: m.Attentions}, nil
}

// explainProgram adds the flags that help with an error of an import.
func explainProgram(err error) error {
	text := err.Error()
	for _, o := range []struct{ option, flag string }{
		{"Options.Externs", "--extern OP imports an op as an extern op of the runner; --split-on OP of pwc split and of commands that compile cuts the graph at the op"},
		{"Options.Max", "--max DIM=VALUE bounds a dimension, --dim DIM=VALUE fixes it"},
		{"Options.Dims", "--dim DIM=VALUE fixes a dynamic dimension"},
		{"Options.BatchDim", "--batch-dim DIM names the dimension that counts rows"},
	} {
		if strings.Contains(text, o.option) {
			return fmt.Errorf("%w\nOn the command line: %s", err, o.flag)
		}
	}
	return err
}

// tensorFile is an open file or directory of tensors.
type tensorFile interface {
	safetensors.Source
	Close() error
}

// openTensors opens a directory of a checkpoint, a safetensors file, or an archive of
// torch.export.save.
func openTensors(path string) (tensorFile, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil || info.IsDir():
		return safetensors.OpenDir(path)
	case filepath.Ext(path) == ".pt2":
		return pt2.Open(path)
	}
	return safetensors.Open(path)
}
