package runner

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	attnhost "pwc/attention/host"
	"pwc/compile/host"
	"pwc/ir"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// The fields of a sequence that every step reads fit into one cache line.
func TestSequenceLines(t *testing.T) {
	const line = 64
	if hot, all := unsafe.Offsetof(Sequence{}.sampling), unsafe.Sizeof(Sequence{}); hot > line || all%line != 0 {
		t.Errorf("%d bytes of %d are read by every step", hot, all)
	}
}

// A steady step allocates nothing, with graphs of pieces and full graphs, greedy and sampled.
func TestStepAllocatesNothing(t *testing.T) { allocatesNothing(t, onHost) }

func allocatesNothing(t *testing.T, open maker) {
	m, src := checkpoint(t, "llama")
	for _, mode := range []piecewise.Mode{piecewise.Piecewise, piecewise.FullAndPiecewise} {
		for _, sampling := range []Sampling{{}, {Temperature: 1}, {Temperature: 1, TopK: 5, TopP: 0.9, Seed: 3},
			{Temperature: 1, MinP: 0.01, RepetitionPenalty: 1.1, FrequencyPenalty: 0.1, LogitBias: map[int32]float64{3: 1}, Allowed: []int32{1, 2, 3, 4, 5}}} {
			r := open(t, m, src, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{8, 32}}}, MaxSequences: 8, MaxTokens: 32, MaxLength: 512, Blocks: 8 * 128})
			for i := range 5 {
				submit(t, r, Request{Prompt: []int32{int32(i), 2, 3}, MaxNew: 400, Sampling: sampling, OnToken: func(int32) {}})
			}
			ctx := context.Background()
			step := func() {
				if _, err := r.Step(ctx); err != nil {
					t.Fatal(err)
				}
			}
			for range 5 {
				step()
			}
			if n := testing.AllocsPerRun(100, step); n != 0 {
				t.Errorf("%s, %+v: %v allocations in a step", mode, sampling, n)
			}
			if s := r.Stats(); s.Running != 5 {
				t.Errorf("%d requests run", s.Running)
			}
		}
	}
}

// Each step has exactly the running requests, with their next tokens and their own blocks, in steady
// decode and when requests join, end or are preempted. A waiting request joins if fewer than
// MaxSequences run and the free blocks hold its tokens; the test checks that only if more than half of
// the blocks are free. If the rows of a step do not suffice, a prompt may wait, but no decode.
func TestEveryoneIsInEveryStep(t *testing.T) {
	const most, budget = 4, 4
	r := llama(t, Options{MaxSequences: most, MaxTokens: budget, Blocks: 26, MaxLength: 60, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{budget}}}})
	rng := rand.New(rand.NewPCG(5, 9))
	var all []*Sequence
	goOn, full, pushed := 0, 0, int64(0)
	for range 1500 {
		if rng.IntN(8) == 0 {
			all = append(all, submit(t, r, Request{Prompt: make([]int32, 1+rng.IntN(8)), MaxNew: 1 + rng.IntN(50)}))
		}
		if rng.IntN(60) == 0 {
			all[rng.IntN(len(all))].Cancel()
		}
		if n := r.Stats().Preempted; n > pushed { // a preempted request may also end before the next step
			pushed = n
			if rng.IntN(2) == 0 {
				r.waiting[0].Cancel()
			}
		}
		first := append(slices.Clone(r.waiting), r.inbox...)
		joins := len(first) > 0 && first[0].asked.Load() == 0 && len(r.running) < most && len(r.blocks.free) > r.blocks.total/2
		if _, err := r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		s := r.inFlight
		if joins && first[0].place == inWaiting && (s == nil || s.rows < budget) {
			t.Fatalf("a request waits where %d run and %d of %d blocks are free", len(r.running), len(r.blocks.free), r.blocks.total)
		}
		if s == nil {
			continue
		}
		if s.again {
			goOn++
			if len(r.waiting) > 0 {
				full++
			}
		}
		var there []*Sequence
		for i := range s.chunks {
			q := s.chunks[i].seq
			there = append(there, q)
			if q.place == inWaiting || int(s.batch.SeqLens[i]) != q.computed || int(s.batch.QueryStart[i+1]) != s.chunks[i].row+s.chunks[i].n {
				t.Fatalf("chunk %d, %+v, is %+v; the step has %+v", i, s.chunks[i], q, s.batch)
			}
			if slot := s.batch.Slots[s.batch.QueryStart[i+1]-1]; q.place == inRunning && slot != q.blocks[(q.computed-1)/blockSize]*blockSize+int32(q.computed-1)%blockSize {
				t.Fatalf("the last of %d tokens is in slot %d, the blocks are %v", q.computed, slot, q.blocks)
			}
		}
		for _, q := range r.running {
			if !slices.Contains(there, q) && (s.rows < budget || q.rest() == 1) {
				t.Fatalf("%+v runs and is not in the step", q)
			}
		}
	}
	if goOn < 300 || full == 0 || pushed == 0 {
		t.Errorf("%d steps went on, %d of them while others waited; %d were pushed out", goOn, full, pushed)
	}
	drain(t, r)
	for range 40 { // no further step finds work
		if more, err := r.Step(context.Background()); more || err != nil {
			t.Fatal(more, err)
		}
	}
}

