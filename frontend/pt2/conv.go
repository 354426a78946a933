package pt2

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// convRules are convolutions and pooling. The IR has no op for convolutions: most of them are GEMMs over patches of the
// input (im2col), and the patches take memory where the compiler cannot fuse them into the GEMM. With several groups
// of one result channel they are sums of products ([call.depthwise], [call.band]).
var convRules = map[string]opRule{
	"aten.conv1d": convolution, "aten.conv2d": convolution, "aten.conv3d": convolution, "aten.convolution": convolution,
	"aten.conv_transpose1d": convTranspose, "aten.conv_transpose2d": convTranspose, "aten.conv_transpose3d": convTranspose,
	"aten.max_pool1d": maxPool, "aten.max_pool2d": maxPool, "aten.max_pool2d_with_indices": maxPool, "aten.max_pool1d_with_indices": maxPool, "aten.max_pool3d": maxPool, "aten.max_pool3d_with_indices": maxPool,
	"aten.avg_pool1d": opmath(avgPool), "aten.avg_pool2d": opmath(avgPool), "aten.avg_pool3d": opmath(avgPool),
	"aten.adaptive_avg_pool1d": opmath(adaptive("mean")), "aten.adaptive_avg_pool2d": opmath(adaptive("mean")), "aten._adaptive_avg_pool2d": opmath(adaptive("mean")), "aten.adaptive_avg_pool3d": opmath(adaptive("mean")), "aten._adaptive_avg_pool3d": opmath(adaptive("mean")), "aten.adaptive_max_pool2d": adaptive("max"), "aten.adaptive_max_pool1d": adaptive("max"), "aten.adaptive_max_pool3d": adaptive("max"),
	"aten.im2col": im2col, "aten.col2im": col2im, "aten.max_unpool2d": maxUnpool,
}

// spatial are the parameters of a window over the last axes.
type spatial struct {
	kernel           []int64
	stride, dilation []int64
	padLow, padHigh  []int64
	ceil             bool // the last window may reach beyond the padding
}

// each returns a list argument with one entry for each of n axes. A list of one entry applies to all axes.
func (c *call) each(name string, n int, def int64) []int64 {
	list := c.ints(name)
	switch {
	case len(list) == 0:
		list = []int64{def}
	case len(list) != 1 && len(list) != n:
		c.fail("argument %s has %d entries for %d axes", name, len(list), n)
		list = []int64{def}
	}
	out := make([]int64, n)
	for i := range out {
		out[i] = list[min(i, len(list)-1)]
	}
	return out
}

// patches gathers windows of the last axes of x[N, C, …]: [N, C, o1, k1, o2, k2, …] with the sizes o of the result
// and k of the kernel.
func (c *call) patches(x ir.Value, s *spatial, out []dim.Dim, fill ir.Value) ir.Value {
	return c.windowed(c.margin(x, s, out, fill), s, out)
}

// windowed is patches of an x that margin has padded.
func (c *call) windowed(x ir.Value, s *spatial, out []dim.Dim) ir.Value {
	n := len(s.kernel)
	at := c.rank(x) - n
	for i := range n {
		x = c.windows(x, at+2*i, out[i], dim.Const(s.kernel[i]), s.stride[i], s.dilation[i])
	}
	return x
}

// margin pads the last axes so that they contain every window of the result.
func (c *call) margin(x ir.Value, s *spatial, out []dim.Dim, fill ir.Value) ir.Value {
	n := len(s.kernel)
	at := c.rank(x) - n
	low, high := make([]dim.Dim, c.rank(x)), make([]dim.Dim, c.rank(x))
	some := false
	for i := range n {
		low[at+i], high[at+i] = dim.Const(s.padLow[i]), dim.Const(s.padHigh[i])
		if s.ceil { // the last window may reach beyond the padding
			need := out[i].Sub(dim.Const(1)).Mul(dim.Const(s.stride[i])).Add(dim.Const(s.dilation[i]*(s.kernel[i]-1) + 1))
			need = need.Sub(c.shape(x)[at+i]).Sub(low[at+i])
			if k, ok := need.Const(); !ok { // ceil_mode adds less than a stride to the axis
				high[at+i] = dim.Const(s.padHigh[i] + s.stride[i] - 1)
			} else if k > s.padHigh[i] {
				high[at+i] = need
			}
		}
		some = some || !low[at+i].Equal(dim.Const(0)) || !high[at+i].Equal(dim.Const(0))
	}
	if !some {
		return x
	}
	return c.op("pad", []ir.Value{x, fill}, ir.DimsAttr("low", low...), ir.DimsAttr("high", high...))
}

