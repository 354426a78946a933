package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"testing"
	"time"

	"pwc/collective"
	collectivecuda "pwc/collective/cuda"
	"pwc/compile"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/device"
)

// ranks has the devices of a group, one for each rank.
type ranks struct {
	rigs   []*rig
	groups []*collective.Group
	counts collectivecuda.Counts
}

// openRanks opens n GPUs, or emulated ones, as a group named tp.
func openRanks(t *testing.T, n int, timeout time.Duration) *ranks {
	t.Helper()
	devices := cudatest.Several(t, n, fake.Options{})
	x := &ranks{}
	var err error
	if x.groups, err = collective.Local("tp", n, collective.Options{Limit: time.Minute}); err != nil {
		t.Fatal(err)
	}
	for _, dev := range devices {
		x.rigs = append(x.rigs, newRig(t, dev))
	}
	o := collectivecuda.Options{Timeout: timeout, Counts: &x.counts, Code: collectivecuda.Compiled(x.rigs[0].nvrtc, x.rigs[0].dev.Info().Target)}
	if err := x.each(func(rank int) error { return collectivecuda.Add(t.Context(), x.rigs[rank].dev, o, x.groups[rank]) }); err != nil {
		t.Fatal(err)
	}
	return x
}

// each runs f for all ranks at the same time.
func (x *ranks) each(f func(rank int) error) error {
	errs := make([]error, len(x.rigs))
	var all sync.WaitGroup
	for rank, g := range x.groups {
		all.Go(func() {
			if errs[rank] = f(rank); errs[rank] != nil {
				g.Fail(errs[rank])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// run runs a program on all ranks and returns the outcome of each.
func (x *ranks) run(t *testing.T, p *program.Program, m *ir.Module, inputs []*oracle.Inputs) ([]*testkit.Outcome, error) {
	out := make([]*testkit.Outcome, len(x.rigs))
	return out, x.each(func(rank int) (err error) {
		if out[rank], err = x.rigs[rank].run(p, m, inputs[rank]); err != nil {
			return err
		}
		return x.groups[rank].Barrier(t.Context())
	})
}

// routines returns the number of collectives that a program calls as library routines for the inputs.
func (x *ranks) routines(p *program.Program, in *oracle.Inputs) (int, error) {
	var symbols []int64
	for _, s := range p.Symbols {
		symbols = append(symbols, in.Symbols[s])
	}
	_, r, err := device.Specialize(p, symbols, x.rigs[0].dev.Info().Properties, nil, x.rigs[0].dev.Libraries())
	if err != nil {
		return 0, err
	}
	n := 0
	for i := range r.Steps {
		if strings.HasPrefix(r.Steps[i].Extern, program.CollectivePrefix) {
			n++
		}
	}
	return n, nil
}

// hold compiles a module with and without the pass allreduce, runs both programs on all ranks, and
// compares the results of all ranks with the pass, bit by bit, with those of rank 0 without it. It returns
// the number of collectives that the pass fused into kernels.
func (x *ranks) hold(t *testing.T, m *ir.Module, inputs []*oracle.Inputs) (fused int, err error) {
	var want []*testkit.Outcome
	for _, o := range []compile.Options{{Disable: []string{"allreduce"}}, {}} {
		p, err := compile.Compile(t.Context(), m, compile.Shape{}, x.rigs[0].backend, o)
		if err != nil {
			return 0, err
		}
		n, err := x.routines(p, inputs[0])
		if err != nil {
			return 0, err
		}
		fused = n - fused
		got, err := x.run(t, p, m, inputs)
		if err != nil {
			return 0, fmt.Errorf("%w\n%s", err, p)
		}
		if want == nil {
			want = got
			continue
		}
		for rank := range got {
			for i, r := range got[rank].Results {
				if w := want[0].Results[i]; !bytes.Equal(r.Bytes(), w.Bytes()) {
					return 0, fmt.Errorf("rank %d, result %d, is not that of rank 0 without the pass: %s\n%s", rank, i, interp.Compare(r, w), p)
				}
			}
		}
	}
	return -fused, nil
}

// drawRanks draws the inputs of all ranks. They have the same weights and the same last parameter.
func drawRanks(r *rand.Rand, m *ir.Module, n int, symbols map[string]int64) ([]*oracle.Inputs, error) {
	shared, err := oracle.Draw(r, m, symbols, normal)
	if err != nil {
		return nil, err
	}
	out := make([]*oracle.Inputs, n)
	for rank := range out {
		own, err := oracle.Draw(r, m, symbols, normal)
		if err != nil {
			return nil, err
		}
		out[rank] = shared.Clone()
		copy(out[rank].Params, own.Params[:len(own.Params)-1])
	}
	return out, nil
}

// reducedNorm returns a module with an all_reduce, a residual addition and a norm.
func reducedNorm(t *testing.T, n int, dt dtype.DType, columns int, norm string) *ir.Module {
	t.Helper()
	return testkit.Parse(t, strings.NewReplacer("TYPE", dt.String(), "COLUMNS", fmt.Sprint(columns), "RANKS", fmt.Sprint(n), "NORM", norm).Replace(`pwc 1
module "m" {
  sym N in [1, 1024] batch
  group tp in RANKS
  weight @w : TYPE[COLUMNS]
  func @f(%x: TYPE[N, COLUMNS] partial over tp, %y: TYPE[N, COLUMNS]) -> (TYPE[N, COLUMNS], TYPE[N, COLUMNS]) {
    %s = all_reduce(%x, group=tp)
    %h = add(%y, %s)
    %n = NORM
    return %h, %n
  }
}`))
}

// TestDeviceAllReduceLostRank: a kernel that waits for a rank that never arrives ends after the timeout, and
// all ranks get an error that names the rank.
func TestDeviceAllReduceLostRank(t *testing.T) {
	x := openRanks(t, 2, 50*time.Millisecond)
	m := reducedNorm(t, 2, dtype.F32, 64, "rms_norm(%h, @w, eps=1e-5)")
	p := x.rigs[0].compile(t, m)
	inputs, err := drawRanks(rand.New(rand.NewSource(1)), m, 2, map[string]int64{"N": 4})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := x.routines(p, inputs[0]); err != nil || n > 0 {
		t.Fatalf("%d routines run, want none: %v", n, err)
	}
	_, err = x.rigs[0].run(p, m, inputs[0])
	for rank, err := range []error{err, x.groups[1].Barrier(t.Context())} {
		if !errors.Is(err, collective.ErrLost) || !strings.Contains(err.Error(), "rank 1 is lost in a kernel") {
			t.Errorf("rank %d: error %v, want ErrLost that names rank 1", rank, err)
		}
	}
}

// TestDeviceAllReduceLateRank: with the default timeout a kernel waits for a rank that arrives later.
func TestDeviceAllReduceLateRank(t *testing.T) {
	x := openRanks(t, 2, 0)
	m := reducedNorm(t, 2, dtype.F32, 64, "rms_norm(%h, @w, eps=1e-5)")
	p := x.rigs[0].compile(t, m)
	inputs, err := drawRanks(rand.New(rand.NewSource(1)), m, 2, map[string]int64{"N": 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.each(func(rank int) error {
		time.Sleep(time.Duration(rank) * 200 * time.Millisecond)
		_, err := x.rigs[rank].run(p, m, inputs[rank])
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestDeviceAllReduce: kernels that compute their all_reduce have the same bits as the collective and a kernel
// after it. An emulated device leaves out long rows in large numbers.
func TestDeviceAllReduce(t *testing.T) {
	const norm, residual, centered = "rms_norm(%s, @w, eps=1e-5)", "rms_norm(%h, @w, eps=1e-5)", "layer_norm(%s, @w, @w, eps=1e-5)"
	cases := []struct {
		ranks   int
		dt      dtype.DType
		columns int
		op      string
		rows    map[int64]int // the number of fused all_reduces, by number of rows
	}{
		{2, dtype.BF16, 4096, residual, map[int64]int{1: 1, 3: 1, 9: 1, 128: 1, 129: 0}},
		{2, dtype.F32, 4104, residual, map[int64]int{2: 1, 5: 1}},
		{2, dtype.F16, 24, norm, map[int64]int{1: 1, 5: 1, 600: 0}},
		{2, dtype.BF16, 7, centered, map[int64]int{1: 1, 300: 1}},
		{3, dtype.BF16, 1000, residual, map[int64]int{1: 1, 4: 1}},
	}
	for _, c := range cases {
		x := openRanks(t, c.ranks, time.Minute)
		t.Run(fmt.Sprintf("%d/%s/%d", c.ranks, c.dt, c.columns), func(t *testing.T) {
			m := reducedNorm(t, c.ranks, c.dt, c.columns, c.op)
			for rows, want := range c.rows {
				if x.rigs[0].slow && rows > 9 && c.columns > 1000 && want > 0 {
					continue
				}
				inputs, err := drawRanks(rand.New(rand.NewSource(rows)), m, c.ranks, map[string]int64{"N": rows})
				if err != nil {
					t.Fatal(err)
				}
				before := x.counts.Fused.Load()
				fused, err := x.hold(t, m, inputs)
				if err != nil {
					t.Fatalf("%d rows: %v", rows, err)
				}
				if n := x.counts.Fused.Load() - before; n != int64(want*c.ranks) {
					t.Errorf("%d rows: %d fused kernels are counted, want %d of each rank", rows, n, want)
				}
				if fused != want {
					t.Errorf("%d rows: %d all_reduces are fused, want %d", rows, fused, want)
				}
			}
		})
	}
}

// randomReduced returns a random module of stages, in a random dtype. Each stage sums a parameter over the
// ranks, followed by elementwise or rowwise operations. The last parameter must be the same on all ranks.
func randomReduced(t *testing.T, r *rand.Rand, n int) *ir.Module {
	t.Helper()
	dt := []dtype.DType{dtype.F32, dtype.F16, dtype.BF16}[r.Intn(3)]
	shape := fmt.Sprintf("%s[N, %d]", dt, 1+r.Intn(1+1<<r.Intn(13)))
	stages := 1 + r.Intn(3)
	var params, body, results []string
	last := "%y"
	emit := func(name, format string, args ...any) string {
		body = append(body, "    "+name+" = "+fmt.Sprintf(format, args...))
		return name
	}
	for i := range stages {
		params = append(params, fmt.Sprintf("%%x%d: %s partial over tp", i, shape))
		v := emit(fmt.Sprintf("%%s%d", i), "all_reduce(%%x%d, group=tp)", i)
		for j := range r.Intn(4) {
			name := fmt.Sprintf("%%p%d_%d", i, j)
			v = emit(name, []string{"add(%[1]s, %[2]s)", "mul(%[1]s, 0.5)", "mul(%[2]s, %[1]s)", "silu(%[1]s)"}[r.Intn(4)], v, last)
			if r.Intn(3) == 0 {
				results = append(results, v)
			}
		}
		last = emit(fmt.Sprintf("%%r%d", i), []string{"rms_norm(%[1]s, @w, eps=1e-5)", "layer_norm(%[1]s, @w, @w, eps=1e-5)", "softmax(%[1]s, axis=1)", "sub(%[1]s, %[2]s)"}[r.Intn(4)], v, last)
		results = append(results, last)
	}
	types := strings.Repeat(", "+shape, len(results))[2:]
	return testkit.Parse(t, fmt.Sprintf("pwc 1\nmodule \"m\" {\n  sym N in [1, 64] batch\n  group tp in %d\n  weight @w : %s\n  func @f(%s, %%y: %s) -> (%s) {\n%s\n    return %s\n  }\n}\n",
		n, strings.Replace(shape, "N, ", "", 1), strings.Join(params, ", "), shape, types, strings.Join(body, "\n"), strings.Join(results, ", ")))
}

// TestDeviceRandomAllReduce compares random modules with and without the pass allreduce.
func TestDeviceRandomAllReduce(t *testing.T) {
	x, all := openRanks(t, 2, time.Minute), 0
	first := number(t, "PWC_RANDOM_SEED", 0)
	for i := range number(t, "PWC_RANDOM_MODULES", 12) {
		r := rand.New(rand.NewSource(int64(first + i)))
		m := randomReduced(t, r, len(x.rigs))
		inputs, err := drawRanks(r, m, len(x.rigs), map[string]int64{"N": 1 + r.Int63n(8)})
		if err != nil {
			t.Fatal(err)
		}
		fused, err := x.hold(t, m, inputs)
		if err != nil {
			t.Fatalf("module %d: %v\n%s", first+i, err, ir.Print(m))
		}
		all += fused
	}
	if all == 0 {
		t.Error("no module had an all_reduce that was fused")
	}
	t.Logf("%d all_reduces are fused", all)
}