// Several goroutines submit and cancel requests at random, and requests are preempted. At the end no
// block is in use, the pool has as much memory as before, and no goroutine is left. Each answer is
// that of the request without others, or a prefix of it after a cancellation.
// PWC_SOAK sets the number of seconds; CI gives it more.
func TestSoak(t *testing.T) { soak(t, onHost) }

// soak is TestSoak on the runners that open makes.
func soak(t *testing.T, open maker) {
	seconds := 2.0
	if s := os.Getenv("PWC_SOAK"); s != "" {
		var err error
		if seconds, err = strconv.ParseFloat(s, 64); err != nil {
			t.Fatal(err)
		}
	}
	if testing.Short() {
		seconds = 0.3
	}
	const clients = 4
	kinds := mixture(7, 40, 24)
	for i := range kinds { // all get priorities, and some adjusted logits
		switch kinds[i].Priority = i % 3; i % 5 {
		case 0:
			kinds[i].Sampling.RepetitionPenalty, kinds[i].Sampling.FrequencyPenalty = 1.3, 0.2
		case 1:
			kinds[i].Sampling.LogitBias, kinds[i].MinNew = map[int32]float64{int32(i): 3}, 1
		}
	}
	o := Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise}}, MaxSequences: 16, MaxTokens: 24, Blocks: 50, MaxLength: 48}
	m, src := checkpoint(t, "llama")
	want := alone(t, open(t, m, src, o), kinds)
	r := open(t, m, src, o)
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() { ran <- r.Run(ctx) }()

	held := r.pool.Stats()
	goroutines := runtime.NumGoroutine()
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	// A slow machine takes longer until a request is preempted.
	goOn := func() bool {
		now := time.Now()
		s := r.Stats()
		return now.Before(end) || now.Before(end.Add(20*time.Second)) && (s.Preempted == 0 || s.Finished["canceled"] == 0)
	}
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 1))
			for goOn() {
				type asked struct {
					kind int
					seq  *Sequence
					end  context.CancelFunc
				}
				var open []asked
				for range 1 + rng.IntN(12) {
					k := rng.IntN(len(kinds))
					ctx, cancel := context.WithCancel(context.Background())
					s, err := r.Submit(ctx, kinds[k])
					if err != nil {
						t.Error(err)
					}
					open = append(open, asked{k, s, cancel})
					time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
				}
				for _, a := range open {
					switch rng.IntN(8) {
					case 0:
						a.end()
					case 1:
						a.seq.Cancel()
					}
				}
				for _, a := range open {
					ids, err := a.seq.Wait(context.Background())
					switch {
					case err == nil && !slices.Equal(ids, want[a.kind]):
						t.Errorf("request %d: %v, alone %v", a.kind, ids, want[a.kind])
					case err != nil && !errors.Is(err, context.Canceled):
						t.Errorf("request %d: %v", a.kind, err)
					case len(ids) > len(want[a.kind]) || !slices.Equal(ids, want[a.kind][:len(ids)]):
						t.Errorf("request %d was canceled with %v, which is not how %v begins", a.kind, ids, want[a.kind])
					}
					a.end()
				}
			}
		})
	}
	wg.Wait()
	s := waitIdle(t, r)
	if s.UsedBlocks != 0 || s.Running != 0 || s.Waiting != 0 {
		t.Errorf("left over: %+v", s)
	}
	if now := r.pool.Stats(); now != held {
		t.Errorf("memory grew from %+v to %+v", held, now)
	}
	// Goroutines of clients and of AfterFunc may need some time to end.
	for range 5000 {
		if runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	if s.Preempted == 0 || s.Finished["canceled"] == 0 || s.Finished["length"] == 0 {
		t.Errorf("%d were submitted; %+v", s.Submitted, s)
	}
	stop()
	if err := <-ran; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
	t.Logf("%d requests, %d tokens, %d preemptions", s.Submitted, s.Generated, s.Preempted)
}