func (c *call) window2(n int, kernel []int64) *spatial {
	s := &spatial{kernel: kernel, stride: c.each("stride", n, 1), dilation: c.each("dilation", n, 1)}
	if c.has("padding") && c.in["padding"].String != nil {
		s.padLow, s.padHigh = make([]int64, n), make([]int64, n)
		switch mode := c.str("padding", ""); mode {
		case "same":
			for i, k := range kernel {
				total := s.dilation[i] * (k - 1)
				s.padLow[i], s.padHigh[i] = total/2, total-total/2
			}
		case "valid":
		default:
			c.fail("padding %q is not supported", mode)
		}
	} else {
		s.padLow = c.each("padding", n, 0)
		s.padHigh = s.padLow
	}
	for i := range n {
		if s.stride[i] < 1 || s.dilation[i] < 1 || kernel[i] < 1 || s.padLow[i] < 0 {
			c.fail("kernel, stride and dilation must be at least 1, padding at least 0")
		}
	}
	return s
}

// convolution is conv1d, conv2d, conv3d and convolution.
func convolution(c *call) []ir.Value {
	if c.bool("transposed", false) {
		return convTranspose(c)
	}
	x, w := c.tensor("input"), c.tensor("weight")
	n := c.rank(w) - 2
	if n < 1 || c.rank(x) != n+2 && c.rank(x) != n+1 {
		c.fail("it takes [N, C, ...] and weights [O, C, ...]")
	}
	single := c.rank(x) == n+1
	if single {
		x = c.unsqueeze(x, 0)
	}
	kernel := c.constants64(c.shape(w)[2:])
	s := c.window2(n, kernel)
	out := c.out(0).Shape
	y := c.convolve(x, w, s, out[len(out)-n:], c.int("groups", 1))
	return one(c.biased(y, single))
}

// biased adds the bias of the channels, if the call has one, and removes the batch axis of a single sample.
func (c *call) biased(y ir.Value, single bool) ir.Value {
	if c.has("bias") {
		b := c.tensor("bias")
		shape := make([]dim.Dim, c.rank(y))
		for i := range shape {
			shape[i] = dim.Const(1)
		}
		shape[1] = product(c.shape(b))
		y = c.bin("add", y, c.reshape(b, shape...))
	}
	if single {
		y = c.squeeze(y, 0)
	}
	return y
}

func (c *call) constants64(shape []dim.Dim) []int64 {
	out := make([]int64, len(shape))
	for i, d := range shape {
		n, ok := d.Const()
		if !ok {
			c.fail("the size of a kernel is dynamic")
		}
		out[i] = n
	}
	return out
}

// convolve computes a convolution in bands of rows of the result, so that not all patches are in memory at once.
// [call.bands] decides the number of bands.
func (c *call) convolve(x, w ir.Value, s *spatial, out []dim.Dim, groups int64) ir.Value {
	if groups < 1 {
		c.fail("groups must be at least 1, not %d", groups)
	}
	x = c.margin(x, s, out, c.number(0, c.dtype(x)))
	rows, ok := out[0].Const()
	bands := c.bands(x, w, out, groups)
	if !ok || bands < 2 {
		return c.band(x, w, s, out, groups)
	}
	step := (rows + bands - 1) / bands
	reach := s.dilation[0]*(s.kernel[0]-1) + 1
	var parts []ir.Value
	for from := int64(0); from < rows; from += step {
		to := min(from+step, rows)
		part := c.slice(x, 2, dim.Const(from*s.stride[0]), dim.Const((to-1)*s.stride[0]+reach), 1)
		parts = append(parts, c.band(part, w, s, replaced(out, 0, dim.Const(to-from)), groups))
	}
	return c.concat(2, parts...)
}

const (
	bandBytes = 32 << 20 // target for the patches of a band, at the largest batch
	maxBands  = 32
)

