package cuda_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"pwc/attention"
	"pwc/attention/reference"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/safetensors"
)

// golden is a batch with the result of PyTorch's attention, made by testdata/sdpa.py.
type golden struct {
	Heads    int64    `json:"heads"`
	KV       int64    `json:"kv"`
	Dim      int64    `json:"dim"`
	Window   int64    `json:"window"`
	Softcap  float64  `json:"softcap"`
	Scale    float64  `json:"scale"`
	Causal   *bool    `json:"causal"`
	Requests [][2]int `json:"requests"`   // tokens in the cache, new tokens
	Error    float64  `json:"error_bf16"` // the largest error of PyTorch's result in bf16

	name string
	want *interp.Tensor // f32[rows, heads, dim]
}

func goldens(t *testing.T) []golden {
	t.Helper()
	f, err := safetensors.Open("testdata/sdpa.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	var out []golden
	for _, name := range f.Names() {
		g := golden{name: name}
		x, err := f.Tensor(name)
		if err == nil {
			err = json.Unmarshal([]byte(f.Metadata()[name]), &g)
		}
		if err == nil {
			g.want, err = interp.FromBytes(dtype.F32, x.Shape, slices.Clone(x.Data))
		}
		if err != nil {
			t.Fatal(name, ": ", err)
		}
		out = append(out, g)
	}
	return out
}

// values are sdpa.py's value(): multiples of 1/64 in [-2, 2).
func values(seed uint64, first, n int64) []float64 {
	out := make([]float64, n)
	for i := range out {
		x := uint32((uint64(first)+uint64(i))*2654435761 + seed*40503)
		x ^= x >> 16
		x *= 0x45d9f3b
		x ^= x >> 16
		out[i] = (float64(x&0xff) - 128) / 64
	}
	return out
}

func (g *golden) attrs() []program.Attr {
	var out []program.Attr
	if g.Window > 0 {
		out = append(out, integer("window", g.Window))
	}
	if g.Softcap > 0 {
		out = append(out, float("softcap", g.Softcap))
	}
	if g.Scale > 0 {
		out = append(out, float("scale", g.Scale))
	}
	if g.Causal != nil && !*g.Causal {
		out = append(out, bidirectional)
	}
	return out
}

const goldenBlock, goldenBlocks = 16, 256

func (g *golden) shape(dt dtype.DType) shape {
	return shape{g.Heads, g.KV, g.Dim, goldenBlocks, goldenBlock, dt, dt}
}

// step returns the batch over scattered blocks, its operands, and the cache before it.
func (g *golden) step(t *testing.T, dt dtype.DType) (*attention.Batch, [3][]byte, []byte) {
	t.Helper()
	number := func(v []float64) []byte {
		x, err := interp.FromFloat64s(dt, []int64{int64(len(v))}, v)
		if err != nil {
			t.Fatal(err)
		}
		return x.Bytes()
	}
	width := g.KV * g.Dim
	b := attention.NewBatch(len(g.Requests), 0, goldenBlocks)
	cache := make([]float64, goldenBlocks*2*goldenBlock*width)
	for i := range cache {
		cache[i] = 3 // no row sees these elements
	}
	free := rand.New(rand.NewPCG(8, 8)).Perm(goldenBlocks)
	for r, q := range g.Requests {
		old, tokens := q[0], q[1]
		n := (old + tokens + goldenBlock - 1) / goldenBlock
		var blocks []int32
		for _, f := range free[:n] {
			blocks = append(blocks, int32(f))
		}
		free = free[n:]
		for p := range old {
			for part := range int64(2) {
				row := (int64(blocks[p/goldenBlock])*2+part)*goldenBlock + int64(p%goldenBlock)
				copy(cache[row*width:], values(4+uint64(part), (int64(r)*4096+int64(p))*width, width))
			}
		}
		if err := b.Add(old, tokens, blocks, goldenBlock); err != nil {
			t.Fatal(err)
		}
	}
	rows := int64(b.Rows())
	return b, [3][]byte{number(values(1, 0, rows*g.Heads*g.Dim)), number(values(2, 0, rows*width)), number(values(3, 0, rows*width))}, number(cache)
}

// TestReferenceAgainstPyTorch compares the reference, with which other tests compare the kernels, with PyTorch.
func TestReferenceAgainstPyTorch(t *testing.T) {
	for _, g := range goldens(t) {
		b, qkv, cache := g.step(t, dtype.F32)
		s, rows := g.shape(dtype.F32), int64(b.Rows())
		c := &interp.Call{Name: attention.Name}
		for i, dims := range [][]int64{{rows, s.heads, s.dim}, {rows, s.kvHeads, s.dim}, {rows, s.kvHeads, s.dim}, {s.blocks, 2, s.block, s.kvHeads, s.dim}, {rows, s.heads, s.dim}} {
			data := make([]byte, 4*rows*s.heads*s.dim)
			if i < 4 {
				data = append(qkv[:], cache)[i]
			}
			x, err := interp.FromBytes(dtype.F32, dims, data)
			if err != nil {
				t.Fatal(err)
			}
			c.Args = append(c.Args, x)
		}
		c.Attrs = irAttrs(g.attrs())
		if err := reference.Extern(func() *attention.Batch { return b })(c); err != nil {
			t.Fatal(g.name, ": ", err)
		}
		if d := interp.Compare(c.Args[attention.ArgO], g.want); !d.Within(1e-6) {
			t.Error(g.name, ": ", d)
		}
	}
}

// irAttrs converts the attributes of a call for the interpreter.
func irAttrs(attrs []program.Attr) []ir.Attr {
	var out []ir.Attr
	for _, a := range attrs {
		switch a.Kind {
		case program.AttrFloat:
			out = append(out, ir.FloatAttr(a.Name, a.Float))
		case program.AttrBool:
			out = append(out, ir.BoolAttr(a.Name, a.Bool))
		default:
			out = append(out, ir.DimAttr(a.Name, a.Dim))
		}
	}
	return out
}

// TestAgainstPyTorch compares the kernels with PyTorch's attention in float64. In bf16 the error may be twice that of
// PyTorch in bf16.
func TestAgainstPyTorch(t *testing.T) {
	for _, g := range goldens(t) {
		t.Run(g.name, func(t *testing.T) {
			for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
				r := newGPURig(t, g.shape(dt), g.attrs()...)
				b, qkv, cache := g.step(t, dt)
				r.check(r.stream.CopyToDevice(r.cache.Buffer, cache))
				x, err := interp.FromBytes(dt, g.want.Shape, r.step(b, int64(b.Rows()), qkv))
				r.check(err)
				worst := interp.Compare(x, g.want).MaxAbs
				if limit := map[dtype.DType]float64{dtype.F32: 5e-6, dtype.BF16: 2 * g.Error}[dt]; !(worst <= limit) {
					t.Errorf("%s: off by %v, PyTorch in bf16 by %v", dt, worst, g.Error)
				}
			}
		})
	}
}
