package piecewise_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"pwc/attention"
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

const (
	blockSize = 16
	kvBlocks  = 8
)

// golden is a checkpoint of transformers, with results that transformers computed
// (testdata/hf/README.md).
type golden struct {
	model  *hf.Model
	source *safetensors.Set
	ids    []int32
	logits []float32 // [rows, vocab], of transformers in f32
	vocab  int
	table  []int32 // blocks of the request
	block  int     // tokens of each

	// bound is the largest relative error against logits: 1e-4 in f32, in bf16 1.5
	// times the error of transformers' bf16 logits.
	bound float64
	// same is the largest relative difference between the logits of a token that is
	// decoded alone and those of the same token in a prefill.
	same float64
}

// scattered are blocks in no order, so that a cache which ignored the table would give other logits.
var scattered = []int32{5, 2, 7, 0}

func openGolden(t testing.TB, name string) golden { return openGoldenIn(t, name, dtype.F32) }

func openGoldenIn(t testing.TB, name string, dt dtype.DType) golden {
	t.Helper()
	context := int64(64)
	if name == "llama_dynamic_long" { // transformers used the frequencies for 33 tokens in each forward
		context = 33
	}
	return openGoldenWith(t, name, hf.Options{DType: dt, BlockSize: blockSize, Context: context})
}