// waitIdle waits until the ends of all requests are counted. The call of Step after the last step
// reads that step's tokens.
func waitIdle(t *testing.T, r *Runner) Stats {
	for range 10000 {
		s := r.Stats()
		ended := int64(0)
		for _, n := range s.Finished {
			ended += n
		}
		if ended == s.Submitted && s.Running+s.Waiting == 0 {
			return s
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the runner does not come to rest")
	return r.Stats()
}

// Close ends all requests with ErrClosed: running, waiting, and those that no step has seen. Run and
// Submit then return ErrClosed.
func TestClose(t *testing.T) {
	r := llama(t, Options{MaxSequences: 1, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	ran := make(chan error)
	s := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 150})
	w := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 150})
	if _, err := r.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s.place != inRunning || w.place != inWaiting {
		t.Fatalf("places %d and %d, want a running and a waiting request", s.place, w.place)
	}
	unseen := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 150}) // no step sees it
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	go func() { ran <- r.Run(context.Background()) }()
	for _, q := range []*Sequence{s, w, unseen} {
		if _, err := q.Wait(context.Background()); !errors.Is(err, ErrClosed) {
			t.Errorf("a request ended with %v, want %v", err, ErrClosed)
		}
	}
	if err := <-ran; !errors.Is(err, ErrClosed) {
		t.Errorf("Run returned %v, want %v", err, ErrClosed)
	}
	if _, err := r.Submit(context.Background(), Request{Prompt: []int32{1}, MaxNew: 1}); !errors.Is(err, ErrClosed) {
		t.Errorf("Submit returned %v, want %v", err, ErrClosed)
	}
}

// Close also ends a request whose last token is in flight, which is no longer in running.
func TestCloseInFlight(t *testing.T) {
	r := llama(t, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	s := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 1})
	if _, err := r.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s.Reason() != Unfinished || len(r.running) != 0 {
		t.Fatalf("after a step: %s, %d run", s.Reason(), len(r.running))
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if !s.finished() || !errors.Is(s.Err(), ErrClosed) {
		t.Errorf("it ended with %v (%v), want %v", s.Err(), s.finished(), ErrClosed)
	}
}

// Close ends every call of Run that waits for work.
func TestCloseEndsRuns(t *testing.T) {
	r := llama(t, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	const runs = 2
	ran := make(chan error, runs)
	for range runs {
		go func() { ran <- r.Run(context.Background()) }()
	}
	s := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 3})
	if _, err := s.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // there is no work, so both calls of Run wait
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for range runs {
		select {
		case err := <-ran:
			if !errors.Is(err, ErrClosed) {
				t.Errorf("Run returned %v, want %v", err, ErrClosed)
			}
		case <-time.After(10 * time.Second):
			t.Error("a Run goes on waiting after Close")
			r.wakeUp()
			<-ran
		}
	}
}

