package piecewise_test

import (
	"context"
	"fmt"
	"log"

	"pwc/attention"
	attnhost "pwc/attention/host"
	"pwc/compile/host"
	"pwc/frontend/hf"
	"pwc/ir"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/safetensors"
	"pwc/silly"
)

// check and must keep the examples short; a program handles its errors.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// A module is split at its splitting op, compiled, captured at two sizes and
// replayed. The splitting op runs between the graphs.
func Example() {
	ctx := context.Background()
	dev := hostdev.Open(hostdev.Options{})
	defer dev.Close()
	op := silly.New(dev)
	b := must(piecewise.New(ctx, must(ir.Parse("nineteen.ir", []byte(nineteen))), piecewise.Options{
		Device:  dev,
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}},
		Ops:     []device.Op{op},
		Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise,
			Sizes: []int64{1, 2}},
	}))
	defer b.Close()
	check(b.Load(ctx, nil, nil))
	check(b.Capture(ctx))
	check(b.Seal())

	in := must(b.Func("forward").Inputs(2))
	copy(must(in.Float32s("x")), []float32{1, 2})
	r := must(b.Func("forward").Run(ctx, in, nil))
	y := make([]byte, 8)
	check(r.At(0).CopyTo(y))

	s := b.Stats()
	fmt.Println(f32(y, 0), f32(y, 1))
	fmt.Println(s.PiecewiseGraphsSeen, "pieces,", s.GraphsCaptured, "graphs,", s.Replays, "replay,", op.Calls(), "calls between graphs")
	// Output:
	// 28 37
	// 5 pieces, 6 graphs, 1 replay, 2 calls between graphs
}

// The device memory of a step is known before anything is allocated.
func ExampleBackend_Plan() {
	dev := hostdev.Open(hostdev.Options{})
	defer dev.Close()
	b := must(piecewise.New(context.Background(), must(ir.Parse("nineteen.ir", []byte(nineteen))), piecewise.Options{
		Device:  dev,
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}},
		Ops:     []device.Op{silly.New(dev)},
		Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise,
			Sizes: []int64{1, 512}},
	}))
	defer b.Close()
	p := b.Plan()
	fmt.Println("arena at 512 rows:", p.ArenaBytes[512], "bytes")
	fmt.Println("all that Load takes:", p.Total(), "bytes, and Capture makes", p.Graphs, "graphs")
	// Output:
	// arena at 512 rows: 4096 bytes
	// all that Load takes: 8192 bytes, and Capture makes 6 graphs
}

// A language model is two functions: @forward computes hidden states, and
// @logits the logits of the rows that are sampled. It reads the hidden states in
// the memory of @forward's result. Attention gets the step's metadata unchanged.
func ExampleFunc_Run() {
	ctx := context.Background()
	const dir, blockSize, blocks = "../testdata/hf/llama", 16, 4
	model := must(hf.Builtin().ImportDir(dir, hf.Options{BlockSize: blockSize}))
	weights := must(safetensors.OpenDir(dir))
	defer weights.Close()
	dev := hostdev.Open(hostdev.Options{})
	defer dev.Close()
	b := must(piecewise.New(ctx, model.Module, piecewise.Options{
		Device:  dev,
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}},
		Ops:     []device.Op{attnhost.New(dev)},
		Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise,
			Sizes: []int64{1, 4}},
		Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": blocks},
			Max: map[string]int64{"N": 64, "M": 64}},
	}))
	defer b.Close()
	check(b.Load(ctx, weights, nil))
	check(b.Capture(ctx))
	check(b.Seal())

	prompt := []int32{38, 117, 208}
	batch := attention.NewBatch(1, len(prompt), blocks)
	check(batch.Add(0, len(prompt), []int32{0}, blockSize)) // its keys and values go to block 0

	in := must(b.Func("forward").Inputs(int64(len(prompt)))) // padded to the graphs of 4 rows
	copy(must(in.Int32s("ids")), prompt)
	copy(must(in.Int32s("pos")), []int32{0, 1, 2})
	hidden := must(b.Func("forward").Run(ctx, in, batch))

	in = must(b.Func("logits").Inputs(1))
	check(in.SetResult("h", hidden.At(0)))
	copy(must(in.Int32s("rows")), []int32{2})
	logits := must(b.Func("logits").Run(ctx, in, nil)).At(0)

	data := make([]byte, must(logits.Size()))
	check(logits.CopyTo(data))
	next := int64(0)
	for i := range int64(len(data) / 4) {
		if f32(data, i) > f32(data, next) {
			next = i
		}
	}
	fmt.Println("logits of shape", must(logits.Shape()), "and the next token is", next)
	// Output:
	// logits of shape [1 320] and the next token is 166
}