// bands returns the number of bands of a convolution: the bytes of its patches at the largest batch, divided by
// c.bandBytes and rounded up, but at most the number of rows and maxBands. It returns 1 if the number of rows is dynamic,
// the patches have no bound, or the kernel has one element.
func (c *call) bands(x, w ir.Value, out []dim.Dim, groups int64) int64 {
	ws := c.shape(w)
	patches := product(out).Mul(product(ws[1:])).Mul(dim.Const(groups)).Mul(c.shape(x)[0])
	most, ok := patches.Bounds(c.syms.bounds)
	rows, fixed := out[0].Const()
	if !ok || !fixed || c.pointwise(w) {
		return 1
	}
	bytes := c.dtype(x).Bytes(min(most.Hi, 1<<50))
	return min((bytes+c.bandBytes-1)/c.bandBytes, rows, maxBands)
}

// pointwise reports whether a kernel has one element: then the patches are no larger than the padded input.
func (c *call) pointwise(w ir.Value) bool {
	n, ok := product(c.shape(w)[2:]).Const()
	return ok && n == 1
}

// maxShifts is the largest number of kernel elements for which the patches are slices of the input.
const maxShifts = 64

// shifted returns, for each kernel element in row-major order, the elements of x[N, C, …] that it is multiplied with:
// a strided slice of the last axes, which has the sizes of the result. A slice needs no index for each element, as a
// gather does. It reports false for a large kernel, and if the ranges of sizes do not imply that the slices are
// within x.
func (c *call) shifted(x ir.Value, s *spatial, out []dim.Dim) ([]ir.Value, bool) {
	at := c.rank(x) - len(s.kernel)
	parts, taps := []ir.Value{x}, int64(1)
	for i, k := range s.kernel {
		if taps *= k; k > maxShifts || taps > maxShifts {
			return nil, false
		}
		reach := func(tap int64) dim.Dim { // the end of the slice of a tap
			return out[i].Sub(dim.Const(1)).Mul(dim.Const(s.stride[i])).Add(dim.Const(tap*s.dilation[i] + 1))
		}
		if !c.known(c.shape(x)[at+i].Sub(reach(k-1)), func(lo, hi int64) bool { return lo >= 0 }) {
			return nil, false
		}
		var next []ir.Value
		for _, v := range parts {
			for tap := range k {
				next = append(next, c.slice(v, at+i, dim.Const(tap*s.dilation[i]), reach(tap), s.stride[i]))
			}
		}
		parts = next
	}
	return parts, true
}

// columns returns the patches [N, C, K, P] of a band, for K elements of the kernel and P of the result.
func (c *call) columns(x ir.Value, s *spatial, out []dim.Dim) ir.Value {
	n, area := len(s.kernel), product(out)
	lines := c.shape(x)[:2]
	if parts, ok := c.shifted(x, s, out); ok {
		for i, v := range parts {
			parts[i] = c.reshape(v, lines[0], lines[1], dim.Const(1), area)
		}
		return c.concat(2, parts...)
	}
	p := c.windowed(x, s, out) // [N, C, o1, k1, …]
	perm := []int{0, 1}
	for i := range n {
		perm = append(perm, 3+2*i)
	}
	for i := range n {
		perm = append(perm, 2+2*i)
	}
	kernel := int64(1)
	for _, k := range s.kernel {
		kernel *= k
	}
	return c.reshape(c.transpose(p, perm...), lines[0], lines[1], dim.Const(kernel), area)
}

// depthwise convolves each channel with its own kernel, w[C, 1, …]: it sums, over the elements of the kernel, the
// element times its slice of x. It reports false where [call.shifted] does.
func (c *call) depthwise(x, w ir.Value, s *spatial, out []dim.Dim) (ir.Value, bool) {
	parts, ok := c.shifted(x, s, out)
	if !ok {
		return ir.NoValue, false
	}
	channels := c.shape(w)[0]
	w = c.reshape(w, channels, dim.Const(int64(len(parts))))
	shape := []dim.Dim{dim.Const(1), channels}
	for range out {
		shape = append(shape, dim.Const(1))
	}
	sum := ir.NoValue
	for i, v := range parts {
		v = c.bin("mul", v, c.reshape(c.at(w, 1, dim.Const(int64(i))), shape...))
		if i > 0 {
			v = c.bin("add", sum, v)
		}
		sum = v
	}
	return sum, true
}

