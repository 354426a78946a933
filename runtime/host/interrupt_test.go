package host

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
	"pwc/runtime/device"
)

// still is an access that stays at one element, for an iteration space of any size.
func still(arg int32, outer int) vec.Access {
	a := vec.Access{Arg: arg, DType: dtype.F32, Inner: testkit.Consts(0)}
	for range outer {
		a.Outer = append(a.Outer, dim.Const(0))
	}
	return a
}

// endless are kernels of different forms that visit 2^35 elements or more. They end early only if the loops
// that run them look at the stream's context.
func endless() map[string]*vec.Kernel {
	const many = 1 << 35
	load, store := vec.Instr{Op: vec.OpLoadF, X: 0}, vec.Instr{Op: vec.OpStoreF, X: 1}
	loop := func(outer, inner []dim.Dim, phases ...vec.Phase) *vec.Kernel {
		return &vec.Kernel{Args: 2, Loop: vec.Loop{Outer: outer, Inner: inner, Regs: vec.RegCount{F: 1, SF: 1}, Phases: phases,
			Access: []vec.Access{still(0, len(outer)), still(1, len(outer))}}}
	}
	one := vec.Phase{Body: []vec.Instr{load, store}}
	matMul := product(1, 1, 1, many, dtype.F32, dtype.F32, dtype.F32, false)
	matMul.MatMul.A.Row, matMul.MatMul.A.Col, matMul.MatMul.A.Batch = dim.Const(0), dim.Const(0), testkit.Consts(0)
	matMul.MatMul.B.Row, matMul.MatMul.B.Col, matMul.MatMul.B.Batch = dim.Const(0), dim.Const(0), testkit.Consts(0)
	rows := product(1, many, 1, 1, dtype.F32, dtype.F32, dtype.F32, false)
	rows.MatMul.A.Row, rows.MatMul.A.Batch, rows.MatMul.B.Batch = dim.Const(0), testkit.Consts(0), testkit.Consts(0)
	rows.Loop.Access[0].Outer = testkit.Consts(0, 0)
	top := selection(1, many, 1, dtype.F32)
	top.TopK.In = still(0, 1)
	forward, backward := attentionKernel(1, 1, 1, 1, 1, dtype.F32, false), attentionKernel(1, 1, 1, 1, 1, dtype.F32, true)
	for _, k := range []*vec.Kernel{forward, backward} {
		a := k.Attention
		a.Keys, a.Causal = dim.Const(many), false // one query, so that the first part is endless
		for _, x := range []*vec.Access{&a.Q, &a.K, &a.V, &a.Out} {
			x.Inner = testkit.Consts(0, 0, 0)
		}
		a.LSE.Inner = testkit.Consts(0, 0)
	}
	g := backward.Attention.Grad
	g.Delta.Inner, g.DQ.Inner, g.DK.Inner, g.DV.Inner = testkit.Consts(0, 0), testkit.Consts(0, 0, 0), testkit.Consts(0, 0, 0), testkit.Consts(0, 0, 0)
	return map[string]*vec.Kernel{
		"attention": forward, "its gradient": backward,
		"elements":      loop(nil, testkit.Consts(many), one),
		"rows":          loop(testkit.Consts(many), testkit.Consts(1), one, one),
		"rows of rows":  loop(testkit.Consts(1<<18, 1<<17), testkit.Consts(1), one, one),
		"one long row":  loop(testkit.Consts(1), testkit.Consts(many), vec.Phase{Body: []vec.Instr{load, {Op: vec.OpSum}}}, vec.Phase{Scalar: []vec.Instr{{Op: vec.OpConstF}, store}}),
		"only scalars":  loop(testkit.Consts(many), testkit.Consts(1), vec.Phase{Scalar: []vec.Instr{{Op: vec.OpConstF}, store}}),
		"a long sum":    matMul,
		"many products": rows,
		"a selection":   top,
	}
}

func endlessArgs(name string) []tensor {
	switch name {
	case "attention":
		return slices.Repeat([]tensor{zeros(dtype.F32, 1)}, 5)
	case "its gradient":
		return slices.Repeat([]tensor{zeros(dtype.F32, 1)}, 9)
	case "a long sum", "many products":
		return []tensor{zeros(dtype.F32, 1), zeros(dtype.F32, 1), zeros(dtype.F32, 1)}
	case "a selection":
		return []tensor{zeros(dtype.F32, 1), zeros(dtype.F32, 1), zeros(dtype.I32, 1)}
	}
	return []tensor{zeros(dtype.F32, 1), zeros(dtype.F32, 1)}
}

