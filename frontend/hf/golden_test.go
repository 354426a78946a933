package hf_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"pwc/frontend/hf"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/safetensors"
)

// runner runs an imported model in the interpreter, on all its ranks, for one sequence whose KV blocks are in order.
type runner struct {
	m    *hf.Model
	envs []*interp.Env // by rank
	pos  []int64       // positions of the step's tokens
}

const blocks = 3

func newRunner(t *testing.T, m *hf.Model, src safetensors.Source) *runner {
	t.Helper()
	r := &runner{m: m}
	for rank := range m.Module.World() {
		r.envs = append(r.envs, r.newEnv(t, rank, src))
	}
	return r
}

func (r *runner) newEnv(t *testing.T, rank int, src safetensors.Source) *interp.Env {
	t.Helper()
	m := r.m
	env := &interp.Env{
		Weights: map[string]*interp.Tensor{}, States: map[string]*interp.Tensor{}, Symbols: map[string]int64{"B": blocks},
		Externs: map[string]interp.Extern{hf.AttentionOp: r.attention},
	}
	for _, w := range m.Module.Weights {
		v, err := interp.EvalWeight(context.Background(), m.Module, m.Module.WeightOf(w, rank), func(name string) (*interp.Tensor, error) {
			x, err := src.Tensor(name)
			if err != nil {
				return nil, err
			}
			return interp.FromBytes(x.DType, x.Shape, x.Data)
		})
		if err != nil {
			t.Fatal(err)
		}
		env.Weights[w.Name] = v
	}
	for _, s := range m.Module.States {
		shape := make([]int64, s.Type.Rank())
		for i, d := range s.Type.Shape {
			shape[i], _ = d.Eval(func(string) (int64, bool) { return blocks, true })
		}
		z, err := interp.Zeros(s.Type.DType, shape)
		if err != nil {
			t.Fatal(err)
		}
		env.States[s.Name] = z
	}
	return env
}

// attention is a direct implementation of the extern op: it appends k and v to the cache, and computes
// softmax(q·k·scale)·v over the positions that each token attends to.
func (r *runner) attention(c *interp.Call) error {
	q, k, v, cache, out := c.Args[0], c.Args[1], c.Args[2], c.Args[3], c.Args[4]
	var scale float64
	window, limit := int64(math.MaxInt64), math.Inf(1)
	for _, a := range c.Attrs {
		switch a.Name {
		case "scale":
			scale = a.Float
		case "window":
			window, _ = a.Dim.Const()
		case "softcap":
			limit = a.Float
		default:
			return fmt.Errorf("unknown attribute %s", a.Name)
		}
	}
	heads, size, kvHeads, block := q.Shape[1], q.Shape[2], k.Shape[1], cache.Shape[2]
	// at returns the index in the cache of element 0 of the key (which = 0) or the value (1) of a position.
	at := func(pos, which, head int64) int {
		return int((((pos/block)*2+which)*block+pos%block)*kvHeads*size + head*size)
	}
	for i, pos := range r.pos {
		for h := range kvHeads {
			for e := range size {
				from := (int64(i)*kvHeads+h)*size + e
				cache.Set(at(pos, 0, h)+int(e), k.At(int(from)))
				cache.Set(at(pos, 1, h)+int(e), v.At(int(from)))
			}
		}
	}
	for i, pos := range r.pos {
		first := max(0, pos-window+1)
		for h := range heads {
			from := (i*int(heads) + int(h)) * int(size)
			kv := h / (heads / kvHeads)
			score := make([]float64, pos-first+1)
			for j := range score {
				for e := range int(size) {
					score[j] += q.At(from+e) * cache.At(at(first+int64(j), 0, kv)+e)
				}
				score[j] *= scale
				if !math.IsInf(limit, 0) {
					score[j] = limit * math.Tanh(score[j]/limit)
				}
			}
			top, sum := slices.Max(score), 0.0
			for j := range score {
				score[j] = math.Exp(score[j] - top)
				sum += score[j]
			}
			for e := range int(size) {
				x := 0.0
				for j := range score {
					x += score[j] / sum * cache.At(at(first+int64(j), 1, kv)+e)
				}
				out.Set(from+e, x)
			}
		}
	}
	return nil
}

