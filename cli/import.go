package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pwc/frontend/hf"
	"pwc/ir"
	"pwc/safetensors"
)

func (a *app) importCommand() *cobra.Command {
	var f modelFlags
	var out outputFile
	var check bool
	cmd := &cobra.Command{
		Use:   "import DIR|config.json|model.pt2",
		Short: "make a module of a checkpoint or an exported program",
		Long: `Make a module of a Hugging Face checkpoint: a directory with config.json and
safetensors, or the config alone. A setting without an implementation is an error that names
the setting; so is a tensor that does not match the config.

Or make a module of a program that torch.export.save wrote (torch 2.9 and later). Its
weights stay in the archive, which the module names. Dynamic dimensions become
symbols. If nodes of the program cannot be imported, the error lists all of them.

Architectures: ` + strings.Join(fold(strings.Join(hf.Builtin().Architectures(), " "), 64), "\n  ") + `.`,
		Example: `  pwc import models/llama -o llama.ir
  pwc import config.json --dtype bf16 -o small.ir      # no weights are needed
  pwc import models/llama --check                      # compare the tensors with the config, write nothing
  pwc import model.pt2 -o program.ir                   # an exported program
  pwc import attention.pt2 --extern toy::attention     # the runner implements this op`,
		Args: exactly(1, "a checkpoint directory, a config.json or an exported program"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if check && out.path != "" {
				return usagef("--check and -o exclude each other: --check writes nothing")
			}
			if err := out.check(cmd); err != nil {
				return err
			}
			return a.runImport(args[0], out.path, check, &f)
		},
	}
	f.addImport(cmd, "auto")
	f.addMax(cmd)
	out.add(cmd, "the module")
	cmd.Flags().BoolVar(&check, "check", false, "check the checkpoint against its config, and write nothing")
	return cmd
}

type importReport struct {
	Architecture string      `json:"architecture"`
	Module       string      `json:"module"`
	DType        string      `json:"dtype"`
	Tensors      int         `json:"tensors"`    // tensors of the checkpoint that the module reads
	Parameters   int64       `json:"parameters"` // elements of the tensors
	Bytes        int64       `json:"bytes"`      // bytes of the tensors, as stored
	Functions    []string    `json:"functions"`
	Nodes        int         `json:"nodes"`
	Checked      bool        `json:"checked"`             // the tensors were compared with the config; always true for an exported program
	Context      int64       `json:"context"`             // the longest sequence in tokens; 0: unknown
	EOS          []int32     `json:"eos"`                 // ids that end a sequence
	Notes        []string    `json:"notes"`               // differences from the checkpoint that may surprise a reader
	Dims         []importDim `json:"dims,omitempty"`      // dynamic dimensions of an exported program
	Attention    *importAttn `json:"attention,omitempty"` // of an exported program that calls attention
	Output       string      `json:"output,omitempty"`
	Text         string      `json:"text,omitempty"` // of the module, with neither -o nor --check
}

// importAttn counts the calls of attention of an exported program.
type importAttn struct {
	Fused int    `json:"fused"` // without a matrix of scores
	Plain int    `json:"plain"` // as plain ops, with a matrix of scores
	Why   string `json:"why,omitempty"`
}

// text is the line that import prints.
func (c *importAttn) text() string {
	text := fmt.Sprintf("attention: %d without a matrix of scores; %d as plain ops", c.Fused, c.Plain)
	if c.Why != "" {
		text += ": " + c.Why
	}
	return text
}

// importDim is a dynamic dimension.
type importDim struct {
	Name  string `json:"name"`
	Min   int64  `json:"min"`
	Max   int64  `json:"max"`
	Batch bool   `json:"batch"` // the dimension counts rows
	Where string `json:"where"` // "axis 0 of x"
}

