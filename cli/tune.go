package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"pwc/cache"
	"pwc/collective"
	"pwc/ir"
	"pwc/piecewise"
)

// tuner measures GEMMs on a target's device and writes tuning records to the store, if it is not
// nil. It calls progress before each GEMM.
type tuner func(ctx context.Context, programs []piecewise.Sized, s *cache.Store, candidates int, progress func(done, of int)) ([]tuneGEMM, error)

// tuneReport is the JSON of tune.
type tuneReport struct {
	Target  string     `json:"target"`
	Device  string     `json:"device"`
	DType   string     `json:"dtype"` // of the hidden states
	Library string     `json:"library"`
	Kept    bool       `json:"kept"` // records are in the cache
	Seconds float64    `json:"seconds"`
	GEMMs   []tuneGEMM `json:"products"`

	Collectives []tuneCollectives `json:"collectives,omitempty"` // of a module for several devices, one for each number of ranks

	unkept string // why Kept is false
}

// tuneCollectives has the times of all_reduces over a number of ranks.
type tuneCollectives struct {
	Ranks     int             `json:"ranks"`
	Library   string          `json:"library"`
	NCCLBytes int64           `json:"nccl_bytes"` // size from which on NCCL is at least 3 % faster; 0: at no size
	Times     []tuneAllReduce `json:"all_reduce"`

	keep func(ctx context.Context, s *cache.Store) error // writes a tuning record
}

type tuneAllReduce struct {
	Bytes int64   `json:"bytes"`
	Peer  float64 `json:"peer_us"`
	NCCL  float64 `json:"nccl_us"`
}

// tuneGEMM has the times of one GEMM together with the kernels before and after it, in microseconds. Heuristic is 0 if
// the algorithm that the library prefers cannot run, and Best is 0 if no algorithm can.
type tuneGEMM struct {
	Name      string  `json:"product"`
	Kernel    string  `json:"kernel"` // pwc's kernel
	Own       float64 `json:"own_us"`
	Heuristic float64 `json:"heuristic_us"`
	Best      float64 `json:"best_us"`
	Tried     int     `json:"tried"`
	Choice    string  `json:"choice"` // own, heuristic or another

	library string
}

// Values of tuneGEMM.Choice.
const (
	choseOwn       = "own"
	choseHeuristic = "heuristic"
	choseOther     = "another"
)

func (a *app) tuneCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	candidates := 8
	cmd := &cobra.Command{
		Use:   "tune MODEL",
		Short: "find the fastest kernel for each GEMM of a model on this GPU",
		Long: `Measure the GEMMs of a model on this machine's GPU, with pwc's kernels and with
algorithms of cuBLASLt, at every capture size. Each GEMM is measured together with its
neighbouring kernels, with operands that are not in a cache of the GPU. The fastest choice
is written to pwc's cache as a tuning record for this GPU model and this version of
cuBLASLt, and later runs use it. cuBLASLt, and NCCL below, count as faster from 3 % on. No
weights are read, and compiled programs do not change.

For a model on several GPUs (--tp) tune also measures all_reduces, by pwc's kernels over
peer memory and by NCCL. Another record has the size from which on NCCL is faster.

Without a record pwc's kernels compute GEMMs of few rows, up to a bound that was
measured on an H200; above the bound cuBLASLt computes them with the first algorithm
of its heuristic.`,
		Example: `  pwc tune models/llama --target cuda
  pwc tune config.json --target cuda --dtype bf16 --capture-sizes 1,8,32,128,256 --json
  pwc tune models/llama --target cuda --tp 2`,
		Args: exactly(1, "one checkpoint, config.json or module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b.fix(cmd)
			if b.frozen {
				return usagef("--frozen excludes tune: it refuses GEMMs without a tuning record, and tune makes the records; pwc compile --frozen checks that the cache has the model")
			}
			return a.runTune(cmd.Context(), args[0], &f, &b, candidates)
		},
	}
	f.addImport(cmd, "auto")
	b.add(cmd)
	b.addFrozen(cmd)
	cmd.Flags().Lookup("frozen").Hidden = true // read only for its error
	b.addSymbols(cmd)
	cmd.Flags().Var(&wholeNumber[int]{&candidates, 1, maxNumber}, "candidates", "`N` algorithms of the library to try for each GEMM")
	return cmd
}

// nothingToTune returns the error of tune for a target without a tuner.
func nothingToTune(t *target) error {
	if t.untuned != nil {
		return fmt.Errorf("tune measures GEMMs of cuBLASLt: %w", t.untuned)
	}
	if len(gpus()) == 0 {
		return usagef("--target %s has nothing to tune: tune is for GPUs, and this pwc is built without support for them (-tags nocuda)", t.name)
	}
	return usagef("--target %s has nothing to tune; --target cuda tunes this machine's GPU", t.name)
}

func (a *app) runTune(ctx context.Context, path string, f *modelFlags, bf *buildFlags, candidates int) (err error) {
	m, err := a.open(path, f)
	if err != nil {
		return err
	}
	t, w, closeWorld, err := openWorld(ctx, m.module, bf, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeWorld()) }()
	if t.tune == nil {
		return nothingToTune(t)
	}
	b, err := a.newBackend(ctx, m.module, t, bf, piecewise.Piecewise, nil, loadSymbols(m.module))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	programs, err := b.Programs()
	if err != nil {
		return err
	}
	store, err := a.openStore()
	if err != nil {
		return err
	}
	r, err := a.measureTune(ctx, m.module, t, w, programs, store, candidates)
	if err != nil && len(r.GEMMs)+len(r.Collectives) == 0 {
		return err
	}
	if a.json {
		return errors.Join(a.printJSON(r), err)
	}
	return errors.Join(a.printTune(m.module, r), err)
}

