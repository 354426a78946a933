package runner

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pwc/attention"
	"pwc/frontend/hf"
	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/safetensors"
)

// maker makes and loads a runner on some device, or skips the test.
type maker func(t testing.TB, m *hf.Model, src safetensors.Source, o Options) *Runner

// checkpointAs opens a checkpoint in a dtype.
func checkpointAs(t testing.TB, name string, dt dtype.DType) (*hf.Model, safetensors.Source) {
	t.Helper()
	dir := filepath.Join(checkpoints, name)
	m, err := hf.Builtin().ImportDir(dir, hf.Options{DType: dt, BlockSize: blockSize, Context: contextOf(name)})
	if err != nil {
		t.Fatal(err)
	}
	src, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return m, src
}

// contextOf returns the context length of the expected tensors: the rotary angles of some models depend
// on it.
func contextOf(name string) int64 {
	if n, ok := map[string]int64{"llama": 4096, "llama_dynamic": 64, "llama_dynamic_long": 33}[name]; ok {
		return n
	}
	return 128
}

// tensor reads a tensor that transformers computed, as float32 numbers.
func tensor(t testing.TB, checkpoint, name string) []float32 {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(checkpoints, checkpoint, "expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := f.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]float32, len(x.Data)/4)
	for i := range out {
		bits := binary.LittleEndian.Uint32(x.Data[4*i:])
		if out[i] = math.Float32frombits(bits); x.DType == dtype.I32 {
			out[i] = float32(int32(bits))
		}
	}
	return out
}

// forced runs sequences with given tokens (teacher forcing) in steps like those of the runner, with
// its functions, capture sizes and paged cache. A step has the next tokens of every sequence, at
// most perStep of each. forced returns the logits of all rows. The runner must be idle, and must have MaxTokens
// equal to MaxSequences, because every row needs logits.
func forced(t testing.TB, r *Runner, seqs [][]int32, perStep int) [][][]float32 {
	t.Helper()
	ctx := context.Background()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(r.pool.Stream().Synchronize())
	size := int(r.lm.blockSize)
	tables, next := make([][]int32, len(seqs)), int32(0)
	most := 0
	for i, ids := range seqs {
		for range r.blocksFor(len(ids)) {
			tables[i] = append(tables[i], next)
			next++
		}
		most = max(most, len(ids))
	}
	out := make([][][]float32, len(seqs))
	for at := 0; at < most; at += perStep {
		batch := attention.NewBatch(len(seqs), r.opts.MaxTokens, r.blocksFor(most))
		var ids, positions []int32
		var of []int
		for i, s := range seqs {
			n := min(perStep, len(s)-at)
			if n <= 0 {
				continue
			}
			check(batch.Add(at, n, tables[i], size))
			for j := range n {
				ids, positions, of = append(ids, s[at+j]), append(positions, int32(at+j)), append(of, i)
			}
		}
		in, err := r.forward.Inputs(int64(len(ids)))
		check(err)
		in.SetUniform(perStep == 1)
		dst, err := in.Int32s(r.lm.params[0])
		check(err)
		copy(dst, ids)
		dst, err = in.Int32s(r.lm.params[1])
		check(err)
		copy(dst, positions)
		hidden, err := r.forward.Run(ctx, in, batch)
		check(err)
		in, err = r.logits.Inputs(int64(len(ids)))
		check(err)
		in.SetUniform(perStep == 1)
		check(in.SetResult(r.lm.params[2], hidden.At(0)))
		dst, err = in.Int32s(r.lm.params[3])
		check(err)
		for i := range dst {
			dst[i] = int32(i)
		}
		logits, err := r.logits.Run(ctx, in, nil)
		check(err)
		raw := make([]byte, 4*int64(len(ids))*r.lm.vocabulary)
		check(logits.At(0).CopyTo(raw))
		for row, i := range of {
			x := make([]float32, r.lm.vocabulary)
			for j := range x {
				x[j] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*(row*len(x)+j):]))
			}
			out[i] = append(out[i], x)
		}
	}
	return out
}

// apart returns the relative distance of two tensors: ‖a−b‖/‖b‖.
func apart(a, b []float32) float64 {
	d, n := 0.0, 0.0
	for i := range b {
		x, y := float64(a[i]), float64(b[i])
		d, n = d+(x-y)*(x-y), n+y*y
	}
	return math.Sqrt(d / n)
}

