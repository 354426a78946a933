package runner

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	attnhost "pwc/attention/host"
	"pwc/compile/host"
	"pwc/frontend/hf"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/safetensors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// checkpoints is the folder of checkpoints with the expected results of transformers.
const checkpoints = "../testdata/hf"

const blockSize = 4

// checkpoint opens a checkpoint in f32. Blocks are small, so that sequences have many.
func checkpoint(t testing.TB, name string) (*hf.Model, safetensors.Source) {
	t.Helper()
	return checkpointAs(t, name, dtype.F32)
}

// unloaded makes a runner on its own host device, without Load.
func unloaded(t testing.TB, m *hf.Model, o Options) (*Runner, error) {
	t.Helper()
	dev := hostdev.Open(hostdev.Options{Workers: 2})
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close of the device: %v", err)
		}
	})
	if o.Backend.Device == nil {
		o.Backend.Device = dev
	}
	o.Backend.Compile.Compiler = pieces.Pipeline{Backend: host.New()}
	o.Backend.Ops = []device.Op{attnhost.New(dev)}
	r, err := New(context.Background(), m.Module, o)
	if err == nil {
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	return r, err
}

func loaded(t testing.TB, m *hf.Model, src safetensors.Source, o Options) *Runner {
	t.Helper()
	r, err := unloaded(t, m, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Load(context.Background(), src); err != nil {
		t.Fatal(err)
	}
	return r
}

func llama(t testing.TB, o Options) *Runner {
	t.Helper()
	m, src := checkpoint(t, "llama")
	return loaded(t, m, src, o)
}

// While a sequence has one name, blocks are only appended to its list. After a preemption it has other
// blocks, and so must have another name.
func TestNamesOfBlocks(t *testing.T) {
	r := llama(t, Options{MaxSequences: 6, MaxTokens: 24, Blocks: 24, MaxLength: 48})
	for _, q := range mixture(5, 24, 20) {
		submit(t, r, q)
	}
	named := map[uint64][]int32{}
	for more := true; more; {
		var err error
		if more, err = r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		for _, q := range r.running {
			was := named[q.name]
			if n := min(len(was), len(q.blocks)); q.name == 0 || !slices.Equal(was[:n], q.blocks[:n]) {
				t.Fatalf("name %d of %v, of %v before", q.name, q.blocks, was)
			}
			if len(q.blocks) > len(was) {
				named[q.name] = slices.Clone(q.blocks)
			}
		}
	}
	if r.Stats().Preempted == 0 {
		t.Error("no request was preempted")
	}
}

func submit(t testing.TB, r *Runner, q Request) *Sequence {
	t.Helper()
	s, err := r.Submit(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// drain steps until no work is left.
func drain(t testing.TB, r *Runner) {
	t.Helper()
	for {
		more, err := r.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return
		}
	}
}

// alone runs requests one after the other and returns prompts with answers.
func alone(t testing.TB, r *Runner, list []Request) [][]int32 {
	t.Helper()
	out := make([][]int32, len(list))
	for i, q := range list {
		s := submit(t, r, q)
		drain(t, r)
		if s.Err() != nil {
			t.Fatal(s.Err())
		}
		out[i] = s.IDs()
	}
	return out
}

// mixture returns requests of different lengths, prompts and kinds of sampling.
func mixture(seed uint64, n, longest int) []Request {
	rng := rand.New(rand.NewPCG(seed, 0))
	out := make([]Request, n)
	for i := range out {
		q := &out[i]
		for range 1 + rng.IntN(longest) {
			q.Prompt = append(q.Prompt, rng.Int32N(320))
		}
		q.MaxNew = 1 + rng.IntN(longest)
		switch i % 4 {
		case 1:
			q.Sampling = Sampling{Temperature: 0.8, Seed: rng.Uint64()}
		case 2:
			q.Sampling = Sampling{Temperature: 1.5, TopK: 1 + rng.IntN(50), Seed: rng.Uint64()}
		case 3:
			q.Sampling = Sampling{Temperature: 1, TopK: rng.IntN(50), TopP: 0.9, Seed: rng.Uint64()}
		}
	}
	return out
}

// Greedy tokens of every checkpoint are those of transformers, for two requests that run together: of
// llama in every mode, of the others in mode full-and-piecewise.
func TestTransformersGreedy(t *testing.T) {
	dirs, err := os.ReadDir(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range dirs {
		if !d.IsDir() {
			continue
		}
		found++
		modes := []piecewise.Mode{piecewise.FullAndPiecewise}
		if d.Name() == "llama" {
			modes = append(modes, piecewise.None, piecewise.Piecewise, piecewise.Full, piecewise.FullDecodeOnly)
		}
		for _, mode := range modes {
			t.Run(fmt.Sprintf("%s/%s", d.Name(), mode), func(t *testing.T) {
				m, src := checkpoint(t, d.Name())
				want := expected(t, d.Name())
				r := loaded(t, m, src, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 2, 4, 16}}}, MaxSequences: 4, MaxTokens: 16, Blocks: 40})
				prompt := want[:9]
				a := submit(t, r, Request{Prompt: prompt, MaxNew: 24})
				b := submit(t, r, Request{Prompt: prompt, MaxNew: 20})
				drain(t, r)
				if !slices.Equal(a.IDs(), want) || !slices.Equal(b.IDs(), want[:29]) {
					t.Errorf("decoded %v and %v, want %v", a.IDs(), b.IDs(), want)
				}
				if s := r.Backend().Stats(); mode != piecewise.None && s.EagerRuns > 0 && mode != piecewise.FullDecodeOnly {
					t.Errorf("%d runs without graphs: %v", s.EagerRuns, s.Skipped)
				}
			})
		}
	}
	if found < 17 {
		t.Errorf("%d checkpoints found", found)
	}
}