// band multiplies patches [N, G, C/G*K, P] by weights [G, O/G, C/G*K].
func (c *call) band(x, w ir.Value, s *spatial, out []dim.Dim, groups int64) ir.Value {
	ws, batch := c.shape(w), c.shape(x)[0]
	g := dim.Const(groups)
	if ws[0].Equal(g) && c.shape(x)[1].Equal(g) && c.dtype(x) == dtype.F32 {
		if y, ok := c.depthwise(x, w, s, out); ok {
			return y
		}
	}
	p := c.columns(x, s, out)
	inner, area := product(ws[1:]), product(out)
	result := append([]dim.Dim{batch, ws[0]}, out...)
	if groups == 1 {
		y := c.bin("matmul", c.reshape(w, ws[0], inner), c.reshape(p, batch, inner, area))
		return c.reshape(y, result...)
	}
	per := ws[0].FloorDiv(groups)
	p = c.reshape(p, batch, g, inner, area)
	if k, ok := per.Const(); ok && k == 1 { // one result channel in each group: dot products
		products := c.bin("mul", c.wide(p), c.wide(c.reshape(w, dim.Const(1), g, inner, dim.Const(1))))
		return c.reshape(c.cast(c.reduce("sum", products, []int{2}, false), c.dtype(x)), result...)
	}
	y := c.bin("matmul", c.reshape(w, g, per, inner), p)
	return c.reshape(y, result...)
}

// convTranspose inserts zeros between the elements of x (the stride) and convolves it with flipped weights.
func convTranspose(c *call) []ir.Value {
	x, w := c.tensor("input"), c.tensor("weight") // [N, C, …], [C, O/G, …]
	n := c.rank(w) - 2
	if n < 1 || c.rank(x) != n+2 {
		c.fail("it takes [N, C, ...] and weights [C, O, ...]")
	}
	s := &spatial{kernel: c.constants64(c.shape(w)[2:]), stride: c.each("stride", n, 1), dilation: c.each("dilation", n, 1)}
	pad := c.each("padding", n, 0)
	more := c.each("output_padding", n, 0)
	groups := c.int("groups", 1)
	zero := c.number(0, c.dtype(x))
	for i := range n {
		x = c.spread(x, 2+i, s.stride[i], zero)
		w = c.flip(w, 2+i)
		edge := s.dilation[i]*(s.kernel[i]-1) - pad[i]
		s.padLow, s.padHigh = append(s.padLow, edge), append(s.padHigh, edge+more[i])
	}
	ws := c.shape(w)
	g := dim.Const(groups)
	w = c.reshape(w, append([]dim.Dim{g, ws[0].FloorDiv(max(groups, 1))}, ws[1:]...)...)
	w = c.transpose(w, moved(n+3, []int{2}, []int{1})...)
	w = c.reshape(w, append([]dim.Dim{ws[1].Mul(g), ws[0].FloorDiv(max(groups, 1))}, ws[2:]...)...)
	for i := range n { // padding beyond the kernel's reach removes elements
		for _, end := range []bool{false, true} {
			x = c.trimmed(x, 2+i, s, i, end)
		}
	}
	unit := *s
	unit.stride = make([]int64, n)
	for i := range unit.stride {
		unit.stride[i] = 1
	}
	y := c.convolve(x, w, &unit, c.out(0).Shape[2:], groups)
	return one(c.biased(y, false))
}

// trimmed slices off the elements that a negative padding removes at the start or the end of an axis.
func (c *call) trimmed(x ir.Value, axis int, s *spatial, i int, end bool) ir.Value {
	n := c.shape(x)[axis]
	switch {
	case !end && s.padLow[i] < 0:
		x = c.slice(x, axis, dim.Const(-s.padLow[i]), n, 1)
		s.padLow[i] = 0
	case end && s.padHigh[i] < 0:
		x = c.slice(x, axis, dim.Const(0), n.Add(dim.Const(s.padHigh[i])), 1)
		s.padHigh[i] = 0
	}
	return x
}