// step runs tokens at the positions first, first+1, … and returns the logits of the given rows.
func (r *runner) step(t *testing.T, ids []int32, first int64, rows ...int32) *interp.Tensor {
	t.Helper()
	r.pos = nil
	pos := make([]int32, len(ids))
	for i := range pos {
		pos[i] = int32(first) + int32(i)
		r.pos = append(r.pos, int64(pos[i]))
	}
	vec := func(v []int32) *interp.Tensor {
		x, err := interp.FromI32([]int64{int64(len(v))}, v)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	run := func(name string, in ...*interp.Tensor) *interp.Tensor {
		out, err := interp.RunRanks(context.Background(), r.m.Module, r.m.Module.Func(name), r.envs, slices.Repeat([][]*interp.Tensor{in}, len(r.envs)))
		if err != nil {
			t.Fatal(err)
		}
		for rank := range out {
			if !bytes.Equal(out[rank][0].Bytes(), out[0][0].Bytes()) {
				t.Fatalf("@%s has other results on rank %d than on rank 0", name, rank)
			}
		}
		return out[0][0]
	}
	return run("logits", run("forward", vec(ids), vec(pos)), vec(rows))
}

// golden is a checkpoint with the results of transformers for it.
type golden struct {
	checkpoint, expected safetensors.Source
	dir                  string
}

func openGolden(t *testing.T, name string) golden {
	t.Helper()
	dir := "../../testdata/hf/" + name
	set, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(dir + "/expected.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return golden{set, f, dir}
}

func (g golden) values(t *testing.T, name string) []float64 {
	t.Helper()
	x, err := g.expected.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	v, err := interp.FromBytes(x.DType, x.Shape, x.Data)
	if err != nil {
		t.Fatal(err)
	}
	return v.Float64s()
}

func (g golden) ids(t *testing.T, name string) []int32 {
	var ids []int32
	for _, v := range g.values(t, name) {
		ids = append(ids, int32(v))
	}
	return ids
}

func importGolden(t *testing.T, g golden, o hf.Options) *hf.Model {
	t.Helper()
	m, err := hf.Builtin().ImportDir(g.dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func largestDifference(a, b []float64) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	d := 0.0
	for i := range a {
		d = max(d, math.Abs(a[i]-b[i])) // a NaN gives NaN, which fails every bound
	}
	return d
}

func rowsOf(n int) []int32 {
	rows := make([]int32, n)
	for i := range rows {
		rows[i] = int32(i)
	}
	return rows
}

// goldens are the checkpoints in testdata/hf, with the options for their import.
func goldens() map[string]hf.Options {
	return map[string]hf.Options{
		"gemma2":              {},
		"gemma3":              {}, // a window in every layer
		"gemma3_full":         {}, // one layer without a window, whose rope is scaled
		"gpt2":                {},
		"gpt2_scaled":         {}, // scores scaled by layer, another activation, a head that is not tied
		"gpt_neox":            {},
		"gpt_neox_sequential": {}, // no parallel residual, no biases in attention, a tied head
		"granite":             {},
		"llama":               {},
		"llama_yarn":          {},
		"mistral":             {},
		"mixtral":             {},
		"olmo2":               {},
		"phi3":                {},             // the rope rotates half of each head
		"phi3_longrope":       {Context: 128}, // longer than the original context
		"qwen2":               {},
		"qwen3":               {},
		"qwen3_moe":           {}, // a dense layer between layers of experts
		"qwen3_moe_stepped":   {}, // experts in every second layer, scores that are not normalized, windows, biases
		"starcoder2":          {},
		"falcon3":             {},
		"cohere":              {},
		"cohere2":             {},
		"cohere_qknorm":       {},
		"exaone4":             {},
		"exaone4_full":        {},
		"gemma":               {},
		"gemma_gelu":          {},
		"gemma3_vl":           {},
		"glm":                 {},
		"glm4":                {},
		"glm4_full":           {},
		"llama_dynamic":       {},
		"llama_yarn_default":  {},
		"llama_yarn_mscale":   {},
		"ministral3":          {},
		"mistral3_ministral3": {},
		"mistral3_vl":         {},
		"olmo3":               {},
		"olmo3_bias":          {},
		"phi":                 {},
		"phi_qknorm":          {},
		"qwen2_5_vl":          {},
		"qwen2_moe":           {},
		"qwen2_moe_window":    {},
		"qwen2_vl":            {},
		"qwen3_vl":            {},
		"qwen3_vl_moe":        {},
		"smollm3":             {},
		"smollm3_interval":    {},
		"llama_dynamic_long":  {Context: 33},
	}
}

// TestLogits compares logits of imported models with those of transformers, which are in testdata/hf.
func TestLogits(t *testing.T) {
	for name, o := range goldens() {
		t.Run(name, func(t *testing.T) {
			g := openGolden(t, name)
			ids, want := g.ids(t, "input_ids"), g.values(t, "logits")
			exact := o
			exact.DType = dtype.F32
			r := newRunner(t, importGolden(t, g, exact), g.checkpoint)
			got := r.step(t, ids, 0, rowsOf(len(ids))...)
			if d := largestDifference(got.Float64s(), want); !(d <= 1e-4) {
				t.Errorf("f32: logits differ by %g", d)
			}
			// pwc rounds to bf16 at other nodes than the reference. Its error may be up to twice the reference's.
			off := largestDifference(g.values(t, "logits_bf16"), want)
			r = newRunner(t, importGolden(t, g, o), g.checkpoint)
			got = r.step(t, ids, 0, rowsOf(len(ids))...)
			if d := largestDifference(got.Float64s(), want); !(d <= 2*off) || d == 0 {
				t.Errorf("bf16: logits differ by %g, the reference's by %g", d, off)
			}
		})
	}
}

// TestGreedy runs a prompt in two steps, then decodes token by token with the KV cache.
func TestGreedy(t *testing.T) {
	for name, o := range goldens() {
		o.DType = dtype.F32
		greedy(t, name, o)
	}
}

// greedy requires the same tokens as the reference.
func greedy(t *testing.T, name string, o hf.Options) {
	t.Helper()
	g := openGolden(t, name)
	want := g.ids(t, "greedy")
	r := newRunner(t, importGolden(t, g, o), g.checkpoint)
	got := slices.Clone(want[:9])
	r.step(t, got[:4], 0, 3)
	next := r.step(t, got[4:], 4, 4)
	for {
		v := next.Float64s()
		got = append(got, int32(slices.Index(v, slices.Max(v))))
		if len(got) == len(want) {
			break
		}
		next = r.step(t, got[len(got)-1:], int64(len(got)-1), 0)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: decoded %v, want %v", name, got, want)
	}
}

// TestDummyRuns runs models with dummy weights. Logits must be finite and differ between tokens.
func TestDummyRuns(t *testing.T) {
	for name, o := range goldens() {
		g := openGolden(t, name)
		m := importGolden(t, g, o)
		r := newRunner(t, m, hf.Dummy(m.Params))
		got := r.step(t, []int32{1, 2, 3}, 0, 1, 2).Float64s()
		for _, v := range got {
			if math.IsNaN(v) || math.IsInf(v, 0) || math.Abs(v) > 100 {
				t.Fatalf("%s: logit %v", name, v)
			}
		}
		if half := len(got) / 2; slices.Equal(got[:half], got[half:]) {
			t.Errorf("%s: two tokens have the same logits", name)
		}
	}
}
