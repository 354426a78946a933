package pt2

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/compile/host"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// operand is a tensor argument of an op.
type operand struct {
	name  string
	dt    dtype.DType
	shape []int64
	data  []float64
}

// An opCase is a program of one op, and its results by the definition of the op.
type opCase struct {
	name, op string
	operands []operand
	args     string // the other arguments, as JSON: name in the schema and value
	results  []operand
	ulps     float64 // if not 0, the largest distance of results in units of their last digit; else 1e-5 of interp.Compare
}

func f32(name string, data []float64, shape ...int64) operand {
	return operand{name, dtype.F32, shape, data}
}

func i64s(name string, data []float64, shape ...int64) operand {
	return operand{name, dtype.I64, shape, data}
}

func (o operand) tensor(t *testing.T) *interp.Tensor {
	t.Helper()
	v, err := interp.FromFloat64s(o.dt, o.shape, o.data)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// wave returns n numbers without a pattern.
func wave(n int, step float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = math.Round(1000*math.Sin(step*float64(i)+step)) / 1000
	}
	return out
}

// archive returns the files of an archive whose program applies the op to its inputs.
func (c *opCase) archive(t *testing.T) []entry {
	t.Helper()
	type m = map[string]any
	meta := func(o operand) m {
		sizes, strides, step := []m{}, make([]m, len(o.shape)), int64(1)
		for i := len(o.shape) - 1; i >= 0; i-- {
			strides[i] = m{"as_int": step}
			step *= o.shape[i]
		}
		for _, n := range o.shape {
			sizes = append(sizes, m{"as_int": n})
		}
		code := map[dtype.DType]int{dtype.U8: 1, dtype.I64: 5, dtype.F16: 6, dtype.F32: 7, dtype.Bool: 12, dtype.BF16: 13}[o.dt]
		return m{"dtype": code, "sizes": sizes, "strides": strides, "storage_offset": m{"as_int": 0}, "layout": 7,
			"requires_grad": false, "device": m{"type": "cpu", "index": nil}}
	}
	tensor := func(name string) m { return m{"as_tensor": m{"name": name}} }
	values, args, given, results := m{}, []m{}, []m{}, []m{}
	inputs, outputs := []m{}, []m{}
	for _, o := range c.operands {
		values[o.name] = meta(o)
		args = append(args, tensor(o.name))
		given = append(given, m{"name": o.name, "arg": tensor(o.name), "kind": 1})
		inputs = append(inputs, m{"user_input": m{"arg": tensor(o.name)}})
	}
	for _, o := range c.results {
		values[o.name] = meta(o)
		results = append(results, tensor(o.name))
		outputs = append(outputs, m{"user_output": m{"arg": tensor(o.name)}})
	}
	var more []m
	if err := json.Unmarshal([]byte("["+c.args+"]"), &more); err != nil {
		t.Fatal(err)
	}
	for _, a := range more {
		for name, v := range a {
			given = append(given, m{"name": name, "arg": v, "kind": 1})
		}
	}
	program, err := json.Marshal(m{
		"graph_module": m{
			"graph": m{"inputs": args, "outputs": results, "tensor_values": values, "sym_int_values": m{}, "sym_bool_values": m{},
				"nodes": []m{{"target": "torch.ops." + c.op, "name": "n", "metadata": m{}, "inputs": given, "outputs": results}}},
			"signature":         m{"input_specs": inputs, "output_specs": outputs},
			"module_call_graph": []m{},
		},
		"opset_version": m{"aten": 10}, "range_constraints": m{}, "schema_version": m{"major": 8, "minor": 17}, "torch_version": "2.11.0", "guards_code": []m{},
	})
	if err != nil {
		t.Fatal(err)
	}
	return []entry{{name: "model/archive_format", data: "pt2"}, {name: "model/archive_version", data: "0"}, {name: "model/byteorder", data: "little"},
		{name: "model/models/model.json", data: string(program)}}
}

func (c *opCase) run(t *testing.T) {
	for _, e := range c.evaluate(t).IndexErrors {
		t.Error(e)
	}
}