func (a *app) runImport(path, out string, check bool, f *modelFlags) error {
	info, err := os.Stat(path)
	if path == standardStream || err == nil && loaderOf(path, info) == nil {
		return usagef("%s is not a checkpoint directory, a config.json or an exported program (.pt2)", path)
	}
	m, err := a.open(path, f)
	if err != nil {
		return err
	}
	r := importReport{Architecture: m.from, Module: m.module.Name, Output: out,
		Context: m.module.Context, EOS: append([]int32{}, m.module.EOS...), Notes: append([]string{}, m.notes...)}
	// A config.json is compared with the tensors in its directory; a config of another name only with --check.
	there, err := m.hasTensors()
	if err != nil {
		return err
	}
	r.Checked = there && (check || m.check == nil || info.IsDir() || filepath.Base(path) == "config.json")
	if check && !r.Checked {
		return fmt.Errorf("%s: there are no tensors to check: no %s and no %s", m.weights, safetensors.SingleFile, safetensors.IndexFile)
	}
	if r.Checked && m.check != nil && !info.IsDir() { // the import of a directory compares its tensors with the config
		if err := m.checkTensors(); err != nil {
			return explainImport(err)
		}
	}
	r.DType = modelDType(m.module)
	for _, d := range m.dims {
		r.Dims = append(r.Dims, importDim{d.Name, d.Lo, d.Hi, d.Batch, d.Where})
	}
	if c := m.calls; c.Fused+c.Plain > 0 {
		r.Attention = &importAttn{c.Fused, c.Plain, c.Why}
	}
	for _, t := range m.tensors() {
		n := int64(1)
		for _, d := range t.Shape {
			n *= d
		}
		r.Tensors++
		r.Parameters += n
		r.Bytes += t.DType.Bytes(n)
	}
	for _, fn := range m.module.Funcs {
		r.Functions = append(r.Functions, fn.Name)
		r.Nodes += len(fn.Nodes)
	}
	switch {
	case check:
	case out != "":
		if err := writeFile(out, []byte(moduleText(m, out))); err != nil {
			return err
		}
	case a.json:
		r.Text = moduleText(m, out)
	default:
		_, err := fmt.Fprint(a.out, moduleText(m, out))
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.out, "%s: %s, %d tensors, %d parameters (%s), imported in %s\n", path, r.Architecture, r.Tensors, r.Parameters, byteCount(r.Bytes), r.DType)
	for _, d := range r.Dims {
		kind := "dynamic dimension"
		if d.Batch {
			kind = "batch dimension"
		}
		fmt.Fprintf(a.out, "%s %s in [%d, %d]: %s\n", kind, d.Name, d.Min, d.Max, d.Where)
	}
	if r.Attention != nil {
		fmt.Fprintln(a.out, r.Attention.text())
	}
	switch {
	case check && m.check == nil:
		fmt.Fprintln(a.out, "ok: the program can be imported")
	case check:
		fmt.Fprintln(a.out, "ok: the tensors match the config")
	case m.check == nil:
		fmt.Fprintf(a.out, "wrote %s: %s; the weights stay in %s\n", out, plural(int64(r.Nodes), "node"), m.weights)
	case r.Checked:
		fmt.Fprintf(a.out, "wrote %s: %s; the tensors match the config\n", out, plural(int64(r.Nodes), "node"))
	case there:
		fmt.Fprintf(a.out, "wrote %s: %s; the tensors in %s were not compared with the config: --check compares them\n", out, plural(int64(r.Nodes), "node"), m.weights)
	default:
		fmt.Fprintf(a.out, "wrote %s: %s; there were no tensors to compare with the config\n", out, plural(int64(r.Nodes), "node"))
	}
	return nil
}

// tensors describes the tensors that the model reads.
func (m *model) tensors() []safetensors.Info {
	var out []safetensors.Info
	for _, p := range m.params {
		out = append(out, p.Info)
	}
	if m.params != nil {
		return out
	}
	for _, w := range m.module.Loaded() {
		t := safetensors.Info{Name: w.Name, DType: w.Type.DType}
		for _, d := range w.Type.Shape {
			n, _ := d.Const() // extents of weights are constants
			t.Shape = append(t.Shape, n)
		}
		out = append(out, t)
	}
	return out
}

// hasTensors reports whether the checkpoint's tensors are in the directory of its config.
func (m *model) hasTensors() (bool, error) {
	if m.check == nil {
		return true, nil // an archive contains its tensors
	}
	for _, name := range []string{safetensors.SingleFile, safetensors.IndexFile} {
		switch _, err := os.Stat(filepath.Join(m.weights, name)); {
		case err == nil:
			return true, nil
		case !os.IsNotExist(err):
			return false, err
		}
	}
	return false, nil
}

// checkTensors compares the names, shapes and dtypes of the tensors with those that the module reads.
func (m *model) checkTensors() error {
	set, err := safetensors.OpenDir(m.weights)
	if err != nil {
		return err
	}
	defer set.Close()
	return m.check(set)
}

// modelDType returns the dtype of the first result of @forward as text, or "mixed dtypes" for a module
// without such a result.
func modelDType(m *ir.Module) string {
	if f := m.Func("forward"); f != nil && len(f.ResultTypes) > 0 {
		return f.ResultTypes[0].DType.String()
	}
	return "mixed dtypes"
}

// moduleText returns the module's text. A relative path to the weights becomes relative to the
// directory of out, so that both can be moved together.
func moduleText(m *model, out string) string {
	from := m.weights
	if out != "" && !filepath.IsAbs(from) {
		if rel, err := relative(filepath.Dir(out), from); err == nil {
			from = rel
		}
	}
	m.module.WeightsFrom = filepath.ToSlash(from)
	return ir.Print(m.module)
}

// canWrite returns an error if the directory of a file does not exist, or if path is a directory.
// Commands call it before they begin to work.
func canWrite(path string) error {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir():
		return fmt.Errorf("cannot write %s: directory %s does not exist", path, dir)
	case err != nil:
		return fmt.Errorf("%s cannot be written: %w", path, err)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("%s cannot be written: it is a directory", path)
	}
	return nil
}

func relative(base, target string) (string, error) {
	b, err := filepath.Abs(base)
	if err != nil {
		return "", err
	}
	t, err := filepath.Abs(target)
	if err != nil {
		return "", err
	}
	return filepath.Rel(b, t)
}

// writeFile writes a temporary file in the directory of path and renames it, so that no reader
// sees an incomplete file.
func writeFile(path string, data []byte) error {
	if err := canWrite(path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
