package cuda

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"pwc/attention"
	"pwc/internal/cuda/gpuarch"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda/nvrtc"
)

// The source of the kernel. paged.cu, which comes last, describes it.
var (
	//go:embed common.cu
	commonSource string
	//go:embed warpgroup.cu
	warpgroupSource string
	//go:embed tensor.cu
	tensorSource string
	//go:embed simt.cu
	simtSource string
	//go:embed paged.cu
	pagedSource string
)

// Variant has all that the code of a kernel depends on: some of the shapes and attributes of a call.
// Layers with equal ones share a kernel. A pair is a row and one of the query heads that share a key-value
// head. A tile has the pairs that a block computes together: up to 16 in a small tile, 64 or 128 in a large one.
type Variant struct {
	HeadDim   int
	Group     int // query heads of a key-value head
	BlockSize int // tokens
	DType     dtype.DType
	KVDType   dtype.DType
	Causal    bool // rows see no later position
	Window    bool // rows see a window of the sequence
	Softcap   bool // scores are capped
	Negative  bool // the scale is below 0
	Tensor    bool // tensor cores: q and kv of one 16-bit dtype
	Large     bool // with Tensor, large tiles: each warp has pairs of its own; in small tiles the warps share the pairs and split the keys
	Warps     int  // of a block
	Stages    int  // prefetched stages of keys and values in shared memory
	Resident  int  // blocks that run on a multiprocessor at once
}

// maxHeadDim is the largest head size: the kernel without tensor cores has shared memory for it on
// every architecture.
const maxHeadDim = 512

// maxBlock is the largest number of elements of the keys in a cache block that tensor-core kernels support:
// they hold the distance between blocks in bytes, keys and values together, in 32 bits.
const maxBlock = math.MaxInt32 / 4

// shortHead is the largest head size with blocks of eight warps in small steps. longHead is the
// largest head size with large tiles of 2*tensorTile pairs, and with dense kernels.
const (
	shortHead = 64
	longHead  = 128
)

// The kernels of dense steps prefetch at least denseKeys keys, and a multiprocessor has at most
// denseThreads threads, so that each has 96 registers.
const (
	denseKeys    = 96
	denseThreads = 640
)

// Constants on which the kernels' sources rest, too (common.cu, tensor.cu, simt.cu and paged.cu).
const (
	smallTile    = 16           // pairs
	unit         = 64           // keys; the parts of a context have whole units
	minUnits     = 8            // of a part, in large tiles
	longUnits    = 32           // of a long context, which may have longParts parts
	partExtra    = 4            // floats of a part's result after its sums
	tensorTile   = 64           // pairs of a large tile of heads above 128; mostly twice as many up to there
	warpKeys     = 16           // of a stage, for each warp
	simtTile     = 16           // pairs of a tile without tensor cores
	simtKeys     = 32           // of a stage without tensor cores, for heads up to 128; half of it above
	headerInt32s = 4            // of the metadata of a step
	behindTables = 4 * warpKeys // int32s after the tables that kernels may load: a stage of four warps, in blocks of one token
)

// The warps of a warpgroup, and the rows of its operands. A panel has the same number of elements per row.
const (
	warpgroup     = 4
	warpgroupRows = 64
)

// Bounds of a launch.
const (
	maxParts    = 64 // of a context
	maxMore     = 4  // of a long context that is split only for balance
	maxResident = 4  // blocks per multiprocessor in several waves
	maxDense    = 6  // blocks per multiprocessor in a single wave
	maxStages   = 3
	reserved    = 1040 // bytes of shared memory that a block takes in addition to the kernel's
)

var targetPattern = regexp.MustCompile(`^cuda:(sm_([1-9][0-9]{1,2})[af]?)$`)

// arch returns "sm_90" and 90 of "cuda:sm_90".
func arch(target string) (string, int, error) {
	m := targetPattern.FindStringSubmatch(target)
	if m == nil {
		return "", 0, fmt.Errorf("%s: target %q is not of the form cuda:sm_90", attention.Name, target)
	}
	n, err := strconv.Atoi(m[2])
	if err != nil || n < 80 {
		return "", 0, fmt.Errorf("%s: target %s is older than sm_80, the oldest that kernels are made for", attention.Name, target)
	}
	return m[1], n, nil
}