func TestOrder(t *testing.T) {
	m, src := checkpoint(t, "llama")
	r, err := unloaded(t, m, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 40})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Step(context.Background()); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("a step before Load: %v", err)
	}
	soon, end := context.WithTimeout(context.Background(), 10*time.Second)
	defer end()
	if err := r.Run(soon); !errors.Is(err, ErrNotLoaded) || soon.Err() != nil {
		t.Errorf("Run before Load: %v (%v)", err, soon.Err())
	}
	if err := r.Load(context.Background(), src); err != nil {
		t.Fatal(err)
	}
	if err := r.Load(context.Background(), src); err == nil {
		t.Error("a second Load was accepted")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	submit(t, r, Request{Prompt: []int32{1}, MaxNew: 1})
	if more, err := r.Step(ctx); !more || !errors.Is(err, context.Canceled) {
		t.Errorf("a step with a context that has ended: %t %v", more, err)
	}
}

// New refuses options with steps that a frozen backend would refuse.
func TestFrozenSteps(t *testing.T) {
	m, _ := checkpoint(t, "llama")
	store := pieces.NewMemoryStore()
	for _, c := range []struct {
		frozen bool
		tokens int
		refuse bool
	}{{false, 9, false}, {true, 8, false}, {true, 9, true}} {
		o := Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{8, 1}}, Compile: piecewise.CompileOptions{Store: store}, Frozen: c.frozen}, MaxSequences: 8, MaxTokens: c.tokens, Blocks: 40}
		_, err := unloaded(t, m, o)
		if refused := errors.Is(err, ErrPreparation) && strings.Contains(err.Error(), "largest of Backend.Capture.Sizes is 8"); refused != c.refuse || !refused && err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestExplain has the cases of vLLM's dispatcher tests (tests/v1/cudagraph/test_cudagraph_dispatch.py),
// with sizes 1 and 8 and at most 8 sequences, and batches that no step has.
func TestExplain(t *testing.T) {
	whole, pieces, eager := piecewise.RunFull, piecewise.RunPiecewise, piecewise.RunEager
	for _, c := range []struct {
		mode    piecewise.Mode
		rows    int
		uniform bool
		want    Decision
		why     string
	}{
		{piecewise.None, 8, false, Decision{Mode: eager, Size: 8}, "mode none"},
		{piecewise.Full, 8, false, Decision{Mode: whole, Size: 8, Requests: 8}, "every batch"},
		{piecewise.Full, 8, true, Decision{Mode: whole, Size: 8, Requests: 8}, "every batch"},
		{piecewise.FullDecodeOnly, 8, false, Decision{Mode: eager, Size: 8}, "not uniform"},
		{piecewise.FullDecodeOnly, 8, true, Decision{Mode: whole, Size: 8, Requests: 8, Decode: true}, "is uniform"},
		{piecewise.Piecewise, 8, false, Decision{Mode: pieces, Size: 8}, "need not be uniform"},
		{piecewise.Piecewise, 8, true, Decision{Mode: pieces, Size: 8}, "need not be uniform"},
		{piecewise.FullAndPiecewise, 8, false, Decision{Mode: pieces, Size: 8}, "need not be uniform"},
		{piecewise.FullAndPiecewise, 8, true, Decision{Mode: whole, Size: 8, Requests: 8, Decode: true}, "is uniform"},
		{piecewise.FullAndPiecewise, 3, true, Decision{Mode: whole, Size: 8, Requests: 8, Decode: true}, "is uniform"},
		{piecewise.Full, 15, false, Decision{Mode: eager, Size: 15}, "above the largest"},
		{piecewise.FullAndPiecewise, 15, false, Decision{Mode: eager, Size: 15}, "above the largest"},
		{piecewise.Piecewise, 15, false, Decision{Mode: eager, Size: 15}, "above the largest"},
		{piecewise.FullAndPiecewise, 9, true, Decision{Mode: eager, Size: 9, Err: ErrRequest}, "no step has 9 requests, MaxSequences is 8"},
		{piecewise.None, 17, false, Decision{Mode: eager, Size: 17, Err: piecewise.ErrSize}, "@forward runs 1 to 16 rows, not 17"},
		{piecewise.Full, 0, true, Decision{Mode: eager, Size: 0, Err: piecewise.ErrSize}, "@forward runs 1 to 16 rows, not 0"},
		{piecewise.Piecewise, -1, false, Decision{Mode: eager, Size: -1, Err: piecewise.ErrSize}, "@forward runs 1 to 16 rows, not -1"},
	} {
		r := llama(t, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: c.mode, Sizes: []int64{1, 8}}}, MaxSequences: 8, MaxTokens: 16, Blocks: 40})
		got := r.Explain(c.rows, c.uniform)
		if !strings.Contains(got.Why, c.why) || !strings.Contains(got.String(), c.why) {
			t.Errorf("%s, %d rows: %s; want a reason with %q", c.mode, c.rows, got, c.why)
		}
		if !errors.Is(got.Err, c.want.Err) {
			t.Errorf("%s, %d rows: %v, want %v", c.mode, c.rows, got.Err, c.want.Err)
		}
		c.want.Rows, c.want.Uniform, c.want.Why, c.want.Err = int64(c.rows), c.uniform, got.Why, got.Err
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.mode, got, c.want)
		}
		if len(r.Plan().Uncovered) > 0 != (c.mode == piecewise.None) {
			t.Errorf("%s: uncovered %v", c.mode, r.Plan().Uncovered)
		}
	}
	// A graph with more rows than MaxSequences has room for MaxSequences requests.
	r := llama(t, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Full, Sizes: []int64{16}}}, MaxSequences: 8, MaxTokens: 16, Blocks: 40})
	if d := r.Explain(12, false); d.Size != 16 || d.Requests != 8 {
		t.Errorf("%+v, want a graph of 16 rows for 8 requests", d)
	}
}

