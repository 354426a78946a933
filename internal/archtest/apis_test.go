package archtest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pwc/attention"
	"pwc/autodiff"
	"pwc/cache"
	"pwc/chat"
	"pwc/checkpoint"
	"pwc/compile"
	compilehost "pwc/compile/host"
	"pwc/compile/loop"
	"pwc/inspect"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/ir/padding"
	"pwc/optim"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/program/vec"
	"pwc/runner"
	"pwc/runtime/device"
	"pwc/runtime/host"
	"pwc/runtime/mem"
	"pwc/safetensors"
	"pwc/split"
	"pwc/tokenizer"
	"pwc/train"
	"pwc/verify"
)

const sweptModule = `pwc 1
module "m" {
  sym N in [1, 16] batch
  weight @w : f32[2]
  state @s : f32[4, 2]
  func @f(%x: f32[N, 2]) -> (f32[N, 2]) {
    %y = mul(%x, @w) : f32[N, 2]
    return %y
  }
}
`

const trainedModule = `pwc 1
module "t" {
  weight @w : f32[2]
  func @loss(%x: f32[2]) -> (f32[]) {
    %y = mul(%x, @w) : f32[2]
    %s = sum(%y, axes=[0]) : f32[]
    return %s
  }
}
`

const languageModule = `pwc 1
module "lm" {
  sym T in [1, 16] batch
  sym R in [1, 8] batch
  sym B in [1, 64]  load
  state @kv : f32[B, 2, 16, 1, 4]
  func @forward(%ids: i32[T], %pos: i32[T]) -> (f32[T]) {
    %y = cast(%ids, dtype=f32) : f32[T]
    return %y
  }
  func @logits(%hidden: f32[T], %rows: i32[R]) -> (f32[R, 4]) {
    %h = gather(%hidden, %rows, axis=0) : f32[R]
    %r = reshape(%h, shape=[R, 1]) : f32[R, 1]
    %y = broadcast_to(%r, shape=[R, 4]) : f32[R, 4]
    return %y
  }
}
`