// spread puts step-1 zeros between the elements of an axis.
func (c *call) spread(x ir.Value, axis int, step int64, zero ir.Value) ir.Value {
	if step == 1 {
		return x
	}
	n := c.shape(x)[axis]
	y := c.unsqueeze(x, axis+1)
	none := make([]dim.Dim, c.rank(y))
	high := make([]dim.Dim, c.rank(y))
	high[axis+1] = dim.Const(step - 1)
	y = c.op("pad", []ir.Value{y, zero}, ir.DimsAttr("low", none...), ir.DimsAttr("high", high...))
	y = c.reshape(y, replaced(c.shape(x), axis, n.Mul(dim.Const(step)))...)
	return c.slice(y, axis, dim.Const(0), n.Sub(dim.Const(1)).Mul(dim.Const(step)).Add(dim.Const(1)), 1)
}

// pool reads the parameters of a pooling op, and returns the sizes of the pooled axes of its result.
func (c *call) pool(x ir.Value) (*spatial, []dim.Dim) {
	t := c.out(0)
	n := len(c.ints("kernel_size"))
	switch c.base {
	case "aten.max_pool1d", "aten.max_pool1d_with_indices", "aten.avg_pool1d":
		n = 1
	case "aten.max_pool3d", "aten.max_pool3d_with_indices", "aten.avg_pool3d":
		n = 3
	default:
		n = max(n, 2)
	}
	kernel := c.each("kernel_size", n, 1)
	s := c.window2(n, kernel)
	if len(c.ints("stride")) == 0 {
		s.stride = kernel
	}
	s.ceil = c.bool("ceil_mode", false)
	if t.Rank() < n || c.rank(x) != t.Rank() {
		c.fail("it takes [N, C, ...]")
	}
	return s, t.Shape[t.Rank()-n:]
}

// pooled combines the elements of each window in f32: it joins slices by how.join where [call.shifted] has them, else
// it reduces gathered windows by how.op.
func (c *call) pooled(x ir.Value, s *spatial, out []dim.Dim, how combination) ir.Value {
	dt := c.dtype(x)
	x = c.margin(c.cast(x, dtype.F32), s, out, c.f(how.begin))
	parts, ok := c.shifted(x, s, out)
	if !ok {
		var axes []int
		for i := range s.kernel {
			axes = append(axes, c.rank(x)-len(s.kernel)+2*i+1)
		}
		return c.cast(c.reduce(how.op, c.windowed(x, s, out), axes, false), dt)
	}
	y := parts[0]
	for _, v := range parts[1:] {
		y = c.bin(how.join, y, v)
	}
	return c.cast(y, dt)
}

func maxPool(c *call) []ir.Value {
	x := c.tensor("self")
	if !c.dtype(x).Float() {
		c.fail("it takes floats")
	}
	s, shape := c.pool(x)
	out := one(c.pooled(x, s, shape, largests))
	if len(c.outs) > 1 && c.outs[1] != "" && c.used(c.outs[1]) {
		p := c.windowed(c.margin(x, s, shape, c.f(math.Inf(-1))), s, shape)
		out = append(out, c.poolIndices(x, p, s))
	}
	return out
}

// poolIndices returns the index of the largest element of each window, in the last axes of x joined to one. p are the
// windows.
func (c *call) poolIndices(x, p ir.Value, s *spatial) ir.Value {
	n := len(s.kernel)
	at := c.rank(x) - n
	perm, kernel := lead(at), int64(1)
	for i := range n {
		perm = append(perm, at+2*i)
	}
	for i := range n {
		perm = append(perm, at+2*i+1)
		kernel *= s.kernel[i]
	}
	y := c.transpose(p, perm...) // [..., o1, o2, ..., k1, k2, ...]
	y = c.reshape(y, append(append([]dim.Dim{}, c.shape(y)[:c.rank(x)]...), dim.Const(kernel))...)
	which := c.argOver("max", y, c.rank(x), false)
	index := ir.NoValue
	for i := range n {
		inner := int64(1) // elements of a window for each step along this axis
		for _, k := range s.kernel[i+1:] {
			inner *= k
		}
		step := c.bin("rem", c.bin("div", which, c.i(inner)), c.i(s.kernel[i]))
		row := c.along(i64, c.rank(x), at+i, c.shape(which)[at+i])
		pos := c.bin("add", c.bin("mul", row, c.i(s.stride[i])), c.bin("mul", step, c.i(s.dilation[i])))
		pos = c.bin("sub", pos, c.i(s.padLow[i]))
		if i > 0 {
			pos = c.bin("add", c.bin("mul", index, c.dimValue(c.shape(x)[at+i], i64)), pos)
		}
		index = pos
	}
	return index
}

