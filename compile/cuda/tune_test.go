package cuda_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/compile/cuda/internal/gemm"
	"pwc/internal/oracle"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// arena allocates memory for measurements, filled with a pattern that is a small number in every float
// dtype. When all is used it begins again at its start, which is in no cache any more if the arena is large.
type arena struct {
	mem  device.Memory
	used int64
	hot  *arena // for data that kernels pass to each other; it fits into the second-level cache
}

// hotBytes is the size of hot, less than the second-level cache of an H200 (50 MiB).
const hotBytes = 40 << 20

func (g *rig) arena(t testing.TB, bytes int64) *arena {
	t.Helper()
	take := func(bytes int64) *arena {
		mem, err := g.dev.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mem.Free() })
		if err := g.stream.Fill(device.Buffer{Memory: mem, Size: bytes}, 0x3c); err != nil {
			t.Fatal(err)
		}
		return &arena{mem: mem}
	}
	a := take(bytes)
	a.hot = take(hotBytes)
	return a
}

func (a *arena) take(t testing.TB, bytes int64) device.Buffer {
	t.Helper()
	at := (a.used + 511) &^ 511
	if at+bytes > a.mem.Size() {
		at = 0
	}
	a.used = at + bytes
	return device.Buffer{Memory: a.mem, Offset: at, Size: bytes}
}

// bindAll binds a program count times, each time with other memory for weights, and with the same memory
// for everything else, as in a step with many layers.
func (g *rig) bindAll(t testing.TB, p *program.Program, symbols map[string]int64, a *arena, count int) (exe device.Executable, out []device.BoundLaunch, err error) {
	exe, err = g.dev.Load(p, nil)
	if err != nil {
		return nil, nil, err
	}
	values := make([]int64, len(p.Symbols))
	for i, s := range p.Symbols {
		values[i] = symbols[s]
	}
	scratch, err := exe.ScratchBytes(values)
	if err != nil {
		return exe, nil, err
	}
	for range count {
		a.hot.used = 0
		var args device.Args
		for _, x := range p.Params {
			shape, err := oracle.Extents(x.Shape, symbols)
			if err != nil {
				return exe, nil, err
			}
			from := a
			if x.Kind != program.ParamWeight {
				from = a.hot
			}
			args.Params = append(args.Params, from.take(t, bytesOf(x.DType, shape)))
		}
		for _, x := range p.Results {
			shape, err := oracle.Extents(x.Shape, symbols)
			if err != nil {
				return exe, nil, err
			}
			args.Results = append(args.Results, a.hot.take(t, bytesOf(x.DType, shape)))
		}
		args.Scratch = a.hot.take(t, scratch)
		l, err := exe.Bind(values, args)
		if err != nil {
			return exe, nil, err
		}
		out = append(out, l)
	}
	return exe, out, nil
}

func bytesOf(dt dtype.DType, shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return dt.Bytes(n)
}