// families lists the checkpoints.
func families(t testing.TB) []string {
	t.Helper()
	dirs, err := os.ReadDir(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range dirs {
		if d.IsDir() {
			out = append(out, d.Name())
		}
	}
	return out
}

// teacherForced compares the logits of every checkpoint with those of transformers for given tokens, in
// chunks and token by token, with three sequences of different lengths in a batch. In bf16, the
// distance to the f32 logits of transformers may be twice that of its own bf16 logits, because rounding
// and the order of sums differ.
func teacherForced(t *testing.T, open maker, dt dtype.DType) {
	for _, name := range families(t) {
		t.Run(name, func(t *testing.T) {
			m, src := checkpointAs(t, name, dt)
			r := open(t, m, src, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 4, 16, 24}}}, MaxSequences: 24, MaxTokens: 24, MaxLength: min(64, int(m.MaxPositions)), Blocks: 60})
			var ids []int32
			for _, x := range tensor(t, name, "input_ids") {
				ids = append(ids, int32(x))
			}
			want, worst := tensor(t, name, "logits"), 0.0
			tolerance := 1e-5
			if dt == dtype.BF16 {
				tolerance = 2 * apart(tensor(t, name, "logits_bf16"), want)
			}
			for _, each := range []int{1, 7} { // decode steps, and steps of chunks
				for _, got := range forced(t, r, [][]int32{ids, ids[:9], ids[:17]}, each) {
					all := slices.Concat(got...)
					if d := apart(all, want[:len(all)]); !(d <= tolerance) {
						t.Errorf("%s, chunks of %d, %d tokens: logits are %.2g apart, want at most %.2g", dt, each, len(got), d, tolerance)
					} else {
						worst = max(worst, d)
					}
				}
			}
			t.Logf("%.2g apart at most, of %.2g", worst, tolerance)
			if s := r.Backend().Stats(); s.EagerRuns > 0 {
				t.Errorf("%d runs without graphs: %v", s.EagerRuns, s.Skipped)
			}
		})
	}
}

func onHost(t testing.TB, m *hf.Model, src safetensors.Source, o Options) *Runner {
	return loaded(t, m, src, o)
}

func TestTransformersLogits(t *testing.T)     { teacherForced(t, onHost, dtype.F32) }
func TestTransformersLogitsBF16(t *testing.T) { teacherForced(t, onHost, dtype.BF16) }

// together returns the answers of requests that run together, and of each request without others.
func together(t *testing.T, r *Runner, list []Request) (got, want [][]int32) {
	t.Helper()
	want = alone(t, r, list)
	seqs := make([]*Sequence, len(list))
	for i, q := range list {
		seqs[i] = submit(t, r, q)
	}
	drain(t, r)
	for _, s := range seqs {
		if s.Err() != nil {
			t.Fatal(s.Err())
		}
		got = append(got, s.IDs())
	}
	return got, want
}

// closeLogits is a distance of two logits, relative to the largest logit. Closer logits in bf16 may
// change their order: each layer rounds a few times to 8 bits.
const closeLogits = 3e-2

// margins compares greedy answers in bf16 of requests that run together with those of each request
// without others. They must be equal up to a token at which the two logits are closer than closeLogits.
func margins(t *testing.T, open maker) {
	for _, name := range []string{"llama", "mixtral", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			m, src := checkpointAs(t, name, dtype.BF16)
			o := Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 4, 16, 32, 64}}}, MaxSequences: 64, MaxTokens: 64, MaxLength: 64, Blocks: 32 * 12}
			r := open(t, m, src, o)
			list := mixture(3, 32, 20)
			for i := range list {
				list[i].Sampling = Sampling{}
				for j, id := range list[i].Prompt {
					list[i].Prompt[j] = id % int32(r.lm.vocabulary)
				}
			}
			got, want := together(t, r, list)
			differ := 0
			for i := range list {
				if slices.Equal(got[i], want[i]) {
					continue
				}
				differ++
				at := 0
				for got[i][at] == want[i][at] {
					at++
				}
				logits := forced(t, r, [][]int32{want[i][:at]}, 1)[0][at-1]
				scale := 0.0
				for _, x := range logits {
					scale = max(scale, math.Abs(float64(x)))
				}
				margin := math.Abs(float64(logits[got[i][at]]) - float64(logits[want[i][at]]))
				if margin > closeLogits*scale {
					t.Errorf("request %d: token %d is %d, alone %d, whose logits are %.3g of %.3g apart", i, at, got[i][at], want[i][at], margin, scale)
				}
			}
			t.Logf("%d of %d answers differ", differ, len(list))
		})
	}
}

func TestMargins(t *testing.T) { margins(t, onHost) }
