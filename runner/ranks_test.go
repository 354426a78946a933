package runner

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	attnhost "pwc/attention/host"
	"pwc/collective"
	collectivehost "pwc/collective/host"
	"pwc/compile/host"
	"pwc/frontend/hf"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/safetensors"
)

// divided opens a checkpoint as a module for several ranks.
func divided(t testing.TB, name string, ranks int64) (*hf.Model, safetensors.Source) {
	t.Helper()
	_, src := checkpoint(t, name)
	m, err := hf.Builtin().ImportDir(checkpoints+"/"+name, hf.Options{DType: dtype.F32, BlockSize: blockSize, Context: min(64, contextOf(name)), Ranks: ranks})
	if err != nil {
		t.Fatal(err)
	}
	return m, src
}

// onRanks makes a runner with one host device for each rank of the model, and loads it.
func onRanks(t testing.TB, m *hf.Model, src safetensors.Source, o Options) (*Runner, []*collective.Group) {
	t.Helper()
	groups, err := collective.Local("tp", m.Module.World(), collective.Options{Limit: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for rank, g := range groups {
		dev := hostdev.Open(hostdev.Options{Workers: 1})
		t.Cleanup(func() { dev.Close() })
		if err := collectivehost.Add(dev, g); err != nil {
			t.Fatal(err)
		}
		p := Peer{Device: dev, Ops: []device.Op{attnhost.New(dev)}}
		if rank == 0 {
			o.Backend.Device, o.Backend.Ops = p.Device, p.Ops
		} else {
			o.Peers = append(o.Peers, p)
		}
	}
	o.Fail = func(rank int, cause error) { groups[rank].Fail(cause) }
	o.Backend.Compile.Compiler = pieces.Pipeline{Backend: host.New()}
	r, err := New(t.Context(), m.Module, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if err := r.Load(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	return r, groups
}

// TestRanksGreedy compares the greedy tokens of 2 and 4 ranks with those of transformers: for llama in
// modes none, piecewise and full-and-piecewise, and with PWC_ALL_RANKS also for the other checkpoints
// in full-and-piecewise.
func TestRanksGreedy(t *testing.T) {
	names := []string{"llama"}
	if os.Getenv("PWC_ALL_RANKS") != "" {
		dirs, err := os.ReadDir(checkpoints)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dirs {
			if d.IsDir() && d.Name() != "llama" {
				names = append(names, d.Name())
			}
		}
	}
	for _, name := range names {
		modes := []piecewise.Mode{piecewise.FullAndPiecewise}
		if name == "llama" {
			modes = append(modes, piecewise.None, piecewise.Piecewise)
		}
		for _, ranks := range []int64{2, 4} {
			if name == "phi_qknorm" && ranks == 4 {
				continue // the checkpoint has two heads
			}
			for _, mode := range modes {
				t.Run(fmt.Sprintf("%s/%d/%s", name, ranks, mode), func(t *testing.T) { ranksGreedy(t, name, ranks, mode) })
			}
		}
	}
}

func ranksGreedy(t *testing.T, name string, ranks int64, mode piecewise.Mode) {
	m, src := divided(t, name, ranks)
	want := expected(t, name)
	r, _ := onRanks(t, m, src, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 2, 4, 16}}}, MaxSequences: 4, MaxTokens: 16, Blocks: 40})
	a := submit(t, r, Request{Prompt: want[:9], MaxNew: 24})
	b := submit(t, r, Request{Prompt: want[:9], MaxNew: 20})
	drain(t, r)
	if !slices.Equal(a.IDs(), want) || !slices.Equal(b.IDs(), want[:29]) {
		t.Errorf("decoded %v and %v, want %v", a.IDs(), b.IDs(), want)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestRanksSampleTheSame runs requests with random sampling, preemption and arrivals on two ranks, and
// compares the ids that both ranks sampled after every step. PWC_SAMPLED_STEPS is the least number of
// steps.
func TestRanksSampleTheSame(t *testing.T) {
	m, src := divided(t, "llama", 2)
	r, _ := onRanks(t, m, src, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 2, 4, 8}}}, MaxSequences: 6, MaxTokens: 24, Blocks: 24, MaxLength: 48})
	list := mixture(5, 24, 20)
	for _, q := range list[:12] {
		submit(t, r, q)
	}
	least := 100
	if n, err := strconv.Atoi(os.Getenv("PWC_SAMPLED_STEPS")); err == nil {
		least = n
	}
	compared, steps := 0, 0
	for more := true; more || steps < least; steps++ {
		if steps == 10 || !more {
			for _, q := range list[12:] {
				submit(t, r, q)
			}
			list = mixture(uint64(steps), 24, 20)
		}
		var err error
		if more, err = r.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := r.inFlight; s != nil {
			f := r.followers[0]
			i := slices.Index(r.steps[:], s)
			if err := errors.Join(s.done.Synchronize(), f.steps[i].done.Synchronize()); err != nil {
				t.Fatal(err)
			}
			if own, other := s.ids.Bytes()[:4*s.samples], f.steps[i].ids.Bytes()[:4*s.samples]; !slices.Equal(own, other) {
				t.Fatalf("step %d: rank 0 sampled %v, rank 1 %v", steps, own, other)
			}
			compared += s.samples
		}
	}
	if compared < 100 || r.Stats().Preempted == 0 {
		t.Errorf("%d ids were compared, %d requests preempted", compared, r.Stats().Preempted)
	}
}

// TestLostRank tests that a lost rank ends the runner with an error that names the rank (C22).
func TestLostRank(t *testing.T) {
	m, src := divided(t, "llama", 2)
	r, groups := onRanks(t, m, src, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 2}}}, MaxSequences: 2, MaxTokens: 8, Blocks: 40})
	s := submit(t, r, Request{Prompt: []int32{1, 2, 3}, MaxNew: 20})
	if _, err := r.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	groups[1].Fail(errors.New("it was pulled out"))
	var err error
	for more := true; more && err == nil; {
		more, err = r.Step(t.Context())
	}
	lost, ok := errors.AsType[*collective.LostError](err)
	if !ok || !slices.Equal(lost.Ranks, []int{1}) || !strings.Contains(err.Error(), "it was pulled out") {
		t.Errorf("the step ended with %v, want a LostError of rank 1 with its cause", err)
	}
	if s.Err() == nil || s.Reason() != Failed {
		t.Errorf("the request ended with %v, %v", s.Reason(), s.Err())
	}
	if _, err := r.Submit(t.Context(), Request{Prompt: []int32{1}, MaxNew: 1}); !errors.Is(err, ErrClosed) {
		t.Errorf("a request after it: %v", err)
	}
}

// TestPeersAreNeeded tests that New refuses a model for two devices without Options.Peers.
func TestPeersAreNeeded(t *testing.T) {
	m, _ := divided(t, "llama", 2)
	if _, err := unloaded(t, m, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 4}); !errors.Is(err, ErrPreparation) || !strings.Contains(err.Error(), "the model is for 2 devices") {
		t.Errorf("one device: %v", err)
	}
}