// evaluate interprets the program, and checks the results. It returns the environment of the run.
func (c *opCase) evaluate(t *testing.T) *interp.Env {
	t.Helper()
	m, err := read(t, c.archive(t))
	if err != nil {
		t.Fatal(err)
	}
	var in []*interp.Tensor
	for _, o := range c.operands {
		in = append(in, o.tensor(t))
	}
	env := &interp.Env{}
	out, err := interp.Run(context.Background(), m.Module, m.Module.Func(FuncName), env, in)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range c.results {
		c.check(t, out[i], o)
	}
	return env
}

// check compares a result with the definition.
func (c *opCase) check(t *testing.T, got *interp.Tensor, want operand) {
	t.Helper()
	if c.ulps != 0 {
		c.near(t, got, want)
	} else if d := interp.Compare(got, want.tensor(t)); !d.Within(1e-5) {
		t.Errorf("%s: %s", want.name, d)
	}
}

// TestOps compares ops with their definitions.
func TestOps(t *testing.T) {
	for _, c := range opCases() {
		t.Run(c.name, c.run)
	}
}

func opCases() []opCase {
	return slices.Concat(foldCases(), sampleCases(), resampleCases(), bagCases(), stridedCases(), pairCases(), productCases(), lossCases(), opmathCases())
}

// TestOpsOnHost runs the same programs compiled for the host.
func TestOpsOnHost(t *testing.T) {
	dev := hostdev.Open(hostdev.Options{Workers: 1})
	defer dev.Close()
	for _, c := range opCases() {
		t.Run(c.name, func(t *testing.T) { c.compiled(t, dev, host.New()) })
	}
}

// TestOpsOnGPU runs them compiled for a GPU, or every eighth one on an emulated GPU.
func TestOpsOnGPU(t *testing.T) {
	dev := cudatest.Open(t, fake.Options{})
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range opCases() {
		if dev.Emulated && i%8 != 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.compiled(t, dev.Device, backend) })
	}
}

