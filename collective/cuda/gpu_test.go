package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pwc/collective"
	collectivecuda "pwc/collective/cuda"
	"pwc/collective/internal/cases"
	"pwc/internal/cuda/cudatest"
	"pwc/ir/dtype"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/nvrtc"
	"pwc/runtime/device"
)

func TestMain(m *testing.M) {
	if os.Getenv(rankVariable) != "" {
		os.Exit(rankProcess())
	}
	os.Exit(m.Run())
}

// gpus opens GPUs of the machine, and skips the test where there are fewer.
func gpus(t testing.TB, n int) []*cudatest.Opened {
	t.Helper()
	var out []*cudatest.Opened
	for i := range n {
		dev, err := cuda.Open(cuda.Options{Ordinal: i})
		if err != nil {
			t.Skipf("%d GPUs are needed: %v", n, err)
		}
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
		out = append(out, &cudatest.Opened{Device: dev})
	}
	return out
}

// record captures what enqueue enqueues.
func (r *rank) record(enqueue func() error) (device.Graph, error) {
	if err := errors.Join(r.stream.Synchronize(), r.stream.BeginCapture(device.CaptureThreadLocal)); err != nil {
		return nil, err
	}
	err := enqueue()
	g, endErr := r.stream.EndCapture()
	return g, errors.Join(err, endErr)
}

// TestMillionOnGPU makes a million reductions of random sizes in random order. Graphs contain them; each replay first
// fills all destinations with garbage. The results are exact integers.
func TestMillionOnGPU(t *testing.T) {
	const graphs, perGraph, replays = 10, 500, 200
	must(t, eachRank(t, gpus(t, 2), collectivecuda.Options{}, func(r *rank) error {
		random := rand.New(rand.NewPCG(39, 0)) // the same on all ranks
		for range graphs {
			if err := r.many(random, perGraph, replays); err != nil {
				return err
			}
		}
		return nil
	}))
}

// many makes a graph of reductions in memory of its own, and checks replays of it.
func (r *rank) many(random *rand.Rand, calls, replays int) (err error) {
	var list []*call
	total := int64(0)
	for range calls {
		most := []int64{40, 3000, 3000, 40_000}[random.IntN(4)]
		if random.IntN(100) == 0 {
			most = 1 << 20
		}
		c := &call{Call: cases.Call{Kind: collective.AllReduce, DType: []dtype.DType{dtype.F32, dtype.BF16, dtype.F16}[random.IntN(3)], N: 1 + random.Int64N(most)}, shift: random.Int64N(3)}
		if random.IntN(4) == 0 {
			c.Kind = collective.ReduceScatter
		}
		list = append(list, c)
		total += (c.N+c.shift)*4 + 8
	}
	m, err := r.Alloc(total)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Free()) }()
	all := device.Buffer{Memory: m, Size: total}
	want, at := make([]byte, total), int64(0)
	garbage := byte(0x7f)
	for i := range want {
		want[i] = garbage
	}
	for _, c := range list {
		if err := r.prepare(c); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.src.Memory.Free(), c.dst.Memory.Free()) }()
		width := c.DType.Bytes(1)
		at = (at+3)/4*4 + c.shift*width
		c.oc.Args[0].Buffer = all.Slice(at, c.N*width)
		c.Result(want[at:][:c.N*width], r.group.Rank())
		at += c.N * width
	}
	g, err := r.record(func() error {
		if err := r.stream.Fill(all, garbage); err != nil {
			return err
		}
		for _, c := range list {
			if err := r.stream.LaunchOp(c.op, c.oc); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	host, err := r.AllocHost(total)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Free()) }()
	for n := range replays {
		if err := errors.Join(r.stream.LaunchGraph(g), r.stream.CopyToHost(host.Bytes(), all), r.stream.Synchronize()); err != nil {
			return err
		}
		if !bytes.Equal(host.Bytes(), want) {
			return fmt.Errorf("replay %d of %d reductions left other bytes", n, calls)
		}
	}
	return nil
}