// encoded is a checkpoint of sweptModule as a file.
func encoded(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := safetensors.Encode(&b, []safetensors.Tensor{{Name: "w", DType: dtype.F32, Shape: []int64{2}, Data: make([]byte, 8)}}, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// weights is a checkpoint of sweptModule.
func weights(t *testing.T) safetensors.Source {
	t.Helper()
	f, err := safetensors.Parse(encoded(t))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestNothingPanics calls the exported functions and methods of the folders in apis, except excepted and
// ofOthers, with hostile arguments: negative, enormous, nil, zero, empty, with control characters, on zero
// values and on values that are closed or in another stage than the call needs. Every call must return.
// Tests of the packages check the results. A function without a case, a type without a receiver, or a
// folder, not an internal one, that is neither in apis nor in unswept fails the test.
func TestNothingPanics(t *testing.T) {
	dir := t.TempDir()
	s := &sweeper{t: t, rng: rand.New(rand.NewPCG(1, 2)), failed: map[string]string{}, values: map[reflect.Type][]reflect.Value{}, opaque: map[reflect.Type]bool{}, seen: map[string]bool{}}
	ctx := context.Background()
	module := func() *ir.Module {
		m, err := ir.Parse("m.ir", []byte(sweptModule))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func() *host.Device {
		d := host.Open(host.Options{Workers: 1, MemoryBytes: 1 << 24})
		t.Cleanup(func() { d.Close() })
		return d
	}
	closed := open()
	must(closed.Close())
	src := weights(t)
	target := pieces.Pipeline{Backend: compilehost.New()}
	artifacts := pieces.NewMemoryStore() // so that each piece is compiled once
	backend := func(stage int) *piecewise.Backend {
		b, err := piecewise.New(ctx, module(), piecewise.Options{Device: open(), Compile: piecewise.CompileOptions{Compiler: target, Store: artifacts}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}})
		must(err)
		t.Cleanup(func() { b.Close() })
		for i, f := range []func() error{func() error { return b.Load(ctx, src, nil) }, func() error { return b.Capture(ctx) }, b.Seal, b.Close} {
			if i < stage {
				must(f())
			}
		}
		return b
	}
	const loaded, captured, sealed, finished = 1, 2, 3, 4
	inputs := func(b *piecewise.Backend) piecewise.Inputs {
		in, err := b.Func("f").Inputs(2)
		must(err)
		return in
	}
	results := func(b *piecewise.Backend) piecewise.Results {
		in := inputs(b)
		_, err := in.Bytes("x")
		must(err)
		r, err := b.Func("f").Run(ctx, in, nil)
		must(err)
		return r
	}
	stale := func() piecewise.Results { b := backend(captured); r := results(b); results(b); return r }
	gone := func() piecewise.Results { b := backend(captured); r := results(b); must(b.Close()); return r }
	pool := func(shut bool) *piecewise.Pool {
		p, err := piecewise.NewPool(open(), 0)
		must(err)
		if shut {
			must(p.Close())
		}
		return p
	}
	stream := func(d *host.Device, shut bool) *host.Stream {
		x, err := d.NewStream()
		must(err)
		if shut {
			must(x.Close())
		}
		return x.(*host.Stream)
	}
	text := func(name, content string) string {
		path := filepath.Join(dir, name)
		must(os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	plan := func() *split.Plan {
		m := module()
		p, err := split.Split(m, m.Funcs[0], nil)
		must(err)
		return p
	}
	compiled := func() *program.Program {
		p, err := target.Compile(ctx, plan().Units[0].Piece.Module, nil)
		must(err)
		return p
	}
	executable := func(shut bool) *host.Executable {
		x, err := open().Load(compiled(), nil)
		must(err)
		if shut {
			must(x.Close())
		}
		return x.(*host.Executable)
	}
	graph := func(shut bool) *host.Graph {
		x := stream(open(), false)
		must(x.BeginCapture(device.CaptureThreadLocal))
		g, err := x.EndCapture()
		must(err)
		if shut {
			must(g.Close())
		}
		return g.(*host.Graph)
	}
	store := func() *cache.Store { return cache.New(cache.Options{Dir: filepath.Join(dir, "cache")}) }
	lib := func(shut bool) *mem.Allocator {
		a := mem.New(mem.OverDevice(open()), mem.Options{})
		if shut {
			must(a.Close())
		}
		return a
	}
	builder := func() *ir.Builder { return ir.NewBuilder("b") }
	tensor := func() *interp.Tensor { x, err := interp.Zeros(dtype.F32, []int64{2, 3}); must(err); return x }
	file := func(shut bool) *safetensors.File {
		f, err := safetensors.Open(text("model.safetensors", string(encoded(t))))
		must(err)
		if shut {
			must(f.Close())
		}
		return f
	}
	set := func(shut bool) *safetensors.Set {
		file(false)
		x, err := safetensors.OpenDir(dir)
		must(err)
		if shut {
			must(x.Close())
		}
		return x
	}
	for _, v := range []any{closed, open(), stream(open(), true), stream(open(), false), module(), src, tensor(), compiled(), graph(false), executable(true),
		&program.Program{Steps: []program.Step{{Kind: 99}}}, dtype.F32, dtype.DType(200), dim.Sym("N"), dim.Const(-1), plan(), compilehost.New(), target, pieces.NewMemoryStore()} {
		typ := reflect.TypeOf(v)
		s.values[typ] = append(s.values[typ], reflect.ValueOf(v))
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[ir.Module](), reflect.TypeFor[ir.Func](), reflect.TypeFor[ir.Node](), reflect.TypeFor[ir.Weight](), reflect.TypeFor[split.Plan](), reflect.TypeFor[train.Program]()} {
		s.opaque[typ] = true
	}
	runners := func(stage int) *runner.Runner {
		m, err := ir.Parse("lm.ir", []byte(languageModule))
		must(err)
		r, err := runner.New(ctx, m, runner.Options{MaxSequences: 2, MaxTokens: 4, Blocks: 4, MaxLength: 8, Backend: piecewise.Options{Device: open(), Compile: piecewise.CompileOptions{Compiler: target, Store: artifacts}, Capture: piecewise.CaptureOptions{Mode: piecewise.None}}})
		must(err)
		t.Cleanup(func() { r.Close() })
		if stage > 0 {
			must(r.Load(ctx, nil))
		}
		if stage > 1 {
			must(r.Close())
		}
		return r
	}
	sequence := func(shut bool) *runner.Sequence {
		r := runners(1)
		q, err := r.Submit(ctx, runner.Request{Prompt: []int32{1}, MaxNew: 1})
		must(err)
		if shut {
			must(r.Close())
		}
		return q
	}
	step := func(stage int) *train.Step {
		m, err := ir.Parse("t.ir", []byte(trainedModule))
		must(err)
		p, err := train.Build(m, train.Options{Optimizer: optim.SGD{}})
		must(err)
		x, err := train.New(ctx, p, 1, piecewise.Options{Device: open(), Compile: piecewise.CompileOptions{Compiler: target, Store: artifacts}, Capture: piecewise.CaptureOptions{Mode: piecewise.Full}})
		must(err)
		t.Cleanup(func() { x.Close() })
		if stage > 0 {
			must(x.Load(ctx, src))
		}
		if stage > 1 {
			must(x.Close())
		}
		return x
	}

	bytesTokenizer := func() *tokenizer.Tokenizer {
		tk, err := tokenizer.Open("../../testdata/tokenizers/bytes")
		must(err)
		return tk
	}
	apis := map[string]api{
		"piecewise": {
			funcs: map[string]any{"New": piecewise.New, "Check": piecewise.Check, "ParseMode": piecewise.ParseMode, "Modes": piecewise.Modes, "DefaultCaptureSizes": piecewise.DefaultCaptureSizes, "NewPool": piecewise.NewPool},
			receivers: []func() any{
				func() any { return backend(0) }, func() any { return backend(loaded) }, func() any { return backend(captured) }, func() any { return backend(sealed) }, func() any { return backend(finished) },
				func() any { return backend(0).Func("f") }, func() any { return backend(loaded).Func("f") }, func() any { return backend(captured).Func("f") }, func() any { return backend(finished).Func("f") }, func() any { return backend(0).Func("nope") },
				zero[piecewise.Inputs], func() any { return inputs(backend(loaded)) }, func() any { b := backend(loaded); in := inputs(b); must(b.Close()); return in },
				zero[piecewise.Results], func() any { return results(backend(captured)) }, func() any { return stale() }, func() any { return gone() },
				zero[piecewise.Result], func() any { return results(backend(captured)).At(0) }, func() any { return stale().At(0) }, func() any { return gone().At(0) }, func() any { return results(backend(captured)).At(-1) },
				func() any { return pool(false) }, func() any { return pool(true) },
				ptr[piecewise.AddressError], ptr[piecewise.FaultSnapshot], ptr[piecewise.FrozenError], ptr[piecewise.CanaryError], ptr[piecewise.StaleError],
				zero[piecewise.Alias], zero[piecewise.RunMode], zero[piecewise.Mode], zero[piecewise.Plan], zero[piecewise.Unused],
				func() any { return piecewise.RunMode(99) }, func() any { return piecewise.Mode(99) },
			},
		},
		"runner": {
			funcs: map[string]any{"BestMode": runner.BestMode, "New": runner.New, "WithSampling": runner.WithSampling, "BoundsOf": runner.BoundsOf},
			receivers: []func() any{
				func() any { return runners(0) }, func() any { return runners(1) }, func() any { return runners(2) }, func() any { return sequence(false) }, func() any { return sequence(true) },
				ptr[runner.MemoryError], ptr[runner.QueueFullError], zero[runner.Mask], ptr[runner.Plan], ptr[runner.Stats], ptr[runner.Reason], zero[runner.Decision], zero[runner.Options],
			},
		},
		"runtime/host": {
			funcs: map[string]any{"Available": host.Available, "Open": func(o host.Options) { o.Workers = min(o.Workers, 4); host.Open(o).Close() }},
			receivers: []func() any{
				func() any { return open() }, func() any { return closed },
				func() any { return stream(open(), false) }, func() any { return stream(open(), true) },
				func() any { x := stream(open(), false); must(x.BeginCapture(device.CaptureThreadLocal)); return x },
				func() any { return executable(false) }, func() any { return executable(true) }, func() any { return graph(false) }, func() any { return graph(true) },
				ptr[host.WorkError], ptr[host.Template],
			},
		},
		"runtime/device": {
			funcs: map[string]any{"Connect": device.Connect, "NewFence": device.NewFence, "NotRebindable": device.NotRebindable, "CheckMoves": device.CheckMoves, "Relocate": device.Relocate, "WriteDOT": device.WriteDOT,
				"Resolve": device.Resolve, "Specialize": device.Specialize, "ScratchBytes": device.ScratchBytes, "Present": device.Present, "Call": device.Call, "Holds": device.Holds, "ForDevice": device.ForDevice, "CheckGuard": device.CheckGuard, "Env": device.Env},
			receivers: []func() any{ptr[device.Assigned], ptr[device.Branch], ptr[device.CaptureError], ptr[device.Captures], ptr[device.Fence], ptr[device.GuardError], ptr[device.IndexError], ptr[device.LostError], ptr[device.MemoryError],
				ptr[device.OpCall], ptr[device.RebindError], ptr[device.Recording], ptr[device.Resolved], zero[device.Buffer], zero[device.CaptureMode], func() any { return device.CaptureMode(99) }, zero[device.NodeKind], func() any { return device.NodeKind(99) }},
		},
		"runtime/mem": {
			funcs: map[string]any{"AddressOf": mem.AddressOf, "BlockBytes": mem.BlockBytes, "SegmentBytes": mem.SegmentBytes, "OverDevice": mem.OverDevice, "New": mem.New},
			receivers: []func() any{func() any { return lib(false) }, func() any { return lib(true) }, func() any { return lib(false).NewPool("p") }, ptr[mem.InUseError], ptr[mem.LiveError], ptr[mem.OwnedError], ptr[mem.Stats], ptr[mem.StreamError],
				ptr[mem.Owner], ptr[mem.Scope], ptr[mem.State], zero[mem.Address], zero[mem.Block], zero[mem.LiveBlock], zero[mem.PoolID]},
		},
		"cache": {
			funcs: map[string]any{"FromEnv": cache.FromEnv, "Dir": cache.Dir, "ParseID": cache.ParseID, "DigestOf": cache.DigestOf, "ParseDigest": cache.ParseDigest, "New": cache.New, "NeedsTrust": cache.NeedsTrust,
				"ParsePublicKey": cache.ParsePublicKey, "ReadPublicKey": cache.ReadPublicKey, "ParseSigner": cache.ParseSigner, "ReadSigner": cache.ReadSigner, "ParseTrust": cache.ParseTrust, "TrustFile": cache.TrustFile,
				"ReadTrust": cache.ReadTrust, "WriteTrust": func(_ string, x *cache.Trust) error { return cache.WriteTrust(filepath.Join(dir, "trust"), x) }},
			receivers: []func() any{func() any { return store() }, ptr[cache.DamageError], ptr[cache.Digest], ptr[cache.Module], ptr[cache.NotCachedError], ptr[cache.Signer], ptr[cache.Trust], ptr[cache.UntrustedError],
				zero[cache.Change], zero[cache.ID], zero[cache.Key], zero[cache.PublicKey], zero[cache.TuningKey]},
		},
		"pieces": {
			funcs: map[string]any{"Build": pieces.Build, "NewMemoryStore": pieces.NewMemoryStore},
			receivers: []func() any{
				ptr[pieces.MemoryStore], func() any { return pieces.NewMemoryStore() }, ptr[pieces.MissError], ptr[pieces.Result], ptr[pieces.UncoveredError],
				zero[pieces.EventKind], func() any { return pieces.EventKind(99) }, zero[pieces.Pipeline], func() any { return target }, zero[pieces.Range], zero[pieces.Shapes], zero[pieces.Source], func() any { return pieces.Source(99) },
			},
		},
		"chat": {
			funcs: map[string]any{"Parse": chat.Parse, "Open": chat.Open},
			receivers: []func() any{ptr[chat.Template], func() any {
				t, err := chat.Parse("{% for m in messages %}{{ m.content }}{% endfor %}", nil)
				must(err)
				return t
			}},
		},
		"tokenizer": {
			funcs:     map[string]any{"Open": tokenizer.Open, "ParseJSON": tokenizer.ParseJSON, "ParseSentencePiece": tokenizer.ParseSentencePiece, "ParseTiktoken": tokenizer.ParseTiktoken, "NewStopStrings": tokenizer.NewStopStrings},
			receivers: []func() any{func() any { return bytesTokenizer() }, func() any { return bytesTokenizer().Stream(true) }, ptr[tokenizer.StopStrings], func() any { return tokenizer.NewStopStrings("ab") }},
		},
		"inspect": {
			funcs:     map[string]any{"Collect": inspect.Collect, "NewRecorder": inspect.NewRecorder, "NewTracer": inspect.NewTracer, "WriteHTML": inspect.WriteHTML},
			receivers: []func() any{func() any { return inspect.NewTracer() }, func() any { return inspect.NewRecorder(target) }},
		},
		"verify": {
			funcs:     map[string]any{"Ask": verify.Ask, "Compare": verify.Compare, "NewBounds": verify.NewBounds, "NewIndex": verify.NewIndex, "Variants": verify.Variants},
			receivers: []func() any{ptr[verify.Index], zero[verify.Bounds], ptr[verify.Report], ptr[verify.Search]},
		},
		"split": {
			funcs:     map[string]any{"Split": split.Split, "WhyUncapturable": split.WhyUncapturable},
			receivers: []func() any{func() any { return plan() }},
		},
		"program": {
			funcs: map[string]any{"Decode": program.Decode, "CUDAKernel": program.CUDAKernel, "PeersProperty": program.PeersProperty, "Alone": program.Alone, "Place": program.Place, "Bytes": program.Bytes},
			receivers: []func() any{
				ptr[program.Buffer], ptr[program.Kernel], ptr[program.Program], func() any { return compiled() }, func() any { return &program.Program{Steps: []program.Step{{Kind: 99}}, Consts: [][]byte{nil}} },
				ptr[program.Step], zero[program.Attr], zero[program.Guard],
			},
		},
		"program/vec": {
			funcs: map[string]any{"Decode": vec.Decode, "Ops": vec.Ops},
			receivers: []func() any{
				ptr[vec.Kernel], func() any {
					return &vec.Kernel{Loop: vec.Loop{Phases: make([]vec.Phase, 1)}, MatMul: &vec.MatMul{}, TopK: &vec.TopK{}, Attention: &vec.Attention{Grad: &vec.AttentionGrad{}}}
				},
				zero[vec.File], func() any { return vec.File(99) }, zero[vec.Instr], func() any { return vec.Instr{Op: 250} }, zero[vec.Op], func() any { return vec.Op(250) },
			},
		},
		"safetensors": {
			funcs: map[string]any{"Open": safetensors.Open, "Parse": safetensors.Parse, "OpenDir": safetensors.OpenDir, "Encode": safetensors.Encode, "Touch": safetensors.Touch, "Guard": safetensors.Guard,
				"Write": func(name string, ts []safetensors.Tensor, meta map[string]string) error {
					return safetensors.Write(filepath.Join(dir, "written"), ts, meta)
				}},
			receivers: []func() any{ptr[safetensors.File], func() any { return file(false) }, func() any { return file(true) }, ptr[safetensors.Set], func() any { return set(false) }, func() any { return set(true) },
				ptr[safetensors.FormatError], ptr[safetensors.FaultError], zero[safetensors.Tensor]},
		},
		"ir/dtype": {
			funcs: map[string]any{"Parse": dtype.Parse, "All": dtype.All, "F32ToBF16": dtype.F32ToBF16, "BF16ToF32": dtype.BF16ToF32, "F32ToF16": dtype.F32ToF16, "F16ToF32": dtype.F16ToF32,
				"F64ToBF16": dtype.F64ToBF16, "F64ToF16": dtype.F64ToF16},
			receivers: []func() any{zero[dtype.DType], func() any { return dtype.F32 }, func() any { return dtype.DType(200) }},
		},
		"ir/dim": {
			funcs:     map[string]any{"Const": dim.Const, "Join": dim.Join, "Sym": dim.Sym, "ValidName": dim.ValidName, "Parse": dim.Parse},
			receivers: []func() any{zero[dim.Dim], func() any { return dim.Sym("N") }, func() any { return dim.Const(-1) }, ptr[dim.ParseError], ptr[dim.UnboundError]},
		},
		"ir/interp": {
			funcs: map[string]any{"Compare": interp.Compare, "Run": interp.Run, "RunRanks": interp.RunRanks, "Zeros": interp.Zeros, "FromF32": interp.FromF32, "FromI32": interp.FromI32, "FromI64": interp.FromI64, "FromBool": interp.FromBool,
				"FromFloat64s": interp.FromFloat64s, "FromInt64s": interp.FromInt64s, "FromBytes": interp.FromBytes, "FromDense": interp.FromDense, "EvalWeight": interp.EvalWeight},
			receivers: []func() any{ptr[interp.Tensor], func() any { return tensor() }, ptr[interp.IndexError], ptr[interp.MemoryError], zero[interp.Diff]},
		},
		"autodiff":   {funcs: map[string]any{"Gradients": autodiff.Gradients, "Joint": autodiff.Joint, "Rule": autodiff.Rule}},
		"ir/padding": {funcs: map[string]any{"SizeSymbol": padding.SizeSymbol, "Check": padding.Check, "CheckIndices": padding.CheckIndices}},
		"ir": {
			funcs: map[string]any{"IntAttr": ir.IntAttr, "DimAttr": ir.DimAttr, "FloatAttr": ir.FloatAttr, "BoolAttr": ir.BoolAttr, "EnumAttr": ir.EnumAttr, "DTypeAttr": ir.DTypeAttr, "StringAttr": ir.StringAttr,
				"DimsAttr": ir.DimsAttr, "IntsAttr": ir.IntsAttr, "FloatsAttr": ir.FloatsAttr, "NewBuilder": ir.NewBuilder, "HashFunc": ir.HashFunc, "Canonical": ir.Canonical, "SymbolNames": ir.SymbolNames,
				"UnknownDim": ir.UnknownDim, "TypeOf": ir.TypeOf, "Ops": ir.Ops, "LookupOp": ir.LookupOp, "Parse": ir.Parse, "Print": ir.Print, "PrintFunc": ir.PrintFunc, "Format": ir.Format,
				"NewFuncPrinter": ir.NewFuncPrinter, "Rewrite": ir.Rewrite, "RewriteUnverified": ir.RewriteUnverified, "ShardExpr": ir.ShardExpr},
			receivers: []func() any{
				func() any { return builder() }, func() any { return builder().Func("f") }, ptr[ir.Error], ptr[ir.Extern], zero[ir.Placement], ptr[ir.WeightExpr], ptr[ir.Func], func() any { return module().Funcs[0] },
				func() any { m := module(); return ir.NewFuncPrinter(m, m.Funcs[0]) }, ptr[ir.Module], ptr[ir.State], ptr[ir.Unread], func() any { return module() }, func() any { return module().Funcs[0].Nodes[0] },
				func() any {
					m, rw := module(), (*ir.Rewriter)(nil)
					_, err := ir.Rewrite(m, m.Funcs[0], func(r *ir.Rewriter, _ int, n *ir.Node) { rw = r; r.Keep(n) })
					must(err)
					return rw
				}, zero[ir.Attr], zero[ir.AttrKind], func() any { return ir.AttrKind(99) }, zero[ir.ErrorList], zero[ir.Literal], zero[ir.Pos], zero[ir.Origin], zero[ir.OpID], func() any { return ir.OpID(250) }, zero[ir.WeightOp], func() any { return ir.WeightOp(250) }, zero[ir.SymbolKind], func() any { return ir.SymbolKind(99) }, zero[ir.Type],
				func() any { return ir.TypeOf(dtype.F32, dim.Const(-1)) },
			},
		},
		"train": {
			funcs:     map[string]any{"Autocast": train.Autocast, "Build": train.Build, "CopyFiles": train.CopyFiles, "Labeled": train.Labeled, "Language": train.Language, "New": train.New, "NewData": train.NewData, "Operations": train.Operations, "SavedSeed": train.SavedSeed},
			receivers: []func() any{ptr[train.Data], func() any { return step(0) }, func() any { return step(1) }, func() any { return step(2) }},
		},
		"checkpoint": {
			funcs:     map[string]any{"Check": checkpoint.Check, "Compare": checkpoint.Compare, "Compute": checkpoint.Compute, "InPlace": checkpoint.InPlace, "Invert": checkpoint.Invert},
			receivers: []func() any{ptr[checkpoint.Error], ptr[checkpoint.NotInvertibleError]},
		},
		"compile": {
			funcs:     map[string]any{"AllReduceStep": compile.AllReduceStep, "One": compile.One, "Compile": compile.Compile, "Passes": compile.Passes},
			receivers: []func() any{zero[compile.Options], ptr[compile.PassError]},
		},
		"compile/loop": {
			funcs:     map[string]any{"ThroughOdd": loop.ThroughOdd, "Comparison": loop.Comparison, "Ops": loop.Ops, "Precisions": loop.Precisions, "ParsePrecision": loop.ParsePrecision},
			receivers: []func() any{ptr[loop.Kernel], ptr[loop.Attention], zero[loop.Op], func() any { return loop.Op(250) }, zero[loop.Precision], func() any { return loop.Precision(250) }},
		},
		"attention": {
			funcs: map[string]any{"Signature": attention.Signature, "ParseParams": attention.ParseParams, "ParseArgs": attention.ParseArgs, "BatchOf": attention.BatchOf, "NewBatch": attention.NewBatch},
			receivers: []func() any{ptr[attention.Batch], func() any { return attention.NewBatch(2, 4, 4) }, func() any { b := attention.NewBatch(2, 4, 4); must(b.Add(1, 2, []int32{0}, 16)); return b },
				ptr[attention.Params], ptr[attention.Shape]},
		},
	}
	for folder, p := range apis {
		s.sweep(folder, p)
	}
	for name, what := range s.failed {
		t.Errorf("%s%s", name, what)
	}
	for name := range excepted {
		if !s.seen[name] {
			t.Errorf("the sweep makes an exception of %s, which is not there", name)
		}
	}
	for prefix := range ofOthers {
		found := false
		for name := range s.seen {
			found = found || strings.HasPrefix(name, prefix)
		}
		if !found {
			t.Errorf("the sweep makes an exception of %s, which is not there", prefix)
		}
	}
	for folder := range readImports(t) {
		_, swept := apis[folder]
		_, not := unswept[folder]
		if swept == not && !strings.Contains(folder, "internal/") && !strings.HasPrefix(folder, "internal/") {
			t.Errorf("%s is neither swept nor left out with a reason, or both", folder)
		}
	}
	if s.calls < 5000 {
		t.Errorf("only %d calls were made", s.calls)
	}
}

// unswept are folders whose exported functions are not called, and why.
var unswept = map[string]string{
	"serve":                     "an http.Handler; its own tests and FuzzBody send it wrong requests",
	"loadtest":                  "calls a target of the caller; its own tests give it wrong options and hostile streams",
	"graphs":                    "sessions and recorders over a device; its own tests call them wrongly",
	"graphs/callables":          "called through graphs/whole; its own tests call it wrongly",
	"graphs/scenario":           "its own tests run wrong scenarios",
	"optim":                     "emits into a builder that the caller has; its own tests give it numbers out of range",
	"graphs/tree":               "over a session of graphs; its own tests call it wrongly",
	"graphs/whole":              "over a session of graphs; its own tests call it wrongly",
	"runtime/device/failing":    "for tests",
	"runtime/cuda/dl":           "opens shared libraries; its own tests give it files that are no libraries",
	"cmd/pwc":                   "a command",
	"cli":                       "a command line, which testdata/script calls wrongly",
	"collective/cuda/peer":      "CUDA C of collective/cuda and compile/cuda",
	"compile/cuda":              "a backend, called through compile",
	"compile/cuda/src":          "CUDA C of compile/cuda",
	"compile/host":              "a backend, called through compile",
	"frontend/pt2":              "its own tests and fuzz targets read hostile archives",
	"frontend/hf":               "its own tests give it configs that it must refuse; families call its builders",
	"cache/oci":                 "needs a registry; its own tests have hostile ones",
	"runner/metrics":            "an observer, called by a runner",
	"tune":                      "measures on a GPU; its own tests give it wrong options",
	"silly":                     "an op, called by a device",
	"silly/cuda":                "an op, called by a device",
	"attention/host":            "an op, called by a device",
	"collective":                "groups, whose calls wait for other ranks; its own tests call them wrongly",
	"collective/cuda":           "ops, called by a device",
	"collective/host":           "ops, called by a device",
	"attention/cuda":            "an op, called by a device",
	"attention/reference":       "an op, called by the interpreter",
	"runtime/device/devicetest": "a test suite",
	"runtime/cuda":              "needs a driver; devicetest calls it wrongly",
	"runtime/cuda/cublaslt":     "needs a GPU",
	"runtime/cuda/nccl":         "needs NCCL; its own tests give it a stub, also of an old version",
	"runtime/cuda/nvml":         "needs NVML; its own tests give it a stub, also one that fails",
	"runtime/cuda/nvrtc":        "needs NVRTC",
	"runtime/cuda/nvtx":         "needs NVTX",
	"runtime/cuda/topology":     "reads the machine; its own tests give it descriptions of others",
}
