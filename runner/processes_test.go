package runner

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	attnhost "pwc/attention/host"
	"pwc/collective"
	collectivehost "pwc/collective/host"
	"pwc/compile"
	"pwc/compile/host"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// process is the runner of one rank, with its members of the groups. The test runs all ranks in one
// process of the operating system; they exchange data through the groups alone.
type process struct {
	*Runner
	tp, told *collective.Group
	err      error
	ended    map[uint64][]int32 // answers by the number of the request
	reasons  map[uint64]Reason
}

func (p *process) Stepped(Step) {}

func (p *process) Finished(s *Sequence) {
	p.ended[s.arrival], p.reasons[s.arrival] = slices.Clone(s.IDs()), s.Reason()
}

// inProcesses makes and loads a runner for each rank, each in a goroutine. change may change the
// options of a rank.
func inProcesses(t *testing.T, o Options, change func(rank int, o *Options)) []*process {
	t.Helper()
	m, src := divided(t, "llama", 2)
	limits := collective.Options{Limit: 20 * time.Second}
	tp, err := collective.Local("tp", 2, limits)
	if err != nil {
		t.Fatal(err)
	}
	told, err := collective.Local("runner", 2, limits)
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*process, 2)
	var wait sync.WaitGroup
	for rank := range all {
		p := &process{tp: tp[rank], told: told[rank], ended: map[uint64][]int32{}, reasons: map[uint64]Reason{}}
		all[rank] = p
		dev := hostdev.Open(hostdev.Options{Workers: 1})
		t.Cleanup(func() { dev.Close() })
		o := o
		o.Processes, o.Observer = p.told, p
		o.Backend.Device, o.Backend.Ops = dev, []device.Op{attnhost.New(dev)}
		o.Backend.Compile.Compiler = pieces.Pipeline{Backend: host.New()}
		o.Fail = func(_ int, cause error) { p.tp.Fail(cause); p.told.Fail(cause) }
		if change != nil {
			change(rank, &o)
		}
		wait.Go(func() {
			if p.err = collectivehost.Add(dev, p.tp); p.err != nil {
				return
			}
			if p.Runner, p.err = New(t.Context(), m.Module, o); p.err == nil {
				p.err = p.Load(t.Context(), src)
			}
			if p.err != nil {
				o.Fail(rank, p.err)
			}
		})
	}
	wait.Wait()
	for _, p := range all {
		if p.Runner != nil {
			t.Cleanup(func() { p.Close() })
		}
	}
	return all
}

func processOptions() Options {
	return Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 2, 4, 8}}}, MaxSequences: 6, MaxTokens: 24, Blocks: 24, MaxLength: 48}
}