// Explain returns the same before and after Load, for every batch. As many graphs are captured as are
// planned, and every default size has a use.
func TestExplainBeforeLoad(t *testing.T) {
	m, src := checkpoint(t, "llama")
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full, piecewise.FullDecodeOnly, piecewise.FullAndPiecewise} {
		r, err := unloaded(t, m, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode}}, MaxSequences: 3, MaxTokens: 16, Blocks: 4})
		if err != nil {
			t.Fatal(err)
		}
		var before []string
		for rows := -1; rows < 18; rows++ {
			before = append(before, r.Explain(rows, false).String(), r.Explain(rows, true).String())
		}
		planned := r.Plan().Graphs
		if err := r.Load(context.Background(), src); err != nil {
			t.Fatal(err)
		}
		for i, rows := 0, -1; rows < 18; i, rows = i+2, rows+1 {
			for j, uniform := range []bool{false, true} {
				if got := r.Explain(rows, uniform).String(); got != before[i+j] {
					t.Errorf("%s: %q before Load, %q after", mode, before[i+j], got)
				}
			}
		}
		if got := r.Backend().Stats().GraphsCaptured; got != planned {
			t.Errorf("%s: %d graphs, planned %d", mode, got, planned)
		}
		if n := len(r.Plan().Unused); n > 0 {
			t.Errorf("%s: default sizes without use: %v", mode, r.Plan().Unused)
		}
		if want := map[piecewise.Mode][]int64{piecewise.None: nil, piecewise.FullDecodeOnly: {1, 2, 4}}; mode == piecewise.None || mode == piecewise.FullDecodeOnly {
			if got := r.Plan().Sizes; !slices.Equal(got, want[mode]) {
				t.Errorf("%s: sizes %v", mode, got)
			}
		} else if got := r.Plan().Sizes; !slices.Equal(got, []int64{1, 2, 4, 6}) { // min(2 × 3, 512)
			t.Errorf("%s: sizes %v", mode, got)
		}
	}
}