// TestWatchedOnGPU makes a few calls of each routine, for tools that watch every access to memory.
func TestWatchedOnGPU(t *testing.T) {
	must(t, eachRank(t, gpus(t, 2), collectivecuda.Options{}, func(r *rank) error {
		var calls []*call
		for i, n := range []int64{1, 300, 50_000, 700_000} {
			for _, k := range collective.Kinds {
				calls = append(calls, &call{Call: cases.Call{Kind: k, DType: dtype.BF16, N: n}, shift: int64(i % 2)})
			}
		}
		return r.run(calls)
	}))
}

// Variables that make the test binary a rank.
const (
	rankVariable    = "PWC_TEST_RANK"
	addressVariable = "PWC_TEST_ADDRESS"
	reducing        = "reducing"
)

// rankProcess is a rank of two that reduces until the group ends. It prints the error.
func rankProcess() int {
	err := func() error {
		n, err := strconv.Atoi(os.Getenv(rankVariable))
		if err != nil {
			return err
		}
		dev, err := cuda.Open(cuda.Options{Ordinal: n})
		if err != nil {
			return err
		}
		l, err := nvrtc.Open(nvrtc.Options{})
		if err != nil {
			return err
		}
		ctx := context.Background()
		g, err := collective.Join(ctx, "tp", n, 2, os.Getenv(addressVariable), collective.Options{JoinLimit: 30 * time.Second})
		if err != nil {
			return err
		}
		if err := collectivecuda.Add(ctx, dev, collectivecuda.Options{Code: collectivecuda.Compiled(l.Compiler("--std=c++17"), dev.Info().Target)}, g); err != nil {
			return err
		}
		s, err := dev.NewStream()
		if err != nil {
			return err
		}
		r := &rank{&cudatest.Opened{Device: dev}, g, s}
		c := &call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.BF16, N: 100_000}}
		if err := r.prepare(c); err != nil {
			return err
		}
		graph, err := r.record(func() error {
			var errs []error
			for range 50 {
				errs = append(errs, s.LaunchOp(c.op, c.oc))
			}
			return errors.Join(errs...)
		})
		if err != nil {
			return err
		}
		fmt.Println(reducing)
		for {
			if err := errors.Join(s.LaunchGraph(graph), s.Synchronize()); err != nil {
				return err
			}
			if err := r.compare("replayed", c); err != nil {
				return err
			}
		}
	}()
	fmt.Println(err)
	return 3
}

// TestKilledRanksOnGPU kills one of two processes while they reduce, and holds that the other ends
// within ten seconds with an error that names it, and that new processes start afresh.
// PWC_TEST_KILLS says how often.
func TestKilledRanksOnGPU(t *testing.T) {
	for _, d := range gpus(t, 2) {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	kills := 3
	if n, err := strconv.Atoi(os.Getenv("PWC_TEST_KILLS")); err == nil {
		kills = n
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for n := range kills {
		if err := killOne(t.Context(), self, filepath.Join(t.TempDir(), "meeting"), n%2, time.Duration(rand.IntN(300))*time.Millisecond); err != nil {
			t.Fatalf("kill %d, of rank %d: %v", n, n%2, err)
		}
	}
}

// killOne starts two ranks, and kills one of them some time after both have begun to reduce.
func killOne(ctx context.Context, self, file string, victim int, after time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ranks, out := make([]*exec.Cmd, 2), make([]watched, 2)
	for r := range ranks {
		c := exec.CommandContext(ctx, self)
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", rankVariable, r), addressVariable+"="+collective.FileScheme+file)
		out[r].began = make(chan struct{})
		c.Stdout, c.Stderr = &out[r], &out[r]
		if err := c.Start(); err != nil {
			return err
		}
		ranks[r] = c
	}
	for r := range out {
		select {
		case <-out[r].began:
		case <-ctx.Done():
			return fmt.Errorf("rank %d does not reduce: %s", r, out[r].text.String())
		}
	}
	time.Sleep(after)
	if err := ranks[victim].Process.Kill(); err != nil {
		return err
	}
	killed := time.Now()
	_ = ranks[victim].Wait() // it was killed
	err := ranks[1-victim].Wait()
	text := out[1-victim].text.String()
	var exit *exec.ExitError
	if waited := time.Since(killed); waited > 10*time.Second || !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(text, fmt.Sprintf("rank %d is lost", victim)) {
		return fmt.Errorf("after %s: %w: %s", waited, err, text)
	}
	return nil
}

// watched collects the output of a process.
type watched struct {
	text  bytes.Buffer
	began chan struct{} // closed when it says that it reduces
	told  bool
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.text.Write(b)
	if !w.told && strings.Contains(w.text.String(), reducing) {
		w.told = true
		close(w.began)
	}
	return n, err
}

// BenchmarkAllReduceOnGPU measures all-reduces of bf16 in a graph of 64 that depend on each other.
func BenchmarkAllReduceOnGPU(b *testing.B) {
	for _, size := range []int64{8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			took := make([]time.Duration, 2)
			must(b, eachRank(b, gpus(b, 2), collectivecuda.Options{}, func(r *rank) (err error) {
				took[r.group.Rank()], err = r.measure(b.Context(), size)
				return err
			}))
			for range b.N {
			}
			b.ReportMetric(float64(max(took[0], took[1]).Nanoseconds())/1e3, "µs/all-reduce")
		})
	}
}