// compiled runs the program on a device.
func (c *opCase) compiled(t *testing.T, dev device.Device, backend compile.Backend) {
	ctx := context.Background()
	m, err := read(t, c.archive(t))
	if err != nil {
		t.Fatal(err)
	}
	b, err := piecewise.New(ctx, m.Module, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: backend}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := b.Load(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Seal(); err != nil {
		t.Fatal(err)
	}
	in, err := b.Func(FuncName).Inputs(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range c.operands {
		data, err := in.Bytes(o.name)
		if err != nil {
			t.Fatal(err)
		}
		copy(data, o.tensor(t).Bytes())
	}
	r, err := b.Func(FuncName).Run(ctx, in, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range c.results {
		data := make([]byte, len(o.tensor(t).Bytes()))
		if err := r.At(i).CopyTo(data); err != nil {
			t.Fatal(err)
		}
		got, err := interp.FromBytes(o.dt, o.shape, data)
		if err != nil {
			t.Fatal(err)
		}
		c.check(t, got, o)
	}
	if err := b.Faults(); err != nil {
		t.Error(err)
	}
}

func foldCases() []opCase {
	var out []opCase
	for _, g := range []struct{ h, w, k, pad, stride, dilation int }{{4, 9, 2, 0, 2, 1}, {6, 5, 3, 1, 2, 1}, {6, 7, 2, 1, 1, 2}} {
		count := func(n int) int { return (n+2*g.pad-g.dilation*(g.k-1)-1)/g.stride + 1 }
		lh, lw := count(g.h), count(g.w)
		const n, channels = 2, 3
		rows, l := channels*g.k*g.k, lh*lw
		x := wave(n*rows*l, 1.7)
		image := make([]float64, n*channels*g.h*g.w)
		for i := range x {
			col, row, b := i%l, i/l%rows, i/l/rows
			kx, ky, ch := row%g.k, row/g.k%g.k, row/g.k/g.k
			py, px := col/lw*g.stride+ky*g.dilation-g.pad, col%lw*g.stride+kx*g.dilation-g.pad
			if py >= 0 && py < g.h && px >= 0 && px < g.w {
				image[((b*channels+ch)*g.h+py)*g.w+px] += x[i]
			}
		}
		out = append(out, opCase{name: fmt.Sprint("col2im ", g), op: "aten.col2im.default",
			operands: []operand{f32("self", x, n, int64(rows), int64(l))},
			args: fmt.Sprintf(`{"output_size": {"as_ints": [%d, %d]}}, {"kernel_size": {"as_ints": [%d, %d]}}, {"dilation": {"as_ints": [%d, %d]}}, {"padding": {"as_ints": [%d, %d]}}, {"stride": {"as_ints": [%d, %d]}}`,
				g.h, g.w, g.k, g.k, g.dilation, g.dilation, g.pad, g.pad, g.stride, g.stride),
			results: []operand{f32("y", image, n, channels, int64(g.h), int64(g.w))}})
	}
	return append(out, poolIndexCase())
}

// poolIndexCase is max pooling of 6x8 by padded windows of 2x3, whose rows are two apart.
func poolIndexCase() opCase {
	const n, h, w = 2, 6, 8
	x := wave(n*h*w, 2.3)
	values, at := []float64{}, []float64{}
	for b := range n {
		for oy := range 3 {
			for ox := range 4 {
				best, where := math.Inf(-1), 0
				for ky := range 2 {
					for kx := range 3 {
						py, px := 2*oy+2*ky-1, 2*ox+kx-1
						if py < 0 || py >= h || px < 0 || px >= w {
							continue
						}
						if v := x[(b*h+py)*w+px]; v > best {
							best, where = v, py*w+px
						}
					}
				}
				values, at = append(values, best), append(at, float64(where))
			}
		}
	}
	return opCase{name: "max_pool2d", op: "aten.max_pool2d_with_indices.default", operands: []operand{f32("self", x, n, 1, h, w)},
		args:    `{"kernel_size": {"as_ints": [2, 3]}}, {"stride": {"as_ints": [2, 2]}}, {"padding": {"as_ints": [1, 1]}}, {"dilation": {"as_ints": [2, 1]}}`,
		results: []operand{f32("y", values, n, 1, 3, 4), i64s("at", at, n, 1, 3, 4)}}
}

// keys is the kernel of cubic convolution.
func keys(a, x float64) float64 {
	switch x = math.Abs(x); {
	case x <= 1:
		return (a+2)*x*x*x - (a+3)*x*x + 1
	case x < 2:
		return a*x*x*x - 5*a*x*x + 8*a*x - 4*a
	}
	return 0
}

func clampInt(i, n int) int { return min(max(i, 0), n-1) }

func sampleCases() []opCase {
	var out []opCase
	const n, ch, h, w, oh, ow = 2, 2, 4, 5, 3, 4
	x, grid := wave(n*ch*h*w, 1.3), wave(n*oh*ow*2, 0.9)
	for i := range grid {
		grid[i] *= 1.6
	}
	for mode := range 3 {
		for beyond := range 3 {
			for _, corners := range []bool{false, true} {
				want := make([]float64, n*ch*oh*ow)
				for i := range want {
					p, c, b := i%(oh*ow), i/(oh*ow)%ch, i/(oh*ow)/ch
					g := grid[(b*oh*ow+p)*2:]
					want[i] = sampled(x[(b*ch+c)*h*w:][:h*w], h, w, g[0], g[1], mode, beyond, corners)
				}
				out = append(out, opCase{name: fmt.Sprint("grid_sampler ", mode, beyond, corners), op: "aten.grid_sampler_2d.default",
					operands: []operand{f32("input", x, n, ch, h, w), f32("grid", grid, n, oh, ow, 2)},
					args:     fmt.Sprintf(`{"interpolation_mode": {"as_int": %d}}, {"padding_mode": {"as_int": %d}}, {"align_corners": {"as_bool": %v}}`, mode, beyond, corners),
					results:  []operand{f32("y", want, n, ch, oh, ow)}})
			}
		}
	}
	return out
}

// sampled reads an image at a coordinate.
func sampled(x []float64, h, w int, gx, gy float64, mode, beyond int, corners bool) float64 {
	place := func(g float64, n int) float64 {
		if corners {
			return (g + 1) / 2 * float64(n-1)
		}
		return ((g+1)*float64(n) - 1) / 2
	}
	hold := func(p float64, n int) float64 {
		switch beyond {
		case 1:
			return min(max(p, 0), float64(n-1))
		case 2:
			low, high := -0.5, float64(n)-0.5
			if corners {
				low, high = 0, float64(n-1)
			}
			for p < low || p > high {
				if p < low {
					p = 2*low - p
				} else {
					p = 2*high - p
				}
			}
			return min(max(p, 0), float64(n-1))
		}
		return p
	}
	read := func(py, px float64) float64 {
		if py < 0 || px < 0 || py > float64(h-1) || px > float64(w-1) {
			return 0
		}
		return x[int(py)*w+int(px)]
	}
	px, py := place(gx, w), place(gy, h)
	if mode != 2 {
		px, py = hold(px, w), hold(py, h)
	}
	sum := 0.0
	switch mode {
	case 1:
		return read(math.RoundToEven(py), math.RoundToEven(px))
	case 0:
		for _, qy := range []float64{math.Floor(py), math.Floor(py) + 1} {
			for _, qx := range []float64{math.Floor(px), math.Floor(px) + 1} {
				sum += read(qy, qx) * (1 - math.Abs(py-qy)) * (1 - math.Abs(px-qx))
			}
		}
	case 2:
		for i := -1; i <= 2; i++ {
			for j := -1; j <= 2; j++ {
				qy, qx := math.Floor(py)+float64(i), math.Floor(px)+float64(j)
				sum += read(hold(qy, h), hold(qx, w)) * keys(-0.75, py-qy) * keys(-0.75, px-qx)
			}
		}
	}
	return sum
}

func resampleCases() []opCase {
	var out []opCase
	const ch, in = 3, 7
	x := wave(ch*in, 1.1)
	for _, size := range []int{4, 7, 11} {
		for _, corners := range []bool{false, true} {
			ratio := float64(in) / float64(size)
			if corners {
				ratio = float64(in-1) / float64(size-1)
			}
			want := make([]float64, ch*size)
			antialias := make([]float64, ch*size)
			for i := range want {
				c, o := i/size, i%size
				at := ratio*(float64(o)+0.5) - 0.5
				if corners {
					at = ratio * float64(o)
				}
				for j := -1; j <= 2; j++ {
					q := int(math.Floor(at)) + j
					want[i] += keys(-0.75, at-float64(q)) * x[c*in+clampInt(q, in)]
				}
				wide, total := max(ratio, 1), 0.0
				for q := range in {
					v := keys(-0.5, (float64(q)+0.5-ratio*(float64(o)+0.5))/wide)
					total += v
					antialias[i] += v * x[c*in+q]
				}
				antialias[i] /= total
			}
			for k, y := range [][]float64{want, antialias} {
				op := []string{"aten.upsample_bicubic2d.vec", "aten._upsample_bicubic2d_aa.vec"}[k]
				out = append(out, opCase{name: fmt.Sprint(op, " ", size, corners), op: op, operands: []operand{f32("input", x, 1, ch, 1, in)},
					args:    fmt.Sprintf(`{"output_size": {"as_ints": [1, %d]}}, {"align_corners": {"as_bool": %v}}, {"scale_factors": {"as_none": true}}`, size, corners),
					results: []operand{f32("y", y, 1, ch, 1, int64(size))}})
			}
		}
	}
	return out
}

func bagCases() []opCase {
	var out []opCase
	const rows, width, n, pad = 6, 3, 8, 2
	table := wave(rows*width, 2.1)
	index := []float64{1, 2, 0, 5, 5, 2, 3, 4}
	weights := wave(n, 0.4)
	for mode := range 3 {
		for _, last := range []bool{false, true} {
			offsets := []float64{0, 2, 2, 5, 6}
			ends := append(append([]float64{}, offsets[1:]...), n)
			if last {
				offsets = append(offsets, n)
			}
			var want []float64
			for b := range ends {
				want = append(want, bag(table, index[int(offsets[b]):int(ends[b])], weights[int(offsets[b]):], width, mode, pad)...)
			}
			c := opCase{name: fmt.Sprint("embedding_bag ", mode, last), op: "aten._embedding_bag_forward_only.default",
				operands: []operand{f32("weight", table, rows, width), i64s("indices", index, n), i64s("offsets", offsets, int64(len(offsets)))},
				args:     fmt.Sprintf(`{"mode": {"as_int": %d}}, {"include_last_offset": {"as_bool": %v}}, {"padding_idx": {"as_int": %d}}`, mode, last, pad),
				results:  []operand{f32("y", want, int64(len(ends)), width)}}
			if mode == bagSum {
				c.operands = append(c.operands, f32("per_sample_weights", weights, n))
			}
			out = append(out, c)
		}
	}
	return out
}

// bag combines rows of a table; rows at the index pad do not count.
func bag(table, index, weights []float64, width, mode int, pad float64) []float64 {
	out, count := make([]float64, width), 0.0
	for i, at := range index {
		if at == pad {
			continue
		}
		count++
		for d := range out {
			v := table[int(at)*width+d]
			switch {
			case mode == bagSum:
				out[d] += v * weights[i]
			case mode == bagMean:
				out[d] += v
			case count == 1 || v > out[d]:
				out[d] = v
			}
		}
	}
	for d := range out {
		if mode == bagMean && count > 0 {
			out[d] /= count
		}
	}
	return out
}

func stridedCases() []opCase {
	x, src := wave(24, 1.9), wave(6, 0.7)
	var taken []float64
	put := append([]float64{}, x...)
	for i := range 2 {
		for j := range 3 {
			at := 1 + 12*i + 4*j
			taken = append(taken, x[at])
			put[at] = src[3*i+j]
		}
	}
	const args = `{"size": {"as_ints": [2, 3]}}, {"stride": {"as_ints": [12, 4]}}, {"storage_offset": {"as_int": 1}}`
	turned := make([]float64, 24) // x is [4, 6]; a quarter turn makes [6, 4]
	for i := range 4 {
		for j := range 6 {
			turned[(5-j)*4+i] = x[6*i+j]
		}
	}
	return []opCase{
		{name: "as_strided", op: "aten.as_strided.default", operands: []operand{f32("self", x, 4, 6)}, args: args, results: []operand{f32("y", taken, 2, 3)}},
		{name: "as_strided_scatter", op: "aten.as_strided_scatter.default", operands: []operand{f32("self", x, 4, 6), f32("src", src, 2, 3)}, args: args, results: []operand{f32("y", put, 4, 6)}},
		{name: "rot90", op: "aten.rot90.default", operands: []operand{f32("self", x, 4, 6)}, args: `{"k": {"as_int": 1}}, {"dims": {"as_ints": [0, 1]}}`, results: []operand{f32("y", turned, 6, 4)}},
	}
}

func pairCases() []opCase {
	const n, d = 5, 3
	x := wave(n*d, 1.1)
	var far, sum []float64
	for i := range n {
		for j := i + 1; j < n; j++ {
			most, all := 0.0, 0.0
			for k := range d {
				v := math.Abs(x[i*d+k] - x[j*d+k])
				most, all = max(most, v), all+v
			}
			far, sum = append(far, most), append(sum, all)
		}
	}
	return []opCase{
		{name: "pdist inf", op: "aten._pdist_forward.default", operands: []operand{f32("self", x, n, d)}, args: `{"p": {"as_float": "Infinity"}}`, results: []operand{f32("y", far, n*(n-1)/2)}},
		{name: "pdist 1", op: "aten._pdist_forward.default", operands: []operand{f32("self", x, n, d)}, args: `{"p": {"as_float": 1.0}}`, results: []operand{f32("y", sum, n*(n-1)/2)}},
		{name: "median", op: "aten.median.dim", operands: []operand{f32("self", []float64{4, 1, 3, 2, 9, 7, 8, 6}, 2, 4)}, args: `{"dim": {"as_int": 1}}`, results: []operand{f32("y", []float64{2, 7}, 2), i64s("at", []float64{3, 1}, 2)}},
	}
}

func productCases() []opCase {
	a, b := wave(6, 1.3), wave(12, 0.8) // a is [2, 3], b is [4, 3]
	inner, norm := make([]float64, 8), make([]float64, 6)
	for i := range 2 {
		sum := 0.0
		for k := range 3 {
			sum += a[3*i+k] * a[3*i+k]
			for j := range 4 {
				inner[4*i+j] += a[3*i+k] * b[3*j+k]
			}
		}
		for k := range 3 {
			norm[3*i+k] = a[3*i+k] * b[i] / math.Sqrt(sum)
		}
	}
	total := a[0] + a[1] + a[2] + a[3]
	ones := []float64{total * (b[0] + b[1] + b[2] + b[3]), total * (b[4] + b[5] + b[6] + b[7])} // the axes of size 1 broadcast
	added := make([]float64, 6)
	for i := range added {
		added[i] = 2*a[i] + 3*b[i/3]*b[4+i%3]
	}
	return []opCase{
		{name: "inner", op: "aten.inner.default", operands: []operand{f32("self", a, 2, 3), f32("other", b, 4, 3)}, results: []operand{f32("y", inner, 2, 4)}},
		{name: "einsum of ones", op: "aten.einsum.default", operands: []operand{f32("x", a[:4], 1, 1, 4), f32("z", b[:8], 2, 4, 1)},
			args: `{"equation": {"as_string": "aij,bij->ab"}}, {"tensors": {"as_tensors": [{"name": "x"}, {"name": "z"}]}}`, results: []operand{f32("y", ones, 1, 2)}},
		{name: "vstack", op: "aten.vstack.default", operands: []operand{f32("x", a[:3], 3), f32("z", a, 2, 3)},
			args: `{"tensors": {"as_tensors": [{"name": "x"}, {"name": "z"}, {"name": "x"}]}}`, results: []operand{f32("y", slices.Concat(a[:3], a[:6], a[:3]), 4, 3)}},
		{name: "row_stack", op: "aten.row_stack.default", operands: []operand{f32("x", a[:1]), f32("z", a[1:2], 1)},
			args: `{"tensors": {"as_tensors": [{"name": "x"}, {"name": "z"}]}}`, results: []operand{f32("y", a[:2], 2, 1)}},
		{name: "hstack", op: "aten.hstack.default", operands: []operand{f32("x", a[:1]), f32("z", a[1:3], 2)},
			args: `{"tensors": {"as_tensors": [{"name": "x"}, {"name": "z"}]}}`, results: []operand{f32("y", a[:3], 3)}},
		{name: "_weight_norm", op: "aten._weight_norm.default", operands: []operand{f32("v", a, 2, 3), f32("g", b[:2], 2, 1)}, args: `{"dim": {"as_int": 0}}`, results: []operand{f32("y", norm, 2, 3)}},
		{name: "addr", op: "aten.addr.default", operands: []operand{f32("self", a, 2, 3), f32("vec1", b[:2], 2), f32("vec2", b[4:7], 3)}, args: `{"beta": {"as_int": 2}}, {"alpha": {"as_int": 3}}`, results: []operand{f32("y", added, 2, 3)}},
		{name: "take", op: "aten.take.default", operands: []operand{f32("self", a, 2, 3), i64s("index", []float64{5, -1, 2}, 3)}, results: []operand{f32("y", []float64{a[5], a[5], a[2]}, 3)}},
		{name: "triu_indices", op: "aten.triu_indices.default", operands: []operand{f32("unused", a, 2, 3)}, args: `{"row": {"as_int": 2}}, {"col": {"as_int": 3}}, {"offset": {"as_int": 1}}`, results: []operand{i64s("y", []float64{0, 0, 1, 1, 2, 2}, 2, 3)}},
		{name: "subtract", op: "aten.subtract.Tensor", operands: []operand{f32("self", a, 6), f32("other", a, 6)}, results: []operand{f32("y", make([]float64, 6), 6)}},
	}
}

func lossCases() []opCase {
	const n, classes = 4, 3
	x, target, weight := wave(n*classes, 1.3), []float64{0, 2, -100, 1}, []float64{0.5, 1, 2}
	plain, total, smoothed := 0.0, 0.0, 0.0
	for i, t := range target {
		if t < 0 {
			continue
		}
		row, sum := x[i*classes:][:classes], 0.0
		for _, v := range row {
			sum += math.Exp(v)
		}
		w := weight[int(t)]
		plain -= w * (row[int(t)] - math.Log(sum))
		total += w
		for c, v := range row {
			smoothed -= 0.1 / classes * weight[c] * (v - math.Log(sum))
		}
	}
	operands := []operand{f32("self", x, n, classes), i64s("target", target, n), f32("weight", weight, classes)}
	return []opCase{
		{name: "cross_entropy", op: "aten.cross_entropy_loss.default", operands: operands, results: []operand{f32("y", []float64{plain / total})}},
		{name: "cross_entropy smoothed", op: "aten.cross_entropy_loss.default", operands: operands, args: `{"label_smoothing": {"as_float": 0.1}}`, results: []operand{f32("y", []float64{(0.9*plain + smoothed) / total})}},
	}
}

// TestViewable: viewable accepts the shapes and strides that .view() of PyTorch accepts, and no others.
func TestViewable(t *testing.T) {
	n := dim.Sym("n")
	k := func(list ...int64) []dim.Dim {
		out := make([]dim.Dim, len(list))
		for i, x := range list {
			out[i] = dim.Const(x)
		}
		return out
	}
	for _, c := range []struct {
		what               string
		sizes, strides, to []dim.Dim
		want               bool
	}{
		{"rows", k(4, 6), k(6, 1), k(2, 2, 6), true},
		{"a flat one", k(4, 6), k(6, 1), k(24), true},
		{"a matrix that is turned", k(6, 4), k(1, 6), k(24), false},
		{"a matrix that is turned, cut", k(6, 4), k(1, 6), k(2, 3, 4), true},
		{"columns of a wider one", k(4, 3), k(6, 1), k(12), false},
		{"columns of a wider one, with an axis more", k(4, 3), k(6, 1), k(4, 1, 3), true},
		{"heads that are turned", k(2, 5, 4, 8), k(160, 8, 40, 1), k(2, 5, 32), false},
		{"an axis of one", k(4, 1, 6), k(6, 99, 1), k(24), true},
		{"a dynamic one", []dim.Dim{n, dim.Const(6)}, k(6, 1), []dim.Dim{n.Mul(dim.Const(6))}, true},
		{"a dynamic one that is turned", []dim.Dim{dim.Const(6), n}, k(1, 6), []dim.Dim{n.Mul(dim.Const(6))}, false},
	} {
		if got := viewable(c.sizes, c.strides, c.to); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// TestRecurrentDropout: layers that would drop values of the layer below at random are refused. A single layer has no
// layer below.
func TestRecurrentDropout(t *testing.T) {
	for numLayers, refuses := range map[int64]bool{1: false, 2: true} {
		b := ir.NewBuilder("dropout")
		fb := b.Func("dropout")
		x := fresh(fb.Param("x", ir.TypeOf(dtype.F32, dim.Const(2), dim.Const(1), dim.Const(3))))
		im := &importer{b: b, options: &Options{}, emitter: emitter{fb: fb, syms: &symbols{}}, values: map[string]*tensor{"x": x}, graph: &graph{}}
		train, p := true, float(0.5)
		c := &call{importer: im, base: "aten.gru", overload: "input", in: map[string]*argument{"input": {Tensor: &nameRef{Name: "x"}},
			"train": {Bool: &train}, "dropout": {Float: &p}, "num_layers": {Int: &numLayers}}}
		err := try(func() { layers("gru")(c) })
		if err == nil || strings.Contains(err.Error(), "train=True") != refuses {
			t.Errorf("%d layers: %v", numLayers, err)
		}
	}
}

// TestDropoutWithoutTrain: native_dropout drops elements if train is None, dropout does not.
func TestDropoutWithoutTrain(t *testing.T) {
	for op, refuses := range map[string]bool{"aten.dropout": false, "aten.native_dropout": true} {
		fb := ir.NewBuilder("dropout").Func("dropout")
		x := fresh(fb.Param("x", ir.TypeOf(dtype.F32, dim.Const(2))))
		p := float(0.5)
		c := &call{importer: &importer{emitter: emitter{fb: fb}, values: map[string]*tensor{"x": x}}, base: op,
			in: map[string]*argument{"input": {Tensor: &nameRef{Name: "x"}}, "train": {kind: "as_none"}, "p": {Float: &p}}}
		if err := try(func() { dropped(c) }); (err != nil) != refuses {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// TestAugmentedAssignment: x &= y, x |= y and x ^= y write the memory of x, as x.logical_and_(y) does; x & y does not.
func TestAugmentedAssignment(t *testing.T) {
	for op, writes := range map[string]bool{"aten.__iand__": true, "aten.__ior__": true, "aten.__ixor__": true, "aten.logical_and_": true, "aten.__and__": false} {
		fb := ir.NewBuilder("assign").Func("assign")
		x := fresh(fb.Param("x", ir.TypeOf(dtype.Bool, dim.Const(2))))
		y := fresh(fb.Param("y", ir.TypeOf(dtype.Bool, dim.Const(2))))
		two := int64(2)
		im := &importer{options: &Options{}, emitter: emitter{fb: fb, syms: &symbols{}}, values: map[string]*tensor{"x": x, "y": y},
			graph: &graph{TensorValues: map[string]tensorMeta{"z": {DType: 12, Sizes: []symInt{{Int: &two}}, Strides: []symInt{{Int: &two}}, Layout: strided}}}}
		c := &call{importer: im, name: op, base: canonical(op), overload: "Tensor", outs: []string{"z"},
			in: map[string]*argument{"self": {Tensor: &nameRef{Name: "x"}}, "other": {Tensor: &nameRef{Name: "y"}}}}
		if got := c.results(); (got[0].st == x.st) != writes || (x.st.version == 1) != writes {
			t.Errorf("%s writes x: %v", op, !writes)
		}
	}
}

// TestErrorsWithoutFile: an error of an archive in memory has no empty part for its file.
func TestErrorsWithoutFile(t *testing.T) {
	_, err := open(t, "toy-attention").Import(Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "pt2: 3 of its nodes") {
		t.Error(err)
	}
	if _, err := open(t, "mlp").Info("none"); err == nil || !strings.HasPrefix(err.Error(), `pt2: tensor "none"`) {
		t.Error(err)
	}
}

// TestCopies checks which ops return new memory for a matrix with these strides. reshape views every second element of
// memory, ravel copies them.
func TestCopies(t *testing.T) {
	size := func(n int64) symInt { return symInt{Int: &n} }
	for _, c := range []struct {
		op      string
		strides []symInt
		shares  bool
	}{
		{"aten.contiguous", []symInt{size(1), size(6)}, false},
		{"aten.contiguous", []symInt{size(4), size(1)}, true},
		{"aten.reshape", []symInt{size(1), size(6)}, false},
		{"aten.reshape", []symInt{size(4), size(1)}, true},
		{"aten.ravel", []symInt{size(8), size(2)}, false},
		{"aten.reshape", []symInt{size(8), size(2)}, true},
		{"aten.ravel", []symInt{size(4), size(1)}, true},
		{"aten.t", []symInt{size(4), size(1)}, true},
		{"aten.t_copy", []symInt{size(4), size(1)}, false},
		{"aten.dropout", []symInt{size(4), size(1)}, true},
		{"aten.native_dropout", []symInt{size(4), size(1)}, false},
	} {
		y := tensorMeta{DType: 7, Sizes: []symInt{size(24)}, Strides: []symInt{size(1)}, Layout: strided}
		if c.op == "aten.contiguous" {
			y.Sizes, y.Strides = []symInt{size(6), size(4)}, []symInt{size(4), size(1)}
		}
		b := ir.NewBuilder("copies")
		fb := b.Func("copies")
		self := fresh(fb.Param("x", ir.TypeOf(dtype.F32, dim.Const(6), dim.Const(4))))
		im := &importer{b: b, options: &Options{}, emitter: emitter{fb: fb, syms: &symbols{}}, values: map[string]*tensor{"x": self},
			graph: &graph{TensorValues: map[string]tensorMeta{
				"x": {DType: 7, Sizes: []symInt{size(6), size(4)}, Strides: c.strides, Layout: strided},
				"y": y}}}
		call := &call{importer: im, name: c.op, base: c.op, outs: []string{"y"}, in: map[string]*argument{"self": {Tensor: &nameRef{Name: "x"}}}}
		if got := call.results(); (got[0].st == self.st) != c.shares {
			t.Errorf("%s of strides %v shares memory: %v", c.op, c.strides, !c.shares)
		}
	}
}