// The default list has vLLM's strides and bound, and is extended to MaxSequences; if frozen, it goes up
// to the smaller of MaxTokens and 512. New refuses sizes above MaxTokens, also in mode none.
func TestDefaultSizes(t *testing.T) {
	m, _ := checkpoint(t, "llama")
	for _, c := range []struct {
		sequences, tokens int
		frozen            bool
		most              int64
		sizes             int
	}{
		{64, 512, false, 128, 19}, // 1, 2, 4, 8, 16, … 128
		{64, 100, false, 100, 16}, // 1, 2, 4, 8, 16, … 96, 100
		{64, 512, true, 512, 51},
		{300, 8192, false, 512, 51},
		{600, 8192, false, 600, 52},
		{1, 512, false, 2, 2},
	} {
		o, err := Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}, Frozen: c.frozen}, MaxSequences: c.sequences, MaxTokens: c.tokens}.Resolve(m.Module)
		if got := o.Backend.Capture.Sizes; err != nil || len(got) != c.sizes || got[len(got)-1] != c.most {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.FullAndPiecewise} {
		_, err := unloaded(t, m, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{600, 1}}, Compile: piecewise.CompileOptions{Sizes: []int64{700}, Endpoints: []int64{64, 800}}}, Blocks: 4})
		for _, want := range []string{"capture size 600 is above MaxTokens 512", "compile size 700 is above", "range endpoint 800 is above"} {
			if !errors.Is(err, ErrPreparation) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", mode, err, want)
			}
		}
	}
}

// Steps run and are counted in the mode and size that Explain returns.
func TestStepsAreAsExplained(t *testing.T) {
	w := &watcher{}
	r := llama(t, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 4, 8}}}, MaxSequences: 4, MaxTokens: 12, Blocks: 60, Observer: w})
	for _, q := range mixture(3, 9, 20) {
		submit(t, r, q)
	}
	drain(t, r)
	steps, padded, rows := 0, 0, int64(0)
	for _, s := range w.steps {
		if s.Rows == 0 {
			continue
		}
		steps++
		rows += int64(s.Rows)
		d := r.Explain(s.Rows, s.Uniform)
		if d.Mode != s.Mode || d.Size != s.Size || s.Requests > 4 || s.Rows > 12 || s.Backend > s.Took {
			t.Errorf("%+v, explained as %s", s, d)
		}
		if s.Size > int64(s.Rows) {
			padded++
		}
	}
	st := r.Stats()
	counted, countedRows := int64(0), int64(0)
	for _, c := range st.Steps {
		counted, countedRows = counted+c.Steps, countedRows+c.Rows
	}
	if counted != int64(steps) || countedRows != rows || padded == 0 || st.Padding() <= 0 || st.Padding() >= 1 || w.ended != 9 {
		t.Errorf("%d steps of %d rows, %d padded, %d ended; counted %+v", steps, rows, padded, w.ended, st)
	}
}

// Sampled rows are padded to a capture size even if no capture size equals MaxSequences.
func TestSampledRowsArePadded(t *testing.T) {
	r := llama(t, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{8}}}, MaxSequences: 5, MaxTokens: 8, Blocks: 60})
	for i := range 5 {
		submit(t, r, Request{Prompt: []int32{int32(i)}, MaxNew: 3})
	}
	drain(t, r)
	if s := r.Backend().Stats(); s.EagerRuns != 0 || s.Replays+s.FullReplays == 0 {
		t.Errorf("%d runs without graphs: %v", s.EagerRuns, s.Skipped)
	}
}

type watcher struct {
	steps []Step
	ended int
}

func (w *watcher) Stepped(s Step)     { w.steps = append(w.steps, s) }
func (w *watcher) Finished(*Sequence) { w.ended++ }