func expected(t testing.TB, name string) []int32 {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(checkpoints, name, "expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := f.Tensor("greedy")
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, x.Shape[0])
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint32(x.Data[4*i:]))
	}
	return ids
}

// 64 requests together get the tokens that each gets without others, with enough blocks for all, and
// with so few that requests are preempted.
func TestTogetherAsAlone(t *testing.T) {
	list := mixture(1, 64, 20)
	o := Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise}}, MaxSequences: 64, MaxTokens: 96, Blocks: 64 * 10}
	r := llama(t, o)
	want := alone(t, r, list)
	for _, blocks := range []int{64 * 10, 60} {
		o.Blocks = blocks
		r := llama(t, o)
		seqs := make([]*Sequence, len(list))
		for i, q := range list {
			seqs[i] = submit(t, r, q)
		}
		drain(t, r)
		for i, s := range seqs {
			if !slices.Equal(s.IDs(), want[i]) || s.Reason() != Exhausted {
				t.Errorf("%d blocks, request %d: %v (%s %v), alone %v", blocks, i, s.IDs(), s.Reason(), s.Err(), want[i])
			}
		}
		st := r.Stats()
		if preempted := st.Preempted > 0; preempted != (blocks == 60) {
			t.Errorf("%d blocks: %d preemptions", blocks, st.Preempted)
		}
		if st.UsedBlocks != 0 || st.Running != 0 || st.Waiting != 0 || st.Finished["length"] != 64 {
			t.Errorf("%d blocks: left over: %+v", blocks, st)
		}
		// Every token except a sequence's last is computed once, and discarded ones again.
		rows, want := int64(0), st.Recomputed
		for _, c := range st.Steps {
			rows += c.Rows
		}
		for _, s := range seqs {
			want += int64(len(s.IDs()) - 1)
		}
		if rows != want {
			t.Errorf("%d blocks: %d rows in all steps, want %d, including %d recomputed ones", blocks, rows, want, st.Recomputed)
		}
	}
}