// measure returns the median time of a graph of the launches.
func (g *rig) measure(launches []device.BoundLaunch) (time.Duration, error) {
	if err := g.stream.(device.LibraryStream).WarmLibraries(launches[0]); err != nil {
		return 0, err
	}
	if err := g.stream.Launch(launches[0]); err != nil {
		return 0, err
	}
	if err := g.stream.Synchronize(); err != nil {
		return 0, err
	}
	if err := g.stream.BeginCapture(device.CaptureThreadLocal); err != nil {
		return 0, err
	}
	for _, l := range launches {
		if err := g.stream.Launch(l); err != nil {
			g.stream.EndCapture()
			return 0, err
		}
	}
	graph, err := g.stream.EndCapture()
	if err != nil {
		return 0, err
	}
	defer graph.Close()
	var times []time.Duration
	for i := range 9 {
		start, err := g.dev.NewTimedEvent()
		if err != nil {
			return 0, err
		}
		end, err := g.dev.NewTimedEvent()
		if err != nil {
			return 0, err
		}
		g.stream.Record(start)
		if err := g.stream.LaunchGraph(graph); err != nil {
			return 0, err
		}
		g.stream.Record(end)
		if err := g.stream.Synchronize(); err != nil {
			return 0, err
		}
		d, err := g.dev.Elapsed(start, end)
		if err != nil {
			return 0, err
		}
		start.Close()
		end.Close()
		if i >= 2 {
			times = append(times, d)
		}
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// candidates lists shapes to measure for a matrix and a number of rows.
func candidates(rows int, cols, depth int64) []cuda.Shape {
	var out []cuda.Shape
	if rows <= 2 {
		for _, c := range [][4]int{{4, 1, 4, 8}, {4, 1, 8, 8}, {2, 2, 8, 8}, {2, 2, 4, 4}, {8, 1, 4, 8}, {8, 1, 8, 8}, {4, 1, 4, 4}, {2, 1, 8, 8}, {4, 1, 16, 16}, {2, 1, 4, 4}} {
			out = append(out, cuda.GEMV(gemm.GEMV{Rows: rows, Depth: depth, ColumnsAtOnce: c[0], Unroll: c[1], Warps: c[3]}, c[2]))
		}
	}
	if rows > 1 && rows <= 64 {
		out = append(out, warpPipelines((rows+7)/8*8, cols, depth)...)
	}
	if rows >= 8 && rows <= 64 {
		out = append(out, blockPipelines((rows+7)/8*8, cols, depth)...)
	}
	if rows > 16 && rows <= 96 {
		out = append(out, wgmmas((rows+31)/32*32, cols, depth)...)
	}
	if rows >= 32 {
		for _, c := range [][5]int{{32, 64, 64, 4, 0}, {32, 128, 64, 4, 2}, {64, 64, 64, 4, 2}, {64, 64, 64, 3, 3}, {64, 128, 64, 4, 0}, {64, 128, 64, 3, 2}, {64, 128, 32, 4, 2}, {128, 64, 64, 4, 0}, {128, 64, 64, 3, 2}, {128, 128, 64, 3, 2}, {128, 128, 64, 4, 0}, {128, 128, 32, 4, 2}} {
			if c[0] > 2*rows {
				continue
			}
			for _, cluster := range []int{1, 2, 4} {
				if tiles := cols / int64(c[1]) * int64(cluster); cluster == 1 || tiles <= 1024 {
					out = append(out, cuda.Tiled(gemm.Tiled{Rows: c[0], Cols: c[1], K: c[2], Stages: c[3], Cluster: cluster, MinBlocks: c[4]}))
				}
			}
		}
	}
	return out
}

// warpPipelines lists warp pipelines that fit into shared memory, with one or several blocks for each
// multiprocessor of an H200.
func warpPipelines(rows int, cols, depth int64) []cuda.Shape {
	var out []cuda.Shape
	each := int(cols+132*16-1) / (132 * 16)
	for _, units := range slices.Compact([]int{each, (each + 1) / 2 * 2, 2}) {
		for mt := 1; mt <= min(units, 4); mt++ {
			for _, warps := range []int{4, 6, 8} {
				for _, ring := range []int{120, 160, 200} {
					stages := ring << 10 / (warps * (16*mt + rows) * 128)
					s := cuda.WarpPipeline(gemm.WarpPipeline{Rows: rows, Cols: 16 * units, UnitCols: mt, Warps: warps, Stages: stages, Depth: depth})
					if mt < 2 && units > 2 {
						continue
					}
					if units%mt == 0 && stages > 1 && s.Bytes() <= 225<<10 && mt*rows <= 128 && !slices.ContainsFunc(out, func(o cuda.Shape) bool { return o.String() == s.String() }) {
						out = append(out, s)
					}
				}
			}
		}
	}
	return out
}

// dsmemBuffer returns the bytes of shared memory for the sums that the other blocks of a cluster send, if each
// block adds the sums of a share of the rows.
func dsmemBuffer(rows, cols, cluster int) int {
	return 4 * (cluster - 1) * ((rows + cluster - 1) / cluster) * (cols + 4)
}

// blockPipelines lists block pipelines that fill an H200 with one or two blocks for each multiprocessor,
// in one wave or several.
func blockPipelines(rows int, cols, depth int64) []cuda.Shape {
	var out []cuda.Shape
	add := func(units, wm, wn, wk, bk, cluster, blocks int) {
		n, warps := 16*units, wm*wn*wk
		room := (225<<10)/blocks - dsmemBuffer(rows, n, cluster)
		sums := n * rows / (wm * wn * 32) // of a thread
		stages := min(room/((rows+n)*bk*2), 16)
		if units%wn != 0 || rows%(8*wm) != 0 || bk%(32*wk) != 0 || warps < 3 || warps > 16 || sums > 128 || sums*warps*32 > 40000/blocks ||
			stages < 3 && (stages < 2 || bk < 128) || int64(stages*bk*cluster) > depth || 4*rows*wk*(n+4) > room {
			return
		}
		s := cuda.BlockPipeline(gemm.BlockPipeline{Rows: rows, Cols: n, WarpsM: wm, WarpsN: wn, WarpsK: wk, K: bk, Stages: stages, Cluster: cluster, MinBlocks: blocks})
		if !slices.ContainsFunc(out, func(o cuda.Shape) bool { return o.String() == s.String() }) {
			out = append(out, s)
		}
	}
	ways := []struct{ cluster, blocks, waves int }{{1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {2, 1, 1}, {2, 2, 1}}
	if cols > 132*16*20 { // too many for one wave
		ways = []struct{ cluster, blocks, waves int }{{1, 1, 4}, {1, 1, 5}, {1, 1, 6}, {1, 1, 8}, {1, 2, 4}, {1, 2, 5}, {1, 2, 6}, {1, 2, 8}}
	}
	for _, c := range ways {
		units := int(cols*int64(c.cluster)+int64(132*c.blocks*c.waves*16)-1) / (132 * c.blocks * c.waves * 16)
		for wm := 1; wm <= min(2, max(1, rows/16)); wm++ {
			for wn := 1; wn <= units; wn++ {
				for _, wk := range []int{1, 2, 4, 8, 16} {
					for _, bk := range []int{64, 128, 256, 512} {
						add(units, wm, wn, wk, bk, c.cluster, c.blocks)
					}
				}
			}
		}
	}
	return out
}

// wgmmas lists wgmma kernels for 32, 64 or 96 rows that fill an H200 with one or two blocks for
// each multiprocessor, in clusters of up to three.
func wgmmas(rows int, cols, depth int64) []cuda.Shape {
	var out []cuda.Shape
	for _, c := range []struct{ cluster, blocks int }{{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}} {
		cluster, places := c.cluster, 132*c.blocks
		each := (int(cols*int64(cluster)+int64(places)-1)/places + 7) / 8 * 8
		for _, n := range slices.Compact([]int{each, (each + 15) / 16 * 16, (each + 31) / 32 * 32, (each + 63) / 64 * 64}) {
			for _, w := range [][2]int{{1, 1}, {2, 1}, {1, 2}, {1, 3}} {
				groups, turns := w[0], w[1]
				for _, fill := range []int{64, 128, 256} {
					for _, bk := range []int{64, 128} {
						room := 225<<10/c.blocks - 1<<10 - 4*(cluster-1)*rows*n // without the alignment of stages and the leader's DSMEM buffer
						stages := min(room/((rows+n)*bk*2), 12)
						tiles, sums := 1, n/groups/2
						if rows != 64 { // w is the first operand
							tiles = (n + 63) / 64
							sums = tiles / groups * rows / 2
						}
						registers := max(sums, n*bk/8/fill*2) + 36 // of a thread
						threads := groups*turns*128 + fill + min(fill, 128)
						if rows != 64 && tiles%groups != 0 || n%(8*groups) != 0 || stages < max(2, turns) || 4*rows*turns*(n+4) > room || int64(stages*bk*cluster) > depth ||
							(registers+7)/8*8*((threads+127)/128*128)*c.blocks > 64<<10 || n > 256 || (cols+int64(n)-1)/int64(n)*int64(cluster) < int64(90*c.blocks) {
							continue
						}
						out = append(out, cuda.WGMMA(gemm.WGMMA{Rows: rows, Cols: n, Consumers: groups, PingPong: turns, Producers: fill, K: bk, Stages: stages, Cluster: cluster, MinBlocks: c.blocks}))
					}
				}
			}
		}
	}
	return out
}

// TestTune measures shapes for the GEMMs of models, on cold weights. PWC_TUNE lists numbers of
// rows. PWC_TUNE_COLS lists matrices (28672x4096) and PWC_TUNE_SHAPES is a prefix of shape names;
// without them the test measures all.
func TestTune(t *testing.T) {
	list := os.Getenv("PWC_TUNE")
	if list == "" {
		t.Skip("PWC_TUNE is not set")
	}
	g := openGPU(t)
	const total = 6 << 30
	a := g.arena(t, total)
	alone := g.archSpecific(t)
	for _, c := range [][2]int64{{28672, 4096}, {4096, 14336}, {6144, 4096}, {4096, 4096}, {16384, 2048}, {2048, 8192}, {2048, 2048}, {3072, 2048}, {8192, 4096}, {12288, 4096}, {128256, 4096}} {
		if w := os.Getenv("PWC_TUNE_COLS"); w != "" && !slices.Contains(strings.Split(w, ","), fmt.Sprint(c[0], "x", c[1])) {
			continue
		}
		m := productModule(t, dtype.BF16, dtype.BF16, c[1], c[0])
		for _, word := range strings.Split(list, ",") {
			var rows int
			fmt.Sscan(word, &rows)
			shapes := slices.DeleteFunc(candidates(rows, c[0], c[1]), func(s cuda.Shape) bool { return !strings.HasPrefix(s.String(), os.Getenv("PWC_TUNE_SHAPES")) })
			programs := make([]*program.Program, len(shapes)+1)
			var e errgroup.Group
			e.SetLimit(runtime.NumCPU())
			for i := range programs {
				e.Go(func() (err error) {
					var b compile.Backend = g.backend
					if i < len(shapes) {
						b = cuda.Only{Backend: alone, Shape: shapes[i]}
					}
					programs[i], err = compile.Compile(context.Background(), m, compile.Shape{}, b, compile.Options{})
					return err
				})
			}
			if err := e.Wait(); err != nil {
				t.Fatal(err)
			}
			type result struct {
				name string
				d    time.Duration
			}
			var results []result
			const count = 24
			for i, p := range programs {
				name := "chosen"
				if i < len(shapes) {
					name = shapes[i].String()
				}
				exe, launches, err := g.bindAll(t, p, map[string]int64{"N": int64(rows)}, a, count)
				if err == nil {
					var d time.Duration
					d, err = g.measure(launches)
					results = append(results, result{name, d / count})
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if exe != nil {
					exe.Close()
				}
			}
			slices.SortFunc(results, func(a, b result) int { return int(a.d - b.d) })
			for i, r := range results {
				if i < 12 || r.name == "chosen" {
					t.Logf("%6d x %5d rows %3d: %-28s %7.2f µs %5.0f GB/s", c[0], c[1], rows, r.name, float64(r.d.Nanoseconds())/1e3, float64(c[0]*c[1]*2)/float64(r.d.Nanoseconds()))
				}
			}
		}
	}
}

// stepName returns the names of the kernels and routines that a program runs.
func stepName(t testing.TB, g *rig, p *program.Program, symbols map[string]int64) string {
	t.Helper()
	env := func(name string) (int64, bool) {
		if v, ok := symbols[name]; ok {
			return v, true
		}
		v, ok := g.dev.Info().Properties[name]
		return v, ok
	}
	r, err := device.Resolve(p, env, nil, g.dev.Libraries())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range r.Steps {
		if s.Kind == program.StepKernel {
			names = append(names, p.Kernels[s.Kernel].Name)
		} else {
			names = append(names, s.Extern)
		}
	}
	return strings.Join(names, " + ")
}

// configsOf returns the config of the model with the given name, or otherwise for any other name.
func configsOf(name string, otherwise ...string) []string {
	switch name {
	case "8B":
		return []string{shape8B}
	case "1B":
		return []string{shape1B}
	case "toy":
		return []string{shapeToy}
	}
	return otherwise
}

// TestTuneFused measures shapes for the launches of a layer without its attention.
// PWC_TUNE_CHAINS lists numbers of rows, PWC_TUNE_OF is the name of a model (8B, 1B or toy); without it
// the models are 8B and 1B.
func TestTuneFused(t *testing.T) {
	list := os.Getenv("PWC_TUNE_CHAINS")
	if list == "" {
		t.Skip("PWC_TUNE_CHAINS is not set")
	}
	g := openGPU(t)
	a := g.arena(t, 6<<30)
	const count = 24
	for _, config := range configsOf(os.Getenv("PWC_TUNE_OF"), shape8B, shape1B) {
		m := pieces(t, config)[1]
		depth, _ := m.Weights[0].Type.Shape[1].Const()
		for _, word := range strings.Split(list, ",") {
			var rows int
			fmt.Sscan(word, &rows)
			var shapes []cuda.Shape
			switch {
			case rows <= 4:
				for _, c := range [][4]int{{4, 1, 8, 8}, {4, 2, 8, 8}, {4, 4, 8, 8}, {2, 2, 8, 8}, {4, 1, 4, 4}, {4, 2, 4, 4}, {4, 1, 2, 2}, {4, 2, 1, 8}, {4, 2, 1, 4}, {2, 1, 8, 8}, {2, 1, 4, 4}} {
					shapes = append(shapes, cuda.GEMV(gemm.GEMV{Rows: rows, Depth: depth, ColumnsAtOnce: c[0], Unroll: c[1], Warps: c[3]}, c[2]))
				}
			default:
				n := (rows + 7) / 8 * 8
				for _, units := range []int{2, 4, 8} {
					shapes = append(shapes, cuda.BlockPipeline(gemm.BlockPipeline{Rows: n, Cols: 16 * units, WarpsM: 1, WarpsN: units, WarpsK: 1, K: 64, Stages: 3, Cluster: 1, MinBlocks: 1}), cuda.BlockPipeline(gemm.BlockPipeline{Rows: n, Cols: 16 * units, WarpsM: 1, WarpsN: units, WarpsK: 1, K: 128, Stages: 3, Cluster: 1, MinBlocks: 1}))
				}
			}
			programs := make([]*program.Program, len(shapes))
			var e errgroup.Group
			for i := range shapes {
				e.Go(func() (err error) {
					programs[i], err = compile.Compile(context.Background(), m, compile.Shape{}, cuda.Only{Backend: g.backend, Shape: shapes[i]}, compile.Options{})
					return err
				})
			}
			if err := e.Wait(); err != nil {
				t.Fatal(err)
			}
			for i := range programs[0].Steps {
				line := ""
				for n, p := range programs {
					one := alone(p, i)
					symbols := map[string]int64{one.Symbols[0]: int64(rows)}
					exe, list, err := g.bindAll(t, one, symbols, a, count)
					if err != nil {
						t.Fatalf("%s: %v", shapes[n], err)
					}
					d, err := g.measure(list)
					if err != nil {
						t.Fatal(err)
					}
					if n == 0 {
						line = fmt.Sprintf("%d rows, %s", rows, stepName(t, g, one, symbols))
					}
					line += fmt.Sprintf("\n  %-24s %7.2f µs", shapes[n], float64(d.Nanoseconds())/1e3/count)
					exe.Close()
				}
				t.Log(line)
			}
		}
	}
}

// alone returns the program with step i only.
func alone(p *program.Program, i int) *program.Program {
	one := *p
	one.Steps = p.Steps[i : i+1]
	one.Buffers = slices.Clone(p.Buffers)
	for j := range one.Buffers {
		if b := &one.Buffers[j]; b.Kind == program.BufferScratch {
			b.First, b.Last = 0, 0
		}
	}
	return &one
}

// TestSteps measures the pieces of Llama-3.1-8B. A graph has many launches of a piece, each with
// other weights. PWC_STEPS lists numbers of rows. With PWC_STEPS_OF=1B the model is Llama-3.2-1B,
// with toy a very small one.
func TestSteps(t *testing.T) {
	list := os.Getenv("PWC_STEPS")
	if list == "" {
		t.Skip("PWC_STEPS is not set")
	}
	g := openGPU(t)
	g.useLibrary(t)
	a := g.arena(t, 16<<30)
	shape := configsOf(os.Getenv("PWC_STEPS_OF"), shape8B)[0]
	for n, m := range pieces(t, shape) {
		start := time.Now()
		p := g.compile(t, m)
		t.Logf("piece %d: %d kernels in %v", n, len(p.Kernels), time.Since(start))
		for _, word := range strings.Split(list, ",") {
			var rows int64
			fmt.Sscan(word, &rows)
			symbols := make(map[string]int64)
			for _, s := range p.Symbols {
				symbols[s] = rows
			}
			const count = 31
			exe, list, err := g.bindAll(t, p, symbols, a, count)
			if err != nil {
				t.Fatal(err)
			}
			d, err := g.measure(list)
			if err != nil {
				t.Fatal(err)
			}
			bytes := int64(0)
			for _, x := range p.Params {
				if x.Kind == program.ParamWeight {
					shape, _ := oracle.Extents(x.Shape, symbols)
					bytes += bytesOf(x.DType, shape)
				}
			}
			t.Logf("piece %d rows %4d: %8.2f µs, weights at %5.0f GB/s", n, rows, float64(d.Nanoseconds())/1e3/count, float64(bytes*count)/float64(d.Nanoseconds()))
			// Each step alone, to tell where the time goes.
			if err := exe.Close(); err != nil {
				t.Fatal(err)
			}
			for i := range p.Steps {
				one := alone(p, i)
				exe, list, err := g.bindAll(t, one, symbols, a, count)
				if err != nil {
					t.Fatal(err)
				}
				d, err := g.measure(list)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("   %-28s %8.2f µs", stepName(t, g, one, symbols), float64(d.Nanoseconds())/1e3/count)
				exe.Close()
			}
		}
	}
}