// TestEndlessKernelsEnd: the end of the context ends the endless kernels while they run, launched and replayed,
// on one worker and on three; with the race detector on one, because all lanes write to one element. Operations
// that are enqueued later fail, too, until the stream is given another context. If a loop did not look at the
// context, this test would take minutes or longer.
func TestEndlessKernelsEnd(t *testing.T) {
	cause := errors.New("enough")
	for _, workers := range []int{1, 3} {
		if workers > 1 && testkit.RaceDetector {
			continue
		}
		d := openDevice(t, workers)
		for name, k := range endless() {
			l := load(t, d, k, endlessArgs(name)...)
			s := l.stream.(*Stream)
			if err := s.BeginCapture(device.CaptureThreadLocal); err != nil {
				t.Fatal(err)
			}
			if err := s.Launch(l.launch); err != nil {
				t.Fatal(err)
			}
			g, err := s.EndCapture()
			if err != nil {
				t.Fatal(err)
			}
			for what, run := range map[string]func() error{"launch": func() error { return s.Launch(l.launch) }, "replay": func() error { return s.LaunchGraph(g) }} {
				ctx, cancel := context.WithCancelCause(context.Background())
				s.Until(ctx)
				time.AfterFunc(5*time.Millisecond, func() { cancel(cause) }) // later, since no part begins once the context has ended
				if err := run(); !errors.Is(err, cause) || !errors.Is(s.Ended(), cause) {
					t.Errorf("%s, %d workers, %s: %v, Ended: %v, want the context's cause", name, workers, what, err, s.Ended())
				}
				if err := s.Fill(l.mem[0], 0); !errors.Is(err, cause) {
					t.Errorf("%s: a fill after the end: %v, want the context's cause", name, err)
				}
				s.Until(context.Background())
				if err := s.Fill(l.mem[0], 0); err != nil || s.Ended() != nil {
					t.Errorf("%s: a fill with another context: %v, %v", name, err, s.Ended())
				}
			}
		}
	}
}

// TestKeyGradientsEnd: a part of the gradients of keys ends with the context, too. The test runs the part itself,
// because in a launch the parts of queries come first.
func TestKeyGradientsEnd(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	const name = "its gradient"
	k := endless()[name]
	k.Attention.Queries, k.Attention.Keys = k.Attention.Keys, k.Attention.Queries
	l := load(t, openDevice(t, 1), k, endlessArgs(name)...)
	s := l.stream.(*Stream)
	s.Until(ended)
	kernel := l.launch.(*bound).steps[0].node.kernel
	kernel.run(kernel.attend.queryParts, &lane{stop: &s.until})
	if !errors.Is(s.Ended(), context.Canceled) {
		t.Errorf("Ended: %v, want Canceled", s.Ended())
	}
}

// TestVisitsBetweenLooks counts the visits that are made although the context has ended: none by a launch, and
// by a lane that has just looked, no more than lookEvery.
func TestVisitsBetweenLooks(t *testing.T) {
	const n = 8 << 20
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	d := openDevice(t, 1)
	for name, outer := range map[string][]dim.Dim{"elements": nil, "rows of 8": testkit.Consts(n / 8), "rows of 2^20": testkit.Consts(n >> 20)} {
		inner := int64(n)
		a := flat(0, dtype.F32)
		if outer != nil {
			rows, _ := outer[0].Const()
			inner = n / rows
			a.Outer = testkit.Consts(inner)
		}
		k := &vec.Kernel{Args: 1, Loop: vec.Loop{Outer: outer, Inner: testkit.Consts(inner), Regs: vec.RegCount{F: 1}, Access: []vec.Access{a},
			Phases: []vec.Phase{{Body: []vec.Instr{{Op: vec.OpConstF, F: 1}, {Op: vec.OpStoreF, X: 0}}}}}}
		l := load(t, d, k, zeros(dtype.F32, n))
		s := l.stream.(*Stream)
		data, err := d.Bytes(l.mem[0])
		if err != nil {
			t.Fatal(err)
		}
		visits := func() (visits int) {
			for i := 0; i < len(data); i += 4 {
				if data[i+3] != 0 {
					visits++
				}
			}
			return visits
		}
		s.Until(ended)
		if err := s.Launch(l.launch); !errors.Is(err, context.Canceled) || visits() != 0 {
			t.Errorf("%s: a launch after the end: %v, %d visits, want Canceled and 0", name, err, visits())
		}
		l.launch.(*bound).steps[0].node.kernel.run(0, &lane{stop: &s.until, left: lookEvery})
		if got := visits(); got == 0 || got > lookEvery {
			t.Errorf("%s: %d visits of a lane after the end, want 1 to %d", name, got, lookEvery)
		}
	}
}