// A step takes a token that the host knows from the host, also if the step has as many rows as the
// previous step sampled and Sequence.from still has a row of an earlier step.
func TestKnownTokenOfASampledStep(t *testing.T) {
	r := llama(t, Options{MaxSequences: 3, MaxTokens: 4, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	list := []Request{{Prompt: []int32{5}, MaxNew: 4}, {Prompt: []int32{7}, MaxNew: 1}, {Prompt: []int32{9, 11, 13}, MaxNew: 4}}
	want := alone(t, r, list)
	var seqs []*Sequence
	for _, q := range list {
		seqs = append(seqs, submit(t, r, q))
	}
	if _, err := r.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	last := seqs[2]
	if r.rows != 2 || last.rest() != 1 || len(r.running) != 2 {
		t.Fatalf("%d tokens are sampled, %d of the last prompt are left, %d requests run", r.rows, last.rest(), len(r.running))
	}
	last.from = 1
	drain(t, r)
	for i, s := range seqs {
		if !slices.Equal(s.IDs(), want[i]) {
			t.Errorf("request %d: %v, alone %v", i, s.IDs(), want[i])
		}
	}
}

// A stop token ends an answer and is its last token. Requests join while others run.
func TestStop(t *testing.T) {
	r := llama(t, Options{MaxSequences: 4, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	full := alone(t, r, []Request{{Prompt: []int32{5, 7, 9}, MaxNew: 12}})[0]
	answer := full[3:]
	at := slices.Index(answer, answer[6])
	var streamed []int32
	s := submit(t, r, Request{Prompt: []int32{5, 7, 9}, MaxNew: 12, Stop: []int32{-5, answer[6]}, OnToken: func(id int32) { streamed = append(streamed, id) }})
	for range 3 {
		if _, err := r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	late := submit(t, r, Request{Prompt: []int32{5, 7, 9}, MaxNew: 1})
	if late.Reason() != Unfinished || late.IDs() != nil || late.Err() != nil {
		t.Errorf("a request that waits says it is %s", late.Reason())
	}
	drain(t, r)
	if want := full[:3+at+1]; !slices.Equal(s.IDs(), want) || s.Reason() != Stopped || !slices.Equal(streamed, want[3:]) {
		t.Errorf("%v (%s), streamed %v, want %v", s.IDs(), s.Reason(), streamed, want)
	}
	if !slices.Equal(late.IDs(), full[:4]) {
		t.Errorf("the late request got %v, want %v", late.IDs(), full[:4])
	}
	if st := r.Stats(); st.UsedBlocks != 0 || st.Finished["stop"] != 1 || st.Finished["length"] != 2 {
		t.Errorf("%+v", st)
	}
}

// A step that ends the last request reports more work if another request was submitted meanwhile.
func TestSubmitDuringStep(t *testing.T) {
	r := llama(t, Options{MaxSequences: 1, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	var next *Sequence
	submit(t, r, Request{Prompt: []int32{5}, MaxNew: 1, OnToken: func(int32) { next = submit(t, r, Request{Prompt: []int32{7}, MaxNew: 1}) }})
	drain(t, r)
	if next.Reason() != Exhausted {
		t.Errorf("Step reports no more work, but the second request is %s", next.Reason())
	}
}

// Sequence.Prompt may be called while a sequence runs: steps do not write the prompt.
func TestPromptWhileRunning(t *testing.T) {
	r := llama(t, Options{MaxSequences: 1, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	q := submit(t, r, Request{Prompt: []int32{5, 7, 9}, MaxNew: 12})
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for !q.finished() {
			if !slices.Equal(q.Prompt(), []int32{5, 7, 9}) {
				t.Errorf("the prompt is %v", q.Prompt())
				return
			}
		}
	}()
	drain(t, r)
	<-asked
}

// Cancel ends a waiting request, and the end of its context a running one; no other request ends. No
// block stays in use.
func TestCancel(t *testing.T) {
	r := llama(t, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	want := alone(t, r, []Request{{Prompt: []int32{5, 7, 9}, MaxNew: 12}})[0]
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("the client left")
	running, err := r.Submit(ctx, Request{Prompt: []int32{1, 2}, MaxNew: 30})
	if err != nil {
		t.Fatal(err)
	}
	other := submit(t, r, Request{Prompt: []int32{5, 7, 9}, MaxNew: 12})
	waits := submit(t, r, Request{Prompt: []int32{3}, MaxNew: 3})
	for range 3 {
		if _, err := r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	waits.Cancel()
	if _, err := r.Step(context.Background()); err != nil || waits.Reason() != Canceled {
		t.Errorf("a waiting request, a step after Cancel: %s, %v", waits.Reason(), err)
	}
	cancel(why)
	for running.asked.Load() == 0 { // AfterFunc calls Cancel in another goroutine
		time.Sleep(time.Millisecond)
	}
	drain(t, r)
	if running.Reason() != Canceled || !errors.Is(running.Err(), why) {
		t.Errorf("%s %v", running.Reason(), running.Err())
	}
	if waits.Reason() != Canceled || !errors.Is(waits.Err(), context.Canceled) || len(waits.IDs()) != 1 {
		t.Errorf("%s %v %v", waits.Reason(), waits.Err(), waits.IDs())
	}
	if !slices.Equal(other.IDs(), want) {
		t.Errorf("the other got %v, want %v", other.IDs(), want)
	}
	if st := r.Stats(); st.UsedBlocks != 0 {
		t.Errorf("%d blocks are lost", st.UsedBlocks)
	}
}

// watchedContext counts the functions that wait for its end.
type watchedContext struct {
	context.Context
	done    chan struct{}
	waiting int
}

func (w *watchedContext) Done() <-chan struct{} { return w.done }
func (w *watchedContext) AfterFunc(func()) (stop func() bool) {
	w.waiting++
	return func() bool { w.waiting--; return true }
}

// A context that outlives its requests has no references to them.
func TestContextsAreLetGo(t *testing.T) {
	r := llama(t, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 40, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	ctx := &watchedContext{Context: context.Background(), done: make(chan struct{})}
	for i := range 4 {
		s, err := r.Submit(ctx, Request{Prompt: []int32{1}, MaxNew: 3})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			s.Cancel()
		}
	}
	if ctx.waiting != 4 {
		t.Errorf("%d functions wait for the end of the context of 4 requests", ctx.waiting)
	}
	drain(t, r)
	if ctx.waiting != 0 {
		t.Errorf("the context still holds %d requests that have ended", ctx.waiting)
	}
}

// Submit refuses requests that can never be served.
func TestRefuse(t *testing.T) {
	r := llama(t, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 5, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	for i, q := range []Request{
		{MaxNew: 1}, {Prompt: []int32{1}, MaxNew: -1}, {Prompt: make([]int32, 20)}, {Prompt: []int32{320}, MaxNew: 1}, {Prompt: []int32{-1}, MaxNew: 1},
		{Prompt: []int32{1}, MaxNew: 20}, {Prompt: []int32{1}, MaxNew: 1, Sampling: Sampling{Temperature: -1}},
		{Prompt: []int32{1}, MaxNew: 1, Sampling: Sampling{TopP: 1.5}}, {Prompt: []int32{1}, MaxNew: 1, Sampling: Sampling{TopK: -1}},
	} {
		if _, err := r.Submit(context.Background(), q); !errors.Is(err, ErrRequest) {
			t.Errorf("request %d: %v, want %v", i, err, ErrRequest)
		}
	}
	s := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 19}) // all 5 blocks
	drain(t, r)
	if len(s.IDs()) != 20 {
		t.Errorf("%d tokens", len(s.IDs()))
	}
}

// Only running requests have memory for a whole answer. A request that has not run has its prompt, and one
// that has ended its prompt and answer.
func TestQueueTakesNoRoom(t *testing.T) {
	r := llama(t, Options{MaxSequences: 1, MaxTokens: 8, Blocks: 60, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	var seqs []*Sequence
	for range 3 {
		seqs = append(seqs, submit(t, r, Request{Prompt: []int32{5, 7, 9}, MaxNew: 200, Stop: nil}))
	}
	room := func(s *Sequence) [2]int { return [2]int{cap(s.ids), cap(s.blocks)} }
	for i := range 4 {
		if _, err := r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		for j, s := range seqs {
			want := [2]int{3, 0}
			if j == 0 {
				want = [2]int{203, r.blocksFor(203)}
			}
			if got := room(s); got != want {
				t.Errorf("step %d: request %d has room for %d tokens and blocks, want %d", i, j, got, want)
			}
		}
	}
	seqs[0].Cancel()
	if _, err := r.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got, want := room(seqs[0]), [2]int{len(seqs[0].IDs()), 0}; got != want || len(seqs[0].IDs()) < 5 {
		t.Errorf("a request that has ended has %d tokens and room for %d, want %d", len(seqs[0].IDs()), got, want)
	}
	drain(t, r)
	for _, s := range seqs[1:] {
		if got, want := room(s), [2]int{203, 0}; got != want || s.Reason() != Exhausted || !slices.Equal(s.Prompt(), []int32{5, 7, 9}) {
			t.Errorf("a request ended as %s with room for %d, want %d", s.Reason(), got, want)
		}
	}
}

// 18,000 of 20,000 requests are canceled while they wait. The others are served in order, until Close
// ends them. Step and Close each end many requests in one pass over the queue; a pass for each request
// would make this test slow.
func TestCancelInTheQueue(t *testing.T) {
	r := llama(t, Options{MaxSequences: 2, MaxTokens: 8, Blocks: 60, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	ctx, cancel := context.WithCancel(context.Background())
	var kept, dropped []*Sequence
	const many = 20000
	for i := range many {
		q := Request{Prompt: []int32{5}, MaxNew: 2}
		if i%10 == 3 {
			kept = append(kept, submit(t, r, q))
			continue
		}
		s, err := r.Submit(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		dropped = append(dropped, s)
	}
	cancel()
	for _, s := range dropped { // AfterFunc calls Cancel in other goroutines
		for s.asked.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	for range 5 {
		if _, err := r.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range dropped {
		if s.Reason() != Canceled || !errors.Is(s.Err(), context.Canceled) {
			t.Fatalf("request %d of those canceled is %s: %v", i, s.Reason(), s.Err())
		}
	}
	// The first requests that were not canceled have ended, in their order.
	ended := 0
	for ; ended < len(kept) && kept[ended].Reason() == Exhausted; ended++ {
	}
	if ended == 0 || ended > 8 {
		t.Errorf("%d requests have ended", ended)
	}
	if s := r.Stats(); s.Waiting+s.Running+ended != len(kept) || s.Finished["canceled"] != int64(len(dropped)) {
		t.Errorf("%d have ended of %d; %+v", ended, len(kept), s)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for i, s := range kept[ended:] {
		if s.Reason() != Failed || !errors.Is(s.Err(), ErrClosed) {
			t.Fatalf("request %d of those that waited is %s: %v", i, s.Reason(), s.Err())
		}
	}
}

// TestReasons tests the reasons Exhausted, MaxPosition, Stopped and Canceled.
func TestReasons(t *testing.T) {
	const most = 5 * blockSize
	r := llama(t, Options{MaxSequences: 4, MaxTokens: 8, Blocks: 40, MaxLength: most, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}}})
	prompt := []int32{5, 7, 9}
	first := alone(t, r, []Request{{Prompt: prompt, MaxNew: 1}})[0][len(prompt)]
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		ctx   context.Context
		q     Request
		want  Reason
		total int
	}{
		{context.Background(), Request{Prompt: prompt, MaxNew: 4}, Exhausted, len(prompt) + 4},
		{context.Background(), Request{Prompt: prompt, MaxNew: most - len(prompt)}, Exhausted, most},
		{context.Background(), Request{Prompt: prompt}, MaxPosition, most},
		{context.Background(), Request{Prompt: prompt, Stop: []int32{first}}, Stopped, len(prompt) + 1},
		{canceled, Request{Prompt: prompt, MaxNew: 4}, Canceled, len(prompt)},
	} {
		s, err := r.Submit(c.ctx, c.q)
		if err != nil {
			t.Fatal(err)
		}
		drain(t, r)
		if s.Reason() != c.want || len(s.IDs()) != c.total || (s.Err() != nil) != (c.want == Canceled) {
			t.Errorf("%+v ended as %s with %d tokens (%v), want %s with %d", c.q, s.Reason(), len(s.IDs()), s.Err(), c.want, c.total)
		}
	}
}

// A reason and its text convert to each other. Other values and texts are errors.
func TestReasonText(t *testing.T) {
	for r, want := range map[Reason]string{Unfinished: "unfinished", Stopped: "stop", Exhausted: "length", Canceled: "canceled", Failed: "failed", MaxPosition: "max_position", DeadlineExceeded: "deadline"} {
		text, err := json.Marshal(r)
		var back Reason
		if err != nil || string(text) != strconv.Quote(want) || json.Unmarshal(text, &back) != nil || back != r || r.String() != want {
			t.Errorf("%d: text %s (%v), read as %s; want %s", r, text, err, back, want)
		}
	}
	if _, err := Reason(7).MarshalText(); err == nil || Reason(7).String() != "Reason(7)" {
		t.Errorf("Reason(7) has the text %s and the error %v", Reason(7), err)
	}
	if err := new(Reason).UnmarshalText([]byte("none")); err == nil {
		t.Error(`"none" was read as a reason`)
	}
}