func openGoldenWith(t testing.TB, name string, o hf.Options) golden {
	t.Helper()
	dir := filepath.Join("..", "testdata", "hf", name)
	m, err := hf.Builtin().ImportDir(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	src, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	exp, err := safetensors.Open(filepath.Join(dir, "expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer exp.Close()
	ids, err := exp.Tensor("input_ids")
	if err != nil {
		t.Fatal(err)
	}
	floats := func(name string) ([]float32, int) {
		x, err := exp.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]float32, x.Shape[0]*x.Shape[1])
		for i := range out {
			out[i] = f32(x.Data, int64(i))
		}
		return out, int(x.Shape[1])
	}
	g := golden{model: m, source: src, table: scattered, block: int(o.BlockSize), bound: 1e-4, same: 1e-5}
	g.logits, g.vocab = floats("logits")
	if o.DType == dtype.BF16 {
		rounded, _ := floats("logits_bf16")
		g.bound = 1.5 * relative(rounded, g.logits)
		g.same = g.bound
	}
	for i := range ids.Shape[0] {
		g.ids = append(g.ids, int32(binary.LittleEndian.Uint32(ids.Data[4*i:])))
	}
	return g
}

func (g golden) backend(t testing.TB, o piecewise.Options) *piecewise.Backend {
	t.Helper()
	if o.Device == nil {
		o.Device = openHost(t)
	}
	if o.Compile.Compiler == nil {
		o.Compile.Compiler = pieces.Pipeline{Backend: host.New()}
		o.Ops = []device.Op{attnhost.New(o.Device.(*hostdev.Device))}
	}
	if o.Memory.Symbols == nil {
		o.Memory.Symbols = map[string]int64{"B": kvBlocks}
	}
	if o.Memory.Max == nil {
		o.Memory.Max = map[string]int64{"N": 64, "M": 64}
	}
	ctx := context.Background()
	b, err := piecewise.New(ctx, g.model.Module, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := b.Load(ctx, g.source, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.Seal(); err != nil {
		t.Fatal(err)
	}
	return b
}

// forward runs tokens [from, to) of the ids as one request through the paged
// cache and returns the logits of each of them.
func (g golden) forward(t testing.TB, b *piecewise.Backend, from, to int) []float32 {
	t.Helper()
	return read(t, g.issue(t, b, g.ids, from, to).At(0))
}

// issue is forward for the given tokens, without waiting for the logits.
func (g golden) issue(t testing.TB, b *piecewise.Backend, tokens []int32, from, to int) piecewise.Results {
	t.Helper()
	ctx := context.Background()
	n := int64(to - from)
	batch := attention.NewBatch(1, 64, kvBlocks)
	if err := batch.Add(from, to-from, g.table, g.block); err != nil {
		t.Fatal(err)
	}
	fwd, logits := b.Func("forward"), b.Func("logits")
	inputs := func(f *piecewise.Func) piecewise.Inputs {
		for {
			in, err := f.Inputs(n)
			if errors.Is(err, piecewise.ErrSlotBusy) {
				continue // the device is behind by as many runs as there are slots
			}
			if err != nil {
				t.Fatal(err)
			}
			return in
		}
	}
	in := inputs(fwd)
	in.SetUniform(n == 1)
	ids, err := in.Int32s("ids")
	if err != nil {
		t.Fatal(err)
	}
	pos, err := in.Int32s("pos")
	if err != nil {
		t.Fatal(err)
	}
	for i := range ids {
		ids[i], pos[i] = tokens[from+i], int32(from+i)
	}
	h, err := fwd.Run(ctx, in, batch)
	if err != nil {
		t.Fatal(err)
	}
	lin := inputs(logits)
	if err := lin.SetResult("h", h.At(0)); err != nil {
		t.Fatal(err)
	}
	rows, err := lin.Int32s("rows")
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		rows[i] = int32(i)
	}
	r, err := logits.Run(ctx, lin, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// holdLogits compares logits with those of transformers: of a prefill, of prefixes of
// it at exact and padded sizes, and of the same tokens one by one through the paged
// cache.
func (g golden) holdLogits(t testing.TB, b *piecewise.Backend) {
	t.Helper()
	prefill := g.forward(t, b, 0, len(g.ids))
	if e := relative(prefill, g.logits); !(e <= g.bound) {
		t.Fatalf("%d rows: relative error %.3g, want at most %.3g", len(g.ids), e, g.bound)
	}
	for _, n := range []int{1, 2, 3, 4, 8, 13, 16} {
		if e := relative(g.forward(t, b, 0, n), g.logits[:n*g.vocab]); !(e <= g.bound) {
			t.Errorf("first %d rows: relative error %.3g, want at most %.3g", n, e, g.bound)
		}
	}
	var decoded []float32
	for i := range g.ids {
		got := g.forward(t, b, i, i+1)
		if e := relative(got, prefill[i*g.vocab:][:g.vocab]); !(e <= g.same) {
			t.Errorf("token %d decoded alone differs from the prefill by %.3g, want at most %.3g", i, e, g.same)
		}
		decoded = append(decoded, got...)
	}
	if e := relative(decoded, g.logits); !(e <= g.bound) {
		t.Errorf("decoded token by token: relative error %.3g, want at most %.3g", e, g.bound)
	}
}

// relative returns ‖a−b‖/‖b‖.
func relative(a, b []float32) float64 {
	var d, n float64
	for i := range b {
		d += (float64(a[i]) - float64(b[i])) * (float64(a[i]) - float64(b[i]))
		n += float64(b[i]) * float64(b[i])
	}
	return math.Sqrt(d / n)
}

// TestTransformersLogits compares the logits of each checkpoint with those of transformers in mode
// full-and-piecewise, and of three checkpoints in modes none, piecewise and full too.
func TestTransformersLogits(t *testing.T) {
	dirs, err := os.ReadDir(filepath.Join("..", "testdata", "hf"))
	if err != nil {
		t.Fatal(err)
	}
	families := 0
	for _, d := range dirs {
		if !d.IsDir() {
			continue
		}
		families++
		name := d.Name()
		g := openGolden(t, name)
		modes := []piecewise.Mode{piecewise.FullAndPiecewise}
		if name == "llama" || name == "qwen2" || name == "qwen3" {
			modes = append(modes, piecewise.None, piecewise.Piecewise, piecewise.Full)
		}
		for _, mode := range modes {
			t.Run(fmt.Sprintf("%s/%s", name, mode), func(t *testing.T) {
				b := g.backend(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 2, 4, 8, 16, 24}}})
				g.holdLogits(t, b)
				s := b.Stats()
				want := map[piecewise.Mode][3]int64{piecewise.None: {0, 0, 62}, piecewise.Piecewise: {62, 0, 0}, piecewise.Full: {0, 62, 0}}
				if w, ok := want[mode]; ok && (s.Replays != w[0] || s.FullReplays != w[1] || s.EagerRuns != w[2]) {
					t.Errorf("replays %d, full %d, eager %d; want %v", s.Replays, s.FullReplays, s.EagerRuns, w)
				}
			})
		}
	}
	if families < 3 {
		t.Errorf("%d checkpoints found", families)
	}
}

// In f32 a row's result does not depend on the other rows of the step, on the padded
// size, or on the rows that have the same expert.
func TestRowsDoNotDependOnTheBatch(t *testing.T) {
	for _, name := range []string{"llama", "mixtral", "qwen3_moe"} {
		g := openGolden(t, name)
		b := g.backend(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4, 24}}, Device: hostdev.Open(hostdev.Options{Workers: 3})})
		all := g.forward(t, b, 0, len(g.ids))
		few := g.forward(t, b, 0, 3)
		for i, v := range few {
			if math.Float32bits(v) != math.Float32bits(all[i]) {
				t.Fatalf("%s: logit %d of row %d: %v in a batch of 4, %v in a batch of 24", name, i%g.vocab, i/g.vocab, v, all[i])
			}
		}
	}
}

// C5 for a model of two functions: for every size of the default list, steps are bound
// to as many bytes of the arena as were planned.
func TestPlannedBytesOfAModel(t *testing.T) {
	g := openGolden(t, "llama")
	for _, n := range piecewise.DefaultCaptureSizes(512) {
		b := g.backend(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{n}}, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": n, "M": n}}})
		plan := b.Plan()
		if got := b.Stats().ArenaBytesTaken; got != plan.ArenaBytes[n] || got != plan.PeakArenaBytes {
			t.Errorf("size %d: planned %d arena bytes, peak %d; took %d", n, plan.ArenaBytes[n], plan.PeakArenaBytes, got)
		}
	}
}