// measureTune measures a module's GEMMs and all_reduces, and writes the records to a store that is not nil and
// has a directory. If measuring or writing fails, the report has the results up to then, and Kept is false.
func (a *app) measureTune(ctx context.Context, m *ir.Module, t *target, w *world, programs []piecewise.Sized, store *cache.Store, candidates int) (*tuneReport, error) {
	if store != nil && store.Dir() == "" {
		store = nil
	}
	r := &tuneReport{Target: t.name, Device: t.dev.Info().Name, DType: modelDType(m)}
	bar := &progress{w: a.screen, what: "measuring"}
	start := time.Now()
	gemms, err := t.tune(ctx, programs, store, candidates, func(done, of int) { bar.set(done, of, "") })
	bar.end()
	if r.GEMMs = gemms; len(gemms) > 0 {
		r.Library = gemms[0].library
	}
	if err == nil {
		r.Collectives, err = w.timeCollectives(ctx, m, t)
	}
	for _, c := range r.Collectives {
		if store != nil {
			err = errors.Join(err, c.keep(ctx, store))
		}
	}
	r.Seconds = time.Since(start).Seconds()
	switch {
	case store == nil:
		r.unkept = "there is no cache"
	case err != nil:
		r.unkept = "some records, because of the error below"
	default:
		r.Kept = true
	}
	return r, err
}

// timeCollectives measures all_reduces for each size of the module's groups. After an error, it returns the times of
// the sizes up to then.
func (w *world) timeCollectives(ctx context.Context, m *ir.Module, first *target) (out []tuneCollectives, err error) {
	devices := append([]*target{first}, w.peers...)
	seen := map[int64]bool{1: true}
	for _, g := range m.Groups {
		if seen[g.Size] || first.timeCollectives == nil {
			continue
		}
		seen[g.Size] = true
		groups, err := collective.Local("tune", int(g.Size), collective.Options{})
		if err != nil {
			return out, err
		}
		found, errs := make([]tuneCollectives, g.Size), make([]error, g.Size)
		var all sync.WaitGroup
		for rank, own := range groups {
			all.Go(func() {
				if found[rank], errs[rank] = devices[rank].timeCollectives(ctx, own); errs[rank] != nil {
					own.Fail(errs[rank])
				}
			})
		}
		all.Wait()
		for _, own := range groups {
			errs = append(errs, own.Close())
		}
		if err := errors.Join(errs...); err != nil {
			return out, err
		}
		out = append(out, found[0])
	}
	return out, nil
}

// printCollectives prints the times of all_reduces.
func (a *app) printCollectives(r *tuneReport) error {
	for _, c := range r.Collectives {
		fmt.Fprintf(a.out, "all_reduce of bf16 over %d × %s, µs; %s\n\n", c.Ranks, r.Device, c.Library)
		t := table{head: []string{">bytes", ">peer memory", ">NCCL"}}
		for _, x := range c.Times {
			t.add(byteCount(x.Bytes), fmt.Sprintf("%.2f", x.Peer), fmt.Sprintf("%.2f", x.NCCL))
		}
		if err := t.write(a.out, "  "); err != nil {
			return err
		}
		if c.NCCLBytes == 0 {
			fmt.Fprint(a.out, "\npwc's kernels over peer memory compute all sizes\n\n")
		} else {
			fmt.Fprintf(a.out, "\nNCCL computes calls of %s and more\n\n", byteCount(c.NCCLBytes))
		}
	}
	return nil
}

func (a *app) printTune(m *ir.Module, r *tuneReport) error {
	if err := a.printCollectives(r); err != nil {
		return err
	}
	if len(r.GEMMs) == 0 {
		fmt.Fprintf(a.out, "%s has no GEMMs that a library could compute at the captured sizes\n", m.Name)
		return nil
	}
	fmt.Fprintf(a.out, "%s in %s on %s with %s, µs\n\n", m.Name, r.DType, r.Device, r.Library)
	t := table{head: []string{"GEMM", ">own", ">heuristic", ">best", ">tried", "choice", "own kernel"}}
	us := func(v float64) string {
		if v == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f", v)
	}
	count := map[string]int64{}
	for _, p := range r.GEMMs {
		t.add(p.Name, us(p.Own), us(p.Heuristic), us(p.Best), fmt.Sprint(p.Tried), p.Choice, p.Kernel)
		count[p.Choice]++
	}
	if err := t.write(a.out, "  "); err != nil {
		return err
	}
	where := "kept in the cache"
	if !r.Kept {
		where = "not kept: " + r.unkept
	}
	fmt.Fprintf(a.out, "\n%s: own kernels for %d, the library's first choice for %d, another of its algorithms for %d; %s; %.1f s\n",
		plural(int64(len(r.GEMMs)), "GEMM"), count[choseOwn], count[choseHeuristic], count[choseOther], where, r.Seconds)
	return nil
}