// avgPool divides the sums of windows.
func avgPool(c *call) []ir.Value {
	x := c.tensor("self")
	s, shape := c.pool(x)
	sum := c.pooled(x, s, shape, sums)
	if c.has("divisor_override") {
		return one(c.bin("div", sum, c.f(c.float("divisor_override", 1))))
	}
	all := int64(1)
	plain := !s.ceil
	for i, k := range s.kernel {
		all *= k
		plain = plain && (s.padLow[i] == 0 || c.bool("count_include_pad", true))
	}
	if plain {
		return one(c.bin("div", sum, c.f(float64(all))))
	}
	if s.ceil && c.bool("count_include_pad", true) {
		c.fail("ceil_mode with count_include_pad is not supported")
	}
	// Each window is divided by the number of its elements that are not padding.
	ones := c.full(c.f(1), c.dtype(x), c.shape(x)...)
	return one(c.bin("div", sum, c.pooled(ones, s, shape, sums)))
}

// adaptive pools an axis of n elements to o windows. As in PyTorch, window i is [floor(i*n/o), ceil((i+1)*n/o)).
func adaptive(reduce string) opRule {
	return func(c *call) []ir.Value {
		x, t := c.tensor("self"), c.out(0)
		n := 2
		switch c.base {
		case "aten.adaptive_avg_pool1d", "aten.adaptive_max_pool1d":
			n = 1
		case "aten.adaptive_avg_pool3d", "aten._adaptive_avg_pool3d", "aten.adaptive_max_pool3d":
			n = 3
		}
		if c.rank(x) < n+1 || t.Rank() != c.rank(x) {
			c.fail("it takes [N, C, ...]")
		}
		for i := c.rank(x) - n; i < t.Rank(); i++ {
			x = c.adapted(x, i, t.Shape[i], reduce)
		}
		return one(x)
	}
}

func (c *call) adapted(x ir.Value, axis int, out dim.Dim, reduce string) ir.Value {
	n := c.shape(x)[axis]
	if k, ok := out.Const(); ok && k == 1 {
		return c.reduce(reduce, x, []int{axis}, true)
	}
	size, ok1 := n.Const()
	o, ok2 := out.Const()
	switch {
	case !ok1 || !ok2:
		c.fail("an axis of dynamic size (%s) is pooled to %s windows", n, out)
		return ir.NoValue
	case o > 0 && size%o == 0:
		return c.reduce(reduce, c.reshape(x, replaced(c.shape(x), axis, out, dim.Const(size/o))...), []int{axis + 1}, false)
	case o < 1 || o > 64:
		c.fail("%d elements are pooled to %d windows; more than 64 of different sizes are not supported", size, o)
	}
	var parts []ir.Value
	for i := range o {
		from, to := i*size/o, ((i+1)*size+o-1)/o
		parts = append(parts, c.reduce(reduce, c.slice(x, axis, dim.Const(from), dim.Const(to), 1), []int{axis}, true))
	}
	return c.concat(axis, parts...)
}

// im2col is torch.nn.functional.unfold: patches as columns.
func im2col(c *call) []ir.Value {
	x, t := c.tensor("self"), c.out(0)
	if c.rank(x) != 4 {
		c.fail("it takes [N, C, H, W]")
	}
	s := c.window2(2, c.each("kernel_size", 2, 1))
	var out []dim.Dim
	for i := range 2 {
		reach := s.dilation[i]*(s.kernel[i]-1) + 1
		out = append(out, c.shape(x)[2+i].Add(dim.Const(2*s.padLow[i]-reach)).FloorDiv(s.stride[i]).Add(dim.Const(1)))
	}
	p := c.patches(x, s, out, c.number(0, c.dtype(x)))
	return one(c.reshape(c.transpose(p, 0, 1, 3, 5, 2, 4), t.Shape...))
}