// TestProcesses tests that all ranks with Options.Processes end each request with the same tokens and the
// same reason, with random sampling, arrivals, preemption, and Stop and Cancel on rank 0 only.
func TestProcesses(t *testing.T) {
	all := inProcesses(t, processOptions(), nil)
	for rank, p := range all {
		if p.err != nil {
			t.Fatalf("rank %d: %v", rank, p.err)
		}
	}
	follows := make(chan error)
	go func() { follows <- all[1].Run(t.Context()) }()
	r := all[0].Runner
	list := mixture(7, 40, 20)
	list[3].Deadline = time.Now() // before the first step
	list[8].Logprobs = Logprobs{Answer: true, Prompt: true, Top: 2}
	list[9].Stop, list[9].MinNew = []int32{5, 6, 7}, 1
	list[10].Sampling.LogitBias, list[10].Sampling.RepetitionPenalty = map[int32]float64{7: 2.5}, 1.3
	var seqs []*Sequence
	for i, steps := 0, 0; ; steps++ {
		for ; i < len(list) && (i < 12 || steps > i); i++ {
			seqs = append(seqs, submit(t, r, list[i]))
		}
		switch steps {
		case 2:
			seqs[0].Cancel()
			seqs[1].Stop()
		case 9:
			seqs[11].Stop()
		}
		more, err := r.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more && i == len(list) {
			break
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-follows; err != nil {
		t.Fatalf("rank 1 ended with %v", err)
	}
	kinds := map[Reason]int{}
	for i, q := range seqs {
		kinds[q.Reason()]++
		if got, why := all[1].ended[q.arrival], all[1].reasons[q.arrival]; !slices.Equal(got, q.IDs()) || why != q.Reason() {
			t.Errorf("request %d: rank 0 has %v (%v), rank 1 %v (%v)", i, q.IDs(), q.Reason(), got, why)
		}
	}
	if len(all[1].ended) != len(list) || kinds[DeadlineExceeded] != 1 || kinds[Canceled] != 1 || kinds[Stopped] < 1 || r.Stats().Preempted == 0 {
		t.Errorf("%d of %d requests ended on rank 1, with %v; %d were preempted", len(all[1].ended), len(list), kinds, r.Stats().Preempted)
	}
}

// TestProcessesGreedy compares greedy tokens of two ranks with those of transformers. Both ranks get the
// smaller number of blocks. Rank 1 refuses requests, and rank 0 refuses a LogitsProcessor.
func TestProcessesGreedy(t *testing.T) {
	all := inProcesses(t, processOptions(), func(rank int, o *Options) { o.Blocks -= 4 * rank })
	for rank, p := range all {
		if p.err != nil {
			t.Fatalf("rank %d: %v", rank, p.err)
		}
		if p.Plan().Blocks != 20 {
			t.Errorf("rank %d has %d blocks, want those of the rank that has the fewest", rank, p.Plan().Blocks)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 2)
	for _, p := range all {
		go func() { ran <- p.Run(ctx) }()
	}
	want := expected(t, "llama")
	ids, err := submit(t, all[0].Runner, Request{Prompt: want[:9], MaxNew: 24}).Wait(t.Context())
	if err != nil || !slices.Equal(ids, want) {
		t.Errorf("decoded %v (%v), want %v", ids, err, want)
	}
	if _, err := all[1].Submit(t.Context(), Request{Prompt: []int32{1}, MaxNew: 1}); !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "submit it to rank 0") {
		t.Errorf("a request to rank 1: %v", err)
	}
	if _, err := all[0].Submit(t.Context(), Request{Prompt: []int32{1}, MaxNew: 1, Processor: nothingAllowed{}}); !errors.Is(err, ErrRequest) {
		t.Errorf("a request with a processor: %v", err)
	}
	cancel() // rank 1 stops waiting for rank 0 and ends the group
	for range all {
		if err := <-ran; err == nil {
			t.Error("Run ended without an error")
		}
	}
}

// TestLostProcess tests that a lost rank ends the runner of the other rank, with an error that has the
// number of the lost rank.
func TestLostProcess(t *testing.T) {
	all := inProcesses(t, processOptions(), nil)
	follows := make(chan error, 1)
	go func() { follows <- all[1].Run(t.Context()) }()
	s := submit(t, all[0].Runner, Request{Prompt: []int32{1, 2, 3}, MaxNew: 20})
	if _, err := all[0].Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	all[1].tp.Fail(errors.New("it was pulled out"))
	all[1].told.Fail(errors.New("it was pulled out"))
	var err error
	for more := true; more && err == nil; {
		more, err = all[0].Step(t.Context())
	}
	lost, ok := errors.AsType[*collective.LostError](err)
	if !ok || !slices.Equal(lost.Ranks, []int{1}) || s.Reason() != Failed {
		t.Errorf("rank 0 ended with %v, its request with %v", err, s.Reason())
	}
	if err := <-follows; err == nil {
		t.Error("rank 1 ended without an error")
	}
}

// TestProcessesDiffer tests that New fails on every rank if the options of ranks differ, and that it
// fails if there are fewer processes than the model has ranks.
func TestProcessesDiffer(t *testing.T) {
	for name, change := range map[string]func(o *Options){
		"rows of a step":  func(o *Options) { o.MaxTokens++ },
		"compile sizes":   func(o *Options) { o.Backend.Compile.Sizes = []int64{4} },
		"range endpoints": func(o *Options) { o.Backend.Compile.Endpoints = []int64{8} },
		"disabled passes": func(o *Options) {
			o.Backend.Compile.Compiler = pieces.Pipeline{Backend: host.New(), Options: compile.Options{Disable: []string{"cse"}}}
		},
	} {
		all := inProcesses(t, processOptions(), func(rank int, o *Options) {
			if rank == 1 {
				change(o)
			}
		})
		for rank, p := range all {
			if !errors.Is(p.err, ErrPreparation) || !strings.Contains(p.err.Error(), "give all ranks the same options") {
				t.Errorf("%s, rank %d: %v", name, rank, p.err)
			}
		}
	}
	m, _ := divided(t, "llama", 4)
	two, err := collective.Local("runner", 2, collective.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unloaded(t, m, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 4, Processes: two[0]}); !errors.Is(err, ErrPreparation) || !strings.Contains(err.Error(), "Options.Processes are 2") {
		t.Errorf("two processes for four ranks: %v", err)
	}
}

// If Load fails in a process, Options.Fail gets the rank of the process.
func TestFailGetsTheRank(t *testing.T) {
	groups, err := collective.Local("runner", 2, collective.Options{})
	if err != nil {
		t.Fatal(err)
	}
	failed := -1
	r := &Runner{opts: Options{Processes: groups[1], Fail: func(rank int, _ error) { failed = rank }}}
	cause := errors.New("no room")
	if err := r.together(func() error { return cause }, nil); !errors.Is(err, cause) || failed != 1 {
		t.Errorf("%v, and Fail got rank %d, want 1", err, failed)
	}
}