// VariantsOf returns the distinct kernels for calls with this shape and these parameters on a
// target. Heads of more than 512 elements, and targets before sm_80, are errors.
func VariantsOf(s *attention.Shape, p *attention.Params, target string) ([]Variant, error) {
	_, n, err := arch(target)
	if err != nil {
		return nil, err
	}
	v, err := variantOf(s, p, gpuarch.SharedBytes(n))
	if err != nil {
		return nil, err
	}
	k := v.kinds(gpuarch.SharedBytes(n))
	return k.each(), nil
}

// kinds are the kernels of a shape. Requests with at most as many pairs as a small tile are
// computed by a kernel that depends on the size of the step, others by the kernel of large tiles.
// A step with both kinds of requests launches both. A captured call records the first, which
// computes any step.
//
// In small steps all blocks run at once, and each has the most shared memory for prefetched keys.
// In larger steps a multiprocessor may run one block more, with less memory each, if that
// distributes the blocks more evenly.
//
// With short heads a stage of four warps has few bytes, and the prologue and the end of a block
// take long compared with its keys. A multiprocessor then runs up to two blocks of eight warps in
// small steps, and up to four blocks of four warps in larger ones, whose prologues and ends overlap
// with other blocks.
//
// A step that is a little too large for one wave of such blocks is dense: its blocks have even
// less memory, or half the warps, so that all of them run at once.
type kinds struct {
	few   Variant // small steps
	many  Variant // larger steps, with the most blocks per multiprocessor of steps with several waves
	dense dense   // steps of a single wave, with more blocks per multiprocessor than many
	large Variant // large tiles; the zero Variant if the others compute all requests
}

// dense has the kernels of dense steps, by rising number of blocks; unused entries are zero.
type dense [maxDense - 1]Variant