// The plan lists decode steps that no capture size covers.
func TestUncovered(t *testing.T) {
	m, _ := checkpoint(t, "llama")
	for _, c := range []struct {
		sizes []int64
		seqs  int
		want  string
	}{
		{[]int64{1, 8}, 12, "decode steps of 9 to 12 requests: the largest size is 8"},
		{[]int64{1, 16}, 12, ""},
		{nil, 600, ""},
	} {
		r, err := unloaded(t, m, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: c.sizes}}, MaxSequences: c.seqs, MaxTokens: 700, Blocks: 4})
		if err != nil {
			t.Fatal(err)
		}
		p := r.Plan()
		if got := strings.Join(p.Uncovered, ";"); got != c.want {
			t.Errorf("sizes %v, %d sequences: %q, want %q", c.sizes, c.seqs, got, c.want)
		}
		if c.want != "" && !strings.Contains(p.String(), c.want) {
			t.Errorf("the printed plan does not say %q:\n%s", c.want, p.String())
		}
	}
}

// The cache gets the memory that the limit leaves, and the runner allocates no more than the limit.
func TestMemory(t *testing.T) {
	m, src := checkpoint(t, "llama")
	base, err := unloaded(t, m, Options{MaxSequences: 4, MaxTokens: 16, Blocks: 1})
	if err != nil {
		t.Fatal(err)
	}
	one := base.Plan()
	const wanted = 37
	limit := one.fixed() + wanted*one.BlockBytes + one.BlockBytes/2
	for _, o := range []Options{{MemoryBytes: limit}, {MemoryFraction: 0.5}} {
		o.MaxSequences, o.MaxTokens = 4, 16
		dev := hostdev.Open(hostdev.Options{MemoryBytes: limit})
		if o.MemoryFraction > 0 {
			if err := dev.Close(); err != nil {
				t.Fatal(err)
			}
			dev = hostdev.Open(hostdev.Options{MemoryBytes: 2 * limit})
		}
		o.Backend = piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Ops: []device.Op{attnhost.New(dev)}}
		r, err := New(context.Background(), m.Module, o)
		if err != nil {
			t.Fatal(err)
		}
		p := r.Plan()
		if p.Blocks != wanted || p.MaxLength != wanted*blockSize || p.cacheBytes() != wanted*p.BlockBytes || p.Total() > limit {
			t.Errorf("%+v: planned %+v, want %d blocks in %d bytes", o, p, wanted, limit)
		}
		if err := r.Load(context.Background(), src); err != nil {
			t.Fatal(err)
		}
		s := submit(t, r, Request{Prompt: []int32{1}, MaxNew: p.MaxLength - 1})
		drain(t, r)
		if len(s.IDs()) != p.MaxLength {
			t.Errorf("the longest sequence has %d tokens, want %d", len(s.IDs()), p.MaxLength)
		}
		if err := errors.Join(r.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	}
	// The cache has no more blocks than MaxSequences requests can use.
	const length = 5*blockSize + 1
	r, err := unloaded(t, m, Options{MaxSequences: 4, MaxTokens: 16, MaxLength: length, MemoryBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if p := r.Plan(); p.Blocks != 4*6 || p.MaxLength != length {
		t.Errorf("4 requests of %d tokens at most have %d blocks, of %d tokens", length, p.Blocks, p.MaxLength)
	}
	// Nor more than MaxBlocks, with and without Options.MemoryBytes.
	for _, o := range []Options{{MemoryBytes: 1 << 30, MaxBlocks: 7}, {MaxBlocks: 7}, {MemoryBytes: limit, MaxBlocks: wanted + 100}, {MaxBlocks: 100, MaxLength: length}} {
		want := min(int64(o.MaxBlocks), wanted)
		if o.MaxLength > 0 {
			want = 4 * 6
		}
		o.MaxSequences, o.MaxTokens = 4, 16
		r, err := unloaded(t, m, o)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		if p := r.Plan(); p.Blocks != want || p.MaxLength > int(want)*blockSize {
			t.Errorf("%+v: %d blocks for sequences of %d tokens, want %d", o, p.Blocks, p.MaxLength, want)
		}
	}
	// Options that cannot fit are refused with the numbers.
	for _, o := range []Options{
		{MemoryBytes: one.fixed()},
		{MemoryBytes: limit, Blocks: wanted + 1},
		{MemoryBytes: limit, MaxLength: blockSize*wanted + 1},
	} {
		o.MaxSequences, o.MaxTokens = 4, 16
		_, err := unloaded(t, m, o)
		var e *MemoryError
		if !errors.Is(err, ErrMemory) || !errors.As(err, &e) || !strings.Contains(err.Error(), strconv.FormatInt(o.MemoryBytes, 10)) ||
			!strings.Contains(err.Error(), strconv.FormatInt(one.WeightBytes, 10)) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestOptions(t *testing.T) {
	m, _ := checkpoint(t, "llama")
	unlimited := hostdev.Open(hostdev.Options{Workers: 1, MemoryBytes: hostdev.Unlimited})
	defer unlimited.Close()
	for _, o := range []Options{
		{Backend: piecewise.Options{Device: unlimited}}, // a device that does not report its memory
		{Blocks: 1, MaxSequences: -1},
		{Blocks: 1, MaxSequences: 8, MaxTokens: 7},
		{Blocks: 1, MaxTokens: 1 << 20},
		{Blocks: 1, MaxLength: blockSize + 1},
		{Blocks: -1},
		{MaxBlocks: -1},
		{MaxBlocks: 2, MaxLength: 3 * blockSize},
		{Blocks: 1, MaxLength: math.MaxInt},
		{Blocks: 1, MemoryFraction: 1.5},
		{Blocks: 1, Backend: piecewise.Options{Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": 1}}}},
		{Blocks: 1, Backend: piecewise.Options{Memory: piecewise.MemoryOptions{Aliases: []piecewise.Alias{{From: idsFunc, To: forwardFunc, Param: "ids"}}}}},
	} {
		if _, err := unloaded(t, m, o); !errors.Is(err, ErrPreparation) {
			t.Errorf("%+v: %v, want %v", o, err, ErrPreparation)
		}
	}
	for name, text := range map[string]string{
		"is not a language model": "pwc 1\nmodule \"m\" {\n  sym N in [1, 4] batch\n  func @f(%x: f32[N]) -> (f32[N]) {\n    return %x\n  }\n}\n",
		"must take ids":           "pwc 1\nmodule \"m\" {\n  sym N in [1, 4] batch\n  func @forward(%x: f32[N]) -> (f32[N]) {\n    return %x\n  }\n  func @logits(%x: f32[N]) -> (f32[N]) {\n    return %x\n  }\n}\n",
	} {
		mod, err := ir.Parse("m.ir", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		dev := hostdev.Open(hostdev.Options{})
		if _, err := New(context.Background(), mod, Options{Backend: piecewise.Options{Device: dev}}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want that it %s", err, name)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// BestMode is FullAndPiecewise if every splitting op that is called can be captured.
func TestBestMode(t *testing.T) {
	if got := BestMode(poison(t), []device.Op{nothing{}}); got != piecewise.Piecewise {
		t.Errorf("%s with an op that cannot be captured", got)
	}
	m, _ := checkpoint(t, "llama")
	dev := hostdev.Open(hostdev.Options{})
	defer dev.Close()
	if got := BestMode(m.Module, []device.Op{attnhost.New(dev)}); got != piecewise.FullAndPiecewise {
		t.Errorf("%s with ops that can be captured", got)
	}
	if got := BestMode(m.Module, nil); got != piecewise.Piecewise {
		t.Errorf("%s without ops", got)
	}
	// piecewise.New refuses to record an op that is declared host, and needs no op that is not called.
	host := *m.Module
	host.Externs = slices.Clone(host.Externs)
	host.Externs = append(host.Externs, &ir.Extern{Name: "my::other", Mut: []bool{false}, Split: true})
	if got := BestMode(&host, []device.Op{attnhost.New(dev)}); got != piecewise.FullAndPiecewise {
		t.Errorf("%s with an op that is not called", got)
	}
	for _, e := range host.Called() {
		e.Host = true
	}
	if got := BestMode(&host, []device.Op{attnhost.New(dev)}); got != piecewise.Piecewise {
		t.Errorf("%s with an op that is declared host", got)
	}
}