// TestCopiesEnd: the end of the context also ends copies and fills that are longer than a step, and keeps
// Parallel from running parts.
func TestCopiesEnd(t *testing.T) {
	d := openDevice(t, 2)
	const n = 2*fillStep + 5
	m, err := d.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	s, b := stream.(*Stream), device.Buffer{Memory: m, Size: n}
	data, err := d.Bytes(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Fill(b, 1); err != nil || data[0] != 1 || data[n-1] != 1 {
		t.Fatalf("a fill: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	s.Until(ended)
	if err := s.Fill(b, 2); !errors.Is(err, context.Canceled) || data[n-1] != 1 {
		t.Errorf("a fill after the end: %v, want Canceled and an unchanged last byte", err)
	}
	s.Until(ended)
	if err := s.CopyToDevice(b, make([]byte, n)); !errors.Is(err, context.Canceled) || data[n-1] != 1 {
		t.Errorf("a copy after the end: %v, want Canceled and an unchanged last byte", err)
	}
	s.Until(context.Background())
	shared := make([]byte, n) // in parts, the last of which is short
	for i := range shared {
		shared[i] = byte(i >> 8 * 7)
	}
	if err := s.CopyToDevice(b, shared); err != nil || !bytes.Equal(data, shared) {
		t.Errorf("a copy that workers share differs: %v", err)
	}
	s.Until(ended)
	parts := 0
	s.Parallel(100, func(int) { parts++ })
	if parts != 0 || !errors.Is(s.Ended(), context.Canceled) || !s.Interrupted() {
		t.Errorf("%d parts ran after the end (Ended: %v), want none", parts, s.Ended())
	}
}

// TestWorkIsBounded: Bind refuses a kernel that would visit more elements than checkWork allows for its
// memory.
func TestWorkIsBounded(t *testing.T) {
	d := openDevice(t, 1)
	for name, k := range endless() {
		many := dim.Const(1 << 40)
		switch {
		case k.MatMul != nil && len(k.Loop.Outer) == 2 && name == "a long sum":
			k.MatMul.K = many
		case k.TopK != nil:
			k.TopK.N = many
		case k.Attention != nil:
			k.Attention.Queries, k.Attention.Keys = dim.Const(1<<20), dim.Const(1<<20)
		case name == "rows of rows" || name == "only scalars" || name == "rows":
			k.Loop.Outer[0] = many
		case name == "many products":
			k.Loop.Outer[1] = many
		default:
			k.Loop.Inner = []dim.Dim{many}
		}
		_, err := tryLoad(t, d, k, endlessArgs(name)...)
		var e *WorkError
		if !errors.As(err, &e) || e.Limit != visitsPerByte*minWorkBytes || e.Visits < 1<<40 || math.IsInf(e.Visits, 0) {
			t.Errorf("%s: %v, want a WorkError with the limit of %d bytes", name, err, minWorkBytes)
		}
	}
}

// TestLooksAllocateNothing holds that launches of a stream with a context allocate nothing.
func TestLooksAllocateNothing(t *testing.T) {
	d := openDevice(t, 2)
	l := load(t, d, pointwiseF(1<<16, vec.OpAdd, 2), zeros(dtype.F32, 1<<16), zeros(dtype.F32, 1<<16), empty(dtype.F32, 1<<16))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ctx.Done() // made once, when it is first asked for
	s := l.stream.(*Stream)
	if n := testing.AllocsPerRun(20, func() {
		s.Until(ctx)
		if err := s.Launch(l.launch); err != nil {
			t.Error(err)
		}
		s.Until(context.Background())
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// TestErrorsDoNotStay: an error of a lane is returned with that of the function that met it, and not by the next
// operation.
func TestErrorsDoNotStay(t *testing.T) {
	d := openDevice(t, 1)
	st := testkit.Must[device.Stream](t)(d.NewStream()).(*Stream)
	lane, own := errors.New("a lane"), errors.New("own")
	err := st.Call(func() error {
		st.until.fail(lane)
		return own
	})
	if !errors.Is(err, lane) || !errors.Is(err, own) {
		t.Errorf("%v, want both errors", err)
	}
	ran := false
	if err := st.Call(func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("the next call ran: %t, error %v", ran, err)
	}
	testkit.Check(t, st.Close())
}