// BenchmarkLateRankOnGPU gives the time of an all-reduce on rank 0 if rank 1 launches it 5 ms later. The time
// above 5 ms is that of the all-reduce, and the delay until rank 0 sees that its wait is over.
func BenchmarkLateRankOnGPU(b *testing.B) {
	for _, size := range []int64{8 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			took := make([]time.Duration, 2)
			must(b, eachRank(b, gpus(b, 2), collectivecuda.Options{}, func(r *rank) (err error) {
				took[r.group.Rank()], err = r.measureLate(b.Context(), size)
				return err
			}))
			for range b.N {
			}
			b.ReportMetric(float64(took[0].Microseconds())/1e3, "ms/all-reduce")
		})
	}
}

// timedEvents returns events for the start and the end of a measurement.
func (r *rank) timedEvents() (start, end device.Event, err error) {
	if start, err = r.NewTimedEvent(); err == nil {
		end, err = r.NewTimedEvent()
	}
	return start, end, err
}

// measureLate returns the median time of an all-reduce that rank 1 launches 5 ms after rank 0.
func (r *rank) measureLate(ctx context.Context, size int64) (time.Duration, error) {
	c := &call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.BF16, N: size / 2}}
	if err := r.prepare(c); err != nil {
		return 0, err
	}
	start, end, err := r.timedEvents()
	if err != nil {
		return 0, err
	}
	var took []time.Duration
	for range 9 {
		if err := errors.Join(r.stream.Synchronize(), r.group.Barrier(ctx)); err != nil {
			return 0, err
		}
		if r.group.Rank() == 1 {
			time.Sleep(5 * time.Millisecond)
		}
		if err := errors.Join(r.stream.Record(start), r.stream.LaunchOp(c.op, c.oc), r.stream.Record(end), end.Synchronize()); err != nil {
			return 0, err
		}
		d, err := r.Elapsed(start, end)
		if err != nil {
			return 0, err
		}
		took = append(took, d)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// measure returns the time of an all-reduce: the mean over the launches of a try, in the fastest try.
func (r *rank) measure(ctx context.Context, size int64) (time.Duration, error) {
	const calls, launches, tries = 64, 4, 5
	c := &call{Call: cases.Call{Kind: collective.AllReduce, DType: dtype.BF16, N: size / 2}}
	if err := r.prepare(c); err != nil {
		return 0, err
	}
	back := &device.OpCall{Attrs: c.oc.Attrs, Args: []device.Tensor{c.oc.Args[1], c.oc.Args[0]}}
	g, err := r.record(func() error {
		var errs []error
		for i := range calls {
			errs = append(errs, r.stream.LaunchOp(c.op, []*device.OpCall{c.oc, back}[i%2]))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return 0, err
	}
	start, end, err := r.timedEvents()
	if err != nil {
		return 0, err
	}
	least := time.Hour
	for range tries {
		errs := []error{r.stream.Synchronize(), r.group.Barrier(ctx), r.stream.LaunchGraph(g), r.stream.Record(start)}
		for range launches {
			errs = append(errs, r.stream.LaunchGraph(g))
		}
		if err := errors.Join(append(errs, r.stream.Record(end), end.Synchronize())...); err != nil {
			return 0, err
		}
		d, err := r.Elapsed(start, end)
		if err != nil {
			return 0, err
		}
		least = min(least, d/(calls*launches))
	}
	return least, nil
}
