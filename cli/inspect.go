package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pwc/cache"
	"pwc/inspect"
	"pwc/internal/openfile"
	"pwc/ir"
	"pwc/pieces"
	"pwc/piecewise"
)

func (a *app) inspectCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	var sizes sizeList
	var mode, out, profile string
	var peak float64
	var force bool
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "write an HTML report of a compiled model",
		Long: `Compile a model and write one HTML file, which loads no other files. It has the pieces of
each function as a graph, their IR, the changes of each pass, their kernels with source,
launch shape, registers and shared memory, and the memory of a step.

--sizes are the numbers of rows that the report describes. --profile adds measured times from
the output of pwc bench --profile --json. --json prints the report's data
(docs/inspect.md) instead.`,
		Example: `  pwc inspect models/llama -o report.html
  pwc inspect model.ir --target cuda:sm_90 --mode full -o full.html
  pwc bench models/llama --profile --json > bench.json && pwc inspect models/llama --profile bench.json -o measured.html
  pwc inspect model.ir --json`,
		Args: exactly(1, "one module or checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b.fix(cmd)
			if out == "" && !a.json {
				return usagef("give the file to write with -o, as in -o report.html")
			}
			if err := refuse(cmd, noEffect{true, "dump-passes", ": the report has the changes of each pass; pwc compile --dump-passes writes them to files"},
				noEffect{a.json, "output", " with --json, which prints the report's data"},
				noEffect{out == "" || out == standardStream, "force", " without -o FILE"},
				noEffect{profile == "", "peak", " without --profile FILE, whose GEMMs the roofline shows"}); err != nil {
				return err
			}
			return a.runInspect(cmd.Context(), args[0], &f, &b, inspectFlags{sizes, mode, out, profile, peak, force})
		},
	}
	f.addImport(cmd, "auto")
	b.add(cmd)
	b.addSymbols(cmd)
	addMode(cmd, &mode)
	fl := cmd.Flags()
	fl.Var(&sizes, "sizes", "`ROWS` of the steps that the report describes (default: 1, 8, 64 and 512, within the range of the model's batch symbols)")
	fl.StringVarP(&out, "output", "o", "", "`FILE` for the report; - is standard output")
	fl.StringVar(&profile, "profile", "", "`FILE` with the output of pwc bench --profile --json")
	fl.Float64Var(&peak, "peak", 0, "peak of the device in `TFLOP/s`, for the roofline of --profile (989 in bf16 for an H100 SXM, by its datasheet)")
	fl.BoolVar(&force, "force", false, "overwrite an existing file")
	return cmd
}

type inspectFlags struct {
	sizes   sizeList
	mode    string
	out     string
	profile string
	peak    float64 // TFLOP/s
	force   bool
}

func (a *app) runInspect(ctx context.Context, path string, f *modelFlags, bf *buildFlags, g inspectFlags) (err error) {
	mode, err := parseMode(g.mode)
	if err != nil {
		return err
	}
	if g.out != "" && g.out != standardStream {
		if err := canWrite(g.out); err != nil {
			return err
		}
		if _, err := os.Stat(g.out); err == nil && !g.force {
			return fmt.Errorf("%s already exists; --force overwrites it", g.out)
		}
	}
	var measured *inspect.Measured
	if g.profile != "" {
		if measured, err = readProfile(g.profile); err != nil {
			return err
		}
	}
	m, err := a.open(path, f)
	if err != nil {
		return err
	}
	report, err := a.inspect(ctx, m, mode, bf, g.sizes)
	if err != nil {
		return err
	}
	if report.Measured = measured; measured != nil {
		measured.Peak = g.peak * 1e12
	}
	if a.json {
		return a.printJSON(report)
	}
	var page bytes.Buffer
	if err := inspect.WriteHTML(&page, report); err != nil {
		return err
	}
	if g.out == standardStream {
		_, err := a.out.Write(page.Bytes())
		return err
	}
	if err := writeFile(g.out, page.Bytes()); err != nil {
		return err
	}
	fmt.Fprintf(a.out, "wrote %s: %s, %s distinct, %s\n", g.out, plural(int64(len(report.Functions)), "function"), plural(int64(len(report.Pieces)), "piece"), byteCount(int64(page.Len())))
	return nil
}

