package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pwc/compile/cuda"
	"pwc/compile/host"
	"pwc/frontend/hf"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/safetensors"
)

// positions is the number of positions of the model of table.
const positions = 8

// table is a language model of 32 tokens with 8 learned positions. Token t + 1 follows token t, and a
// position of 8 or more is an index out of range. BoundsOf does not find the number of positions,
// because the module adds 0 to them, so the runner accepts longer sequences.
func table(t testing.TB) (*ir.Module, safetensors.Source) {
	t.Helper()
	m, err := ir.Parse("table.ir", []byte(`pwc 1
module "table" {
  sym N in [1, 64] batch
  sym M in [1, 64] batch
  sym B in [1, 64] load
  op "my::nothing"(mut tensor) split
  weight @table : f32[8, 1]
  state @kv : f32[B, 2, 4, 1, 1]
  func @forward(%ids: i32[N], %pos: i32[N]) -> (f32[N, 1]) {
    %p = add(%pos, 0) : i32[N]
    %e = embedding(@table, %p) : f32[N, 1] loc("positions")
    %x = cast(%ids, dtype=f32) : f32[N]
    %y = reshape(%x, shape=[N, 1]) : f32[N, 1]
    %zero = mul(%e, 0.0) : f32[N, 1]
    %h = add(%y, %zero) : f32[N, 1]
    call "my::nothing"(@kv)
    return %h
  }
  func @logits(%h: f32[N, 1], %rows: i32[M]) -> (f32[M, 32]) {
    %x = gather(%h, %rows) : f32[M, 1]
    %i = iota(shape=[1, 32], dtype=f32, axis=1) : f32[1, 32]
    %next = add(%x, 1.0) : f32[M, 1]
    %d = sub(%i, %next) : f32[M, 32]
    %a = abs(%d) : f32[M, 32]
    %l = neg(%a) : f32[M, 32]
    return %l
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	return m, hf.Dummy([]hf.Param{{Info: safetensors.Info{Name: "table", DType: dtype.F32, Shape: []int64{positions, 1}}}})
}

// tableRunner makes a runner of table with op as its splitting op.
type tableRunner func(t *testing.T, o Options, op device.Op) *Runner

// opened makes and loads a runner on a device.
func opened(t *testing.T, dev device.Device, target pieces.Pipeline, o Options, op device.Op) *Runner {
	t.Helper()
	m, src := table(t)
	o.Backend.Device, o.Backend.Compile.Compiler, o.Backend.Ops = dev, target, []device.Op{op}
	r, err := New(context.Background(), m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), dev.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := r.Load(context.Background(), src); err != nil {
		t.Fatal(err)
	}
	return r
}

// eachDevice runs a test on the host, whose streams execute each call at once, so that the step in
// flight runs before the previous step is read; and on a GPU or an emulated one, whose streams execute
// later.
func eachDevice(t *testing.T, test func(t *testing.T, open tableRunner)) {
	t.Run("host", func(t *testing.T) {
		test(t, func(t *testing.T, o Options, op device.Op) *Runner {
			return opened(t, hostdev.Open(hostdev.Options{}), pieces.Pipeline{Backend: host.New()}, o, op)
		})
	})
	t.Run("gpu", func(t *testing.T) {
		store := pieces.NewMemoryStore()
		test(t, func(t *testing.T, o Options, op device.Op) *Runner {
			dev := cudatest.Open(t, fake.Options{})
			backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
			if err != nil {
				t.Fatal(err)
			}
			o.Backend.Compile.Store = store
			return opened(t, dev.Device, pieces.Pipeline{Backend: backend}, o, op)
		})
	})
}

// up returns n consecutive tokens, starting with first.
func up(first int32, n int) (out []int32) {
	for i := range n {
		out = append(out, first+int32(i))
	}
	return out
}

// A fault ends the requests of its step with the error, also while another step is in flight. All
// other requests end as without the fault.
func TestFaultsReachTheirRequests(t *testing.T) {
	type request struct {
		turn   int // number of steps before it is submitted
		tokens int // of the prompt
		new    int // Request.MaxNew
		want   int // largest number of tokens at its end
		fails  bool
	}
	cases := map[string][]request{
		// The last token is sampled from the last position. No step computes a later position.
		"as long as the table":  {{0, 1, positions, positions + 1, false}},
		"longer than the table": {{0, 1, positions + 1, positions + 1, true}},
		"far longer":            {{0, 3, 12, positions + 1, true}},
		"a prompt":              {{0, positions + 1, 1, positions + 1, true}},
		"a prompt in chunks":    {{0, positions + 9, 1, positions + 9, true}},
		"two in one step":       {{0, 1, 12, positions + 1, true}, {0, 1, 12, positions + 1, true}},
		// The second shares steps with the first, but not the step with the fault.
		"one ended before":    {{0, 1, 12, positions + 1, true}, {0, 1, 4, 5, false}},
		"one ended just then": {{0, 1, 12, positions + 1, true}, {0, 1, positions, positions + 1, false}},
		// The step after the one with the fault has other requests.
		"one joins in flight":      {{0, positions, 6, positions + 1, true}, {2, 1, 4, 5, false}},
		"one joins for a step":     {{0, positions, 6, positions + 1, true}, {2, 1, 1, 2, false}},
		"many join in flight":      {{0, positions, 6, positions + 1, true}, {2, 1, 1, 2, false}, {2, 2, 4, 6, false}, {2, 1, 3, 4, false}},
		"a second one joins":       {{0, positions, 6, positions + 1, true}, {2, positions + 1, 4, positions + 1, true}},
		"one joins as it fails":    {{0, positions, 2, positions + 1, true}, {3, 1, 4, 5, false}},
		"the last step has it":     {{0, positions + 1, 1, positions + 1, true}, {1, 2, 4, 6, false}},
		"it joins as another ends": {{0, 1, 1, 2, false}, {1, positions + 1, 3, positions + 1, true}},
		"both in turn":             {{0, positions + 1, 1, positions + 1, true}, {1, positions + 1, 1, positions + 1, true}},
		"again after it is idle":   {{0, positions + 1, 1, positions + 1, true}, {6, 2, 4, 6, false}, {20, positions + 1, 1, positions + 1, true}},
		"others wait":              {{0, 1, 12, positions + 1, true}, {0, 1, 12, positions + 1, true}, {0, 1, 12, positions + 1, true}, {0, 1, 12, positions + 1, true}, {0, 2, 4, 6, false}},
	}
	eachDevice(t, func(t *testing.T, open tableRunner) {
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise} {
			r := open(t, Options{MaxSequences: 4, MaxTokens: positions + 4, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 4}}}}, nothing{})
			for name, list := range cases {
				seqs := make([]*Sequence, len(list))
				faults, failed := 0, r.Stats().FailedSteps
				for turn, more := 0, true; more || slices.Contains(seqs, nil); turn++ {
					for i, q := range list {
						if q.turn == turn {
							seqs[i] = submit(t, r, Request{Prompt: up(int32(i), q.tokens)[:q.tokens:q.tokens], MaxNew: q.new})
						}
					}
					var err error
					if more, err = r.Step(context.Background()); err != nil {
						faults++
						if !errors.Is(err, device.ErrIndex) || !strings.Contains(err.Error(), "positions") {
							t.Errorf("%s, mode %s: a step returns %v, want an IndexError that names positions", name, mode, err)
						}
					}
				}
				fails := 0
				for i, q := range list {
					s := seqs[i]
					why := Exhausted
					if q.fails {
						why = Failed
						fails++
					}
					if s.Reason() != why || errors.Is(s.Err(), device.ErrIndex) != q.fails || !q.fails && s.Err() != nil {
						t.Errorf("%s, mode %s: request %d ended as %s (%v), want %s", name, mode, i, s.Reason(), s.Err(), why)
					}
					// A failed request may lack the token of the previous step: if both steps have
					// the same requests, the flags do not say which step has the fault.
					least := q.want
					if q.fails {
						least = max(q.tokens, q.want-1)
					}
					if got, want := s.IDs(), up(int32(i), q.want); len(got) < least || len(got) > q.want || !slices.Equal(got, want[:len(got)]) {
						t.Errorf("%s, mode %s: request %d has %v, want %v", name, mode, i, got, want)
					}
				}
				if (faults > 0) != (fails > 0) || faults > fails || r.Stats().FailedSteps != failed+int64(faults) {
					t.Errorf("%s, mode %s: %d steps returned an error, %d more are counted, for %d requests", name, mode, faults, r.Stats().FailedSteps-failed, fails)
				}
			}
			if s := r.Stats(); s.UsedBlocks != 0 || s.Running+s.Waiting != 0 {
				t.Errorf("mode %s: %+v", mode, s)
			}
		}
	})
}

// Random requests, some of which need positions beyond the table. These must fail with the fault, and
// others may fail only if they shared a step with one of these. No request may have a wrong token, and
// at the end no request, block or flag may be left.
func TestFaultsAtRandom(t *testing.T) {
	var runners []*Runner
	for _, blocks := range []int{8, 40} { // with preemptions, and without
		runners = append(runners, opened(t, hostdev.Open(hostdev.Options{Workers: 1}), pieces.Pipeline{Backend: host.New()},
			Options{MaxSequences: 3, MaxTokens: 12, Blocks: blocks, MaxLength: 32, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 3}}}}, nothing{}))
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 33))
		r := runners[seed%2]
		type request struct {
			*Sequence
			first int32
			bad   bool
			with  map[*Sequence]bool // in one step
		}
		var list []*request
		at := map[*Sequence]*request{}
		for turn, more := 0, true; more || turn < 20; turn++ {
			for range rng.IntN(3) {
				if turn >= 20 {
					break
				}
				q := &request{first: int32(rng.IntN(8)), with: map[*Sequence]bool{}}
				prompt, n := 1+rng.IntN(positions), 1+rng.IntN(4)
				if rng.IntN(4) == 0 {
					prompt += positions / 2
				}
				q.bad = prompt+n-1 > positions
				q.Sequence = submit(t, r, Request{Prompt: up(q.first, prompt), MaxNew: n})
				list, at[q.Sequence] = append(list, q), q
			}
			var err error
			if more, err = r.Step(context.Background()); err != nil && !errors.Is(err, device.ErrIndex) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if r.inFlight != nil {
				for _, h := range r.inFlight.chunks {
					for _, other := range r.inFlight.chunks {
						at[h.seq].with[other.seq] = true
					}
				}
			}
		}
		for i, q := range list {
			ids := q.IDs()
			if !slices.Equal(ids, up(q.first, len(ids))) || len(ids) > positions+1 && len(ids) > len(q.Prompt()) {
				t.Errorf("seed %d: request %d has %v", seed, i, ids)
			}
			met := q.bad
			for other := range q.with {
				met = met || at[other].bad
			}
			switch failed := errors.Is(q.Err(), device.ErrIndex); {
			case q.bad && !failed, failed && !met, !failed && q.Reason() != Exhausted:
				t.Errorf("seed %d: request %d ended as %s (%v); it has a position out of range: %v, or shared a step with such a request: %v", seed, i, q.Reason(), q.Err(), q.bad, met)
			}
		}
		if s := r.Stats(); s.UsedBlocks != 0 || s.Running+s.Waiting != 0 || r.backend.Faults() != nil {
			t.Errorf("seed %d: %+v; %v", seed, s, r.backend.Faults())
		}
	}
}

// A step that fails before its end leaves no fault flags to the previous step or to later ones.
func TestFaultOfAStepThatFails(t *testing.T) {
	eachDevice(t, func(t *testing.T, open tableRunner) {
		op := &broken{Op: nothing{}}
		r := open(t, Options{MaxSequences: 4, MaxTokens: 2 * positions, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 4}}}}, op)
		step := func() error {
			_, err := r.Step(context.Background())
			return err
		}
		for _, alone := range []bool{false, true} {
			var before *Sequence
			if !alone {
				before = submit(t, r, Request{Prompt: []int32{1}, MaxNew: 1})
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			bad := submit(t, r, Request{Prompt: make([]int32, positions+1), MaxNew: 1})
			op.fail = errors.New("the kernel failed")
			cause := op.fail
			if err := step(); !errors.Is(err, cause) || errors.Is(err, device.ErrIndex) {
				t.Errorf("the step returned %v, want %v", err, cause)
			}
			if before != nil && before.Reason() != Exhausted {
				t.Errorf("the request of the step before is %s: %v", before.Reason(), before.Err())
			}
			if bad.Reason() != Failed || !errors.Is(bad.Err(), cause) {
				t.Errorf("the request of the step is %s: %v", bad.Reason(), bad.Err())
			}
			after := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 3})
			drain(t, r)
			if after.Reason() != Exhausted {
				t.Errorf("the request after it is %s: %v", after.Reason(), after.Err())
			}
		}
	})
}

// Run continues after a fault. The request, the log, the counters and the observer get the error.
func TestRunReportsFaults(t *testing.T) {
	var log bytes.Buffer
	w := &watcher{}
	r := opened(t, hostdev.Open(hostdev.Options{}), pieces.Pipeline{Backend: host.New()}, Options{MaxSequences: 4, MaxTokens: 16, Blocks: 40, Observer: w,
		Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}, Observe: piecewise.ObserveOptions{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))}}}, nothing{})
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() { ran <- r.Run(ctx) }()
	bad := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 12})
	if _, err := bad.Wait(ctx); !errors.Is(err, device.ErrIndex) {
		t.Errorf("the request ended with %v, want %v", err, device.ErrIndex)
	}
	good := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 3})
	if ids, err := good.Wait(ctx); err != nil || !slices.Equal(ids, up(1, 4)) {
		t.Errorf("the request after it has %v and ended with %v", ids, err)
	}
	cancel()
	if err := <-ran; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
	if n := strings.Count(log.String(), "a step failed"); n != 1 || !strings.Contains(log.String(), "positions") {
		t.Errorf("%d failed steps are in the log, want 1 with the op's place: %s", n, log.String())
	}
	seen := 0
	for _, s := range w.steps {
		if errors.Is(s.Err, device.ErrIndex) {
			seen++
		}
	}
	if s := r.Stats(); s.FailedSteps != 1 || s.Finished["failed"] != 1 || s.Finished["length"] != 1 || seen != 1 {
		t.Errorf("%d failed steps were observed; counted %+v", seen, s)
	}
}

// recompute discards the tokens in flight of a request that is running, waiting or in flight.
func TestRecompute(t *testing.T) {
	for _, at := range []place{inRunning, inWaiting, inFlight} {
		q := &Sequence{place: at, computed: 5, pending: 1, arrival: 2, ids: make([]int32, 5), blocks: []int32{1, 0}}
		r := &Runner{lm: &language{blockSize: 4}, blocks: newBlocks(4), inFlight: &step{chunks: []chunk{{seq: &Sequence{}}, {seq: q}}}}
		older, younger := &Sequence{arrival: 1}, &Sequence{arrival: 3}
		r.waiting = []*Sequence{older, younger}
		switch at {
		case inRunning:
			r.running = []*Sequence{{}, q}
			r.blocks.free = r.blocks.free[:2]
		case inWaiting:
			r.waiting = []*Sequence{older, q, younger}
			q.computed, q.blocks = 0, nil
		case inFlight:
			q.blocks = nil
		}
		r.recompute(q)
		if !slices.Equal(r.waiting, []*Sequence{older, q, younger}) || slices.Contains(r.running, q) || q.place != inWaiting {
			t.Errorf("place %d: it is at %d, %d wait", at, q.place, len(r.waiting))
		}
		if q.pending != 0 || q.computed != 0 || len(q.blocks) != 0 || r.blocks.used() != 0 || r.inFlight.chunks[1].sample != -1 || r.inFlight.chunks[0].sample != 0 {
			t.Errorf("place %d: %d tokens in flight, %d computed, %d blocks in use, samples %s", at, q.pending, q.computed, r.blocks.used(), fmt.Sprint(r.inFlight.chunks[0].sample, r.inFlight.chunks[1].sample))
		}
	}
}