// each returns the variants that differ.
func (k *kinds) each() []Variant {
	out := []Variant{k.few}
	for _, v := range append([]Variant{k.large, k.many}, k.dense[:]...) {
		if v.Resident > 0 && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// hasLarge reports whether the kernel of large tiles may be needed in steps with s.Rows rows.
func (k *kinds) hasLarge(s *attention.Shape) bool {
	return k.large.Large && s.Rows*k.large.Group > smallTile
}

// variantOf returns the fields that all kernels of a shape have in common. shared is the largest shared
// memory of a block, in bytes.
func variantOf(s *attention.Shape, p *attention.Params, shared int) (Variant, error) {
	if s.HeadDim > maxHeadDim {
		return Variant{}, fmt.Errorf("%s: heads of size %d, the kernels have room for %d", attention.Name, s.HeadDim, maxHeadDim)
	}
	v := Variant{HeadDim: s.HeadDim, Group: s.Group(), BlockSize: s.BlockSize, DType: s.DType, KVDType: s.KVDType,
		Causal: p.Causal, Window: p.Window > 0, Softcap: p.Softcap > 0, Negative: p.Scale < 0, Warps: 4, Stages: 2}
	v.Tensor = s.DType == s.KVDType && s.DType != dtype.F32 && s.HeadDim%16 == 0 && s.HeadDim <= 256
	if v.Tensor && (v.shared()+reserved > shared+1024 || int64(s.BlockSize)*int64(s.KVHeads)*int64(s.HeadDim) > maxBlock) {
		v.Tensor = false
	}
	return v, nil
}

// kinds returns the kernels of the shapes for which variantOf returns v. On tensor cores, if a single row
// has more pairs than a small tile, all tiles are large.
func (v Variant) kinds(shared int) kinds {
	if !v.Tensor {
		v.Stages = 1
		v.Resident = v.fit(shared, maxResident)
		return kinds{few: v, many: v}
	}
	large := v
	large.Large = true
	v.Large = v.Group > smallTile
	var k kinds
	if v.HeadDim > shortHead {
		k = kinds{few: v.staged(shared, maxStages, 2), many: v.staged(shared, v.Stages, 3), large: large.staged(shared, maxStages, 2)}
		if k.many.Resident <= k.few.Resident {
			k.many = k.few
		}
	} else {
		wide := v
		wide.Warps *= 2
		k = kinds{few: wide.staged(shared, maxStages, 2), many: v.staged(shared, maxStages, maxResident), large: large.staged(shared, 2*maxStages, 2)}
	}
	if v.Large {
		k.large = Variant{}
	} else {
		k.dense = v.denser(shared, k.many.Resident)
	}
	return k
}

// denser returns the variants with more than resident blocks per multiprocessor, in ascending
// order: with four warps, or two if four prefetch too little or are too many threads. It leaves out
// numbers of blocks for which two warps prefetch too little as well.
func (v Variant) denser(shared, resident int) (out dense) {
	found := 0
	for n := resident + 1; n <= maxDense && v.HeadDim <= longHead; n++ {
		for _, warps := range [...]int{4, 2} {
			d := v
			d.Warps, d.Resident = warps, n
			for d.Stages = 2 * maxStages; d.Stages > 1 && d.fit(shared, n) < n; {
				d.Stages--
			}
			if d.Stages > 1 && d.Stages*d.keys() >= denseKeys && 32*warps*n <= denseThreads {
				out[found] = d
				found++
				break
			}
		}
	}
	return out
}

// staged returns the variant with as many stages, up to stages, as leave room for a second block,
// which computes while the first starts or ends; and with as many blocks per multiprocessor as then
// fit, up to resident.
func (v Variant) staged(shared, stages, resident int) Variant {
	for v.Stages < stages {
		more := v
		more.Stages++
		if more.fit(shared, resident) < 2 {
			break
		}
		v = more
	}
	v.Resident = v.fit(shared, resident)
	return v
}

// fit returns how many blocks, 1 to most, a multiprocessor runs at once if a block may have shared bytes of
// shared memory.
func (v *Variant) fit(shared, most int) int {
	return max(1, min((shared+1024)/(v.shared()+reserved), most))
}

// sharedOf returns the dynamic shared memory of a block where a block may have shared bytes. With Tensor
// a multiprocessor then runs at most resident blocks: it has 1 KiB more than a block may have, and
// reserves 1 KiB for each block. Otherwise it is the bytes that the kernel uses.
func (v *Variant) sharedOf(resident, shared int) int {
	if !v.Tensor {
		return v.shared()
	}
	return max(v.shared(), ((shared+1024)/(resident+1)-1024)/16*16+16)
}

// shared returns the dynamic shared memory of a block, in bytes.
func (v *Variant) shared() int {
	if v.Tensor { // keys and values, in rows of HeadDim + 8; at the end of a small tile, sums of the warps
		return max(v.Stages*2*v.keys()*(v.HeadDim+8)*2, 4*v.Warps*smallTile*(v.HeadDim+8))
	}
	keys := v.keys()
	return 4 * ((simtTile+keys)*(v.HeadDim+1) + keys*v.HeadDim + simtTile*keys)
}

// keys returns the number of keys of a stage.
func (v *Variant) keys() int {
	switch {
	case v.Tensor:
		return warpKeys * v.Warps
	case v.HeadDim <= 128:
		return simtKeys
	}
	return simtKeys / 2
}

// tile returns the number of pairs of a tile.
func (v *Variant) tile() int {
	one := 16 * v.Warps // each warp has the 16 rows of an mma instruction
	switch {
	case !v.Tensor:
		return simtTile
	case !v.Large:
		return smallTile
	case v.Resident > 2 && v.Group <= one:
		return one
	case v.HeadDim <= longHead:
		return 2 * tensorTile
	}
	return tensorTile
}

// warpgroups reports whether arch-specific code multiplies large tiles by wgmma: tiles of two
// operands of 64 rows, if two blocks of four warps have registers for the sums, and stages for
// queries and keys.
func (v *Variant) warpgroups() bool {
	return v.Large && v.Warps == warpgroup && v.Resident == 2 && v.Stages > 2 && v.tile() == 2*warpgroupRows && v.HeadDim%warpgroupRows == 0
}

// rowTiles returns the number of tiles of the pairs of one row.
func (v *Variant) rowTiles() int { return (v.Group + v.tile() - 1) / v.tile() }

// tiles returns the number of tile indices for the rows of a number of requests (paged.cu).
func (v *Variant) tiles(rows, requests int) int {
	if v.Tensor && !v.Large { // the kernel's BY_ROW
		return rows
	}
	return rows*v.Group/v.tile() + requests
}

// String names the variant: "paged_bf16_d128_g4_b16_tensor_2x4" for small tiles of a causal call without
// window, softcap or negative scale, in two blocks of four warps on each multiprocessor.
func (v Variant) String() string {
	s := "paged_" + v.DType.String()
	if v.KVDType != v.DType {
		s += "_kv" + v.KVDType.String()
	}
	s += fmt.Sprintf("_d%d_g%d_b%d", v.HeadDim, v.Group, v.BlockSize)
	for _, f := range [...]struct {
		is   bool
		name string
	}{{!v.Causal, "bidirectional"}, {v.Window, "window"}, {v.Softcap, "softcap"}, {v.Negative, "negative"}} {
		if f.is {
			s += "_" + f.name
		}
	}
	if v.Tensor {
		s += "_tensor"
		if v.Large {
			s += "_large"
		}
		s += fmt.Sprintf("_%dx%d", v.Resident, v.Warps) // blocks of a multiprocessor, warps of a block
	}
	return s
}

// Source returns the CUDA C of the kernel. It is C++17 without headers; its
// entry is "paged".
func (v Variant) Source() string {
	number := map[dtype.DType]string{dtype.F32: "F32", dtype.F16: "F16", dtype.BF16: "BF16"}
	flag := map[bool]int{true: 1}
	name, attend := "simt.cu", simtSource
	if v.Tensor {
		name, attend = "tensor.cu", tensorSource
	}
	var b strings.Builder
	fmt.Fprintf(&b, "// %s\n#define F32 0\n#define F16 1\n#define BF16 2\n", v)
	fmt.Fprintf(&b, "#define HEAD_DIM %d\n#define GROUP %d\n#define BLOCK_SIZE %d\n", v.HeadDim, v.Group, v.BlockSize)
	fmt.Fprintf(&b, "#define Q_TYPE %s\n#define KV_TYPE %s\n#define TENSOR %d\n", number[v.DType], number[v.KVDType], flag[v.Tensor])
	fmt.Fprintf(&b, "#define CAUSAL %d\n#define WINDOW %d\n#define SOFTCAP %d\n#define NEGATIVE %d\n", flag[v.Causal], flag[v.Window], flag[v.Softcap], flag[v.Negative])
	fmt.Fprintf(&b, "#define TILE %d\n#define LARGE %d\n#define WARPS %d\n#define STAGES %d\n#define RESIDENT %d\n", v.tile(), flag[v.Large], v.Warps, v.Stages, v.Resident)
	parts := [][2]string{{"common.cu", commonSource}, {name, attend}, {"paged.cu", pagedSource}}
	if v.Tensor {
		fmt.Fprintf(&b, "#define WARPGROUPS %d\n", flag[v.warpgroups()])
		parts = slices.Insert(parts, 1, [2]string{"warpgroup.cu", warpgroupSource})
	}
	for _, part := range parts {
		fmt.Fprintf(&b, "#line 1 %q\n%s", part[0], part[1])
	}
	return b.String()
}

// ArchSpecific returns the target of the source's arch-specific code, "sm_90a"; "" if it has none.
func (v Variant) ArchSpecific() string {
	if v.warpgroups() {
		return "sm_90a"
	}
	return ""
}

// Compiler compiles CUDA C. A compile/cuda.Compiler implements it.
type Compiler = nvrtc.Maker

// Compile returns a program with the kernel of a variant for a target such as "cuda:sm_90". No
// GPU is needed.
func Compile(ctx context.Context, c Compiler, target string, v Variant) (*program.Program, error) {
	name, _, err := arch(target)
	if err != nil {
		return nil, err
	}
	cubin, ptx, err := nvrtc.CompileSpecific(ctx, c, v.Source(), v.String()+".cu", name, v.ArchSpecific())
	var kernel program.Kernel
	if err == nil {
		kernel, err = program.CUDAKernel("paged", cubin, ptx)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s for %s: %w", attention.Name, v, target, err)
	}
	return program.Alone(target, kernel), nil
}

// Code returns a program with the kernel of a variant.
type Code func(ctx context.Context, v Variant) (*program.Program, error)

// Compiled returns a Code that compiles a kernel for a target at each call.
func Compiled(c Compiler, target string) Code {
	return func(ctx context.Context, v Variant) (*program.Program, error) { return Compile(ctx, c, target, v) }
}