// inspect compiles a model without the cache and collects the data of the report.
func (a *app) inspect(ctx context.Context, m *model, mode piecewise.Mode, bf *buildFlags, sizes sizeList) (report *inspect.Report, err error) {
	t, err := openTarget(bf, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	recorder := inspect.NewRecorder(pieces.Pipeline{Backend: t.backend, Options: bf.options()})
	t.compiler = recorder
	if t.watch != nil {
		t.watch(recorder.Source)
	}
	symbols := overlay(loadSymbols(m.module), bf.symbols)
	anew := *bf
	anew.uncached = true
	planned := *t
	planned.dev = nil
	b, err := a.newBackend(ctx, m.module, &planned, &anew, mode, nil, symbols)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	graphs, _ := a.graphsOf(m.module, bf.splitOn, mode) // if the mode is refused, no graph holds a piece
	store, err := a.openStore()
	if err != nil {
		return nil, err
	}
	report, err = inspect.Collect(inspect.Options{
		Module: m.module, Name: filepath.ToSlash(m.path), Version: version().Version, Mode: mode, Backend: b, SplitOn: bf.splitOn,
		Sizes: inspectedSizes(m.module, sizes), Symbols: symbols, Recorder: recorder,
		Graph: func(fn string, splitting bool) string { return graphs[fn].of(splitting) },
		Cached: func(key cache.Key) bool {
			if store == nil {
				return false
			}
			_, ok, err := store.Get(ctx, key)
			return ok && err == nil
		},
	})
	return report, err
}

// inspectedSizes returns the numbers of rows that the report describes: given, else a default list,
// clamped to the ranges of all batch symbols.
func inspectedSizes(m *ir.Module, given sizeList) []int64 {
	sizes := []int64{1, 8, 64, 512}
	if len(given) > 0 {
		sizes = slices.Clone(given)
	}
	for _, s := range m.Symbols {
		if s.Kind == ir.Batch {
			for i, n := range sizes {
				sizes[i] = max(s.Lo, min(n, s.Hi))
			}
		}
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// weightOf splits the label of a kernel in bench's output, "linear [6144 4096]", into the kernel's
// name and the number of elements of its weight, 0 unless the kernel is a GEMM whose weight is a matrix.
func weightOf(label string) (name string, elements int64) {
	name, shape, ok := strings.Cut(label, " [")
	dims := strings.Fields(strings.TrimSuffix(shape, "]"))
	if gemm := strings.Contains(name, "linear") || strings.Contains(name, "matmul"); !ok || !gemm || len(dims) != 2 {
		return name, 0 // such as an embedding, which reads only some rows of its table
	}
	elements = 1
	for _, d := range dims {
		n, err := strconv.ParseInt(d, 10, 64)
		if err != nil {
			return name, 0
		}
		elements *= n
	}
	return name, elements
}

// maxProfile bounds the file of --profile, in bytes.
const maxProfile = 64 << 20

// readProfile reads the file of --profile.
func readProfile(path string) (*inspect.Measured, error) {
	text, err := openfile.Read(path, maxProfile)
	if err != nil {
		return nil, err
	}
	var b benchReport
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, fmt.Errorf("%s: %w; --profile needs the output of pwc bench --profile --json", path, err)
	}
	if len(b.Profiles) == 0 {
		return nil, fmt.Errorf("%s has no profiles: pwc bench --profile --json writes them for a language model, without --train", path)
	}
	out := &inspect.Measured{Device: b.Device, Bandwidth: b.Bandwidth, Kernels: []inspect.MeasuredKernel{}}
	for _, p := range b.Profiles {
		for _, k := range p.Kernels {
			name, elements := weightOf(k.Name)
			m := inspect.MeasuredKernel{Name: name, Rows: p.Batch, Calls: int64(k.Launches), Seconds: k.US / 1e6}
			if elements > 0 {
				m.Bytes, m.Ops = k.WeightBytes, 2*p.Batch*elements*int64(k.Launches)
			}
			out.Kernels = append(out.Kernels, m)
		}
	}
	return out, nil
}
