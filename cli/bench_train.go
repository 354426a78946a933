package cli

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"pwc/cache"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/safetensors"
	"pwc/train"
)

// trainBenchReport is the JSON of bench --train.
type trainBenchReport struct {
	Model      string           `json:"model"`
	Target     string           `json:"target"`
	Device     string           `json:"device"`
	Precision  string           `json:"precision"`
	Optimizer  string           `json:"optimizer"`
	Ranks      int64            `json:"ranks"`            // devices that train together
	Rows       int64            `json:"rows"`             // of a step, on all ranks
	Length     int64            `json:"length,omitempty"` // tokens in a row of a language model
	Parameters int64            `json:"parameters"`       // elements of the weights that are trained
	Compile    trainBenchTimes  `json:"compile"`
	Operations int64            `json:"operations"`            // FLOP of the GEMMs of a step, on all ranks
	Rate       float64          `json:"operations_per_second"` // FLOP/s of a large GEMM of the precision on one device
	Planned    int64            `json:"planned_bytes"`
	Plan       piecewise.Plan   `json:"plan"`
	Steps      []trainBenchStep `json:"steps"`
	Profile    *benchProfile    `json:"profile,omitempty"`
}

type trainBenchTimes struct {
	Cold float64 `json:"cold_seconds"` // with an empty cache
	Warm float64 `json:"warm_seconds"` // with the cache that the cold compilation filled
}

// trainBenchStep is a training step in one mode.
type trainBenchStep struct {
	Mode string `json:"mode"`
	benchTimes
	Tokens  float64 `json:"tokens_per_second"`     // of steps in a row; rows per second if the model is not a language model
	Share   float64 `json:"share_of_rate"`         // FLOP/s of a rank, of steps in a row, as a part of Rate
	Capture float64 `json:"capture_seconds"`       // of loading and capturing
	Taken   *int64  `json:"taken_bytes,omitempty"` // device memory; nil: not known
}

// trainBench is one run of bench --train.
type trainBench struct {
	benchRun
	flags *trainFlags
	bench *benchFlags

	program *train.Program
	weights safetensors.Source
	data    *train.Data
	batches []*train.Data // by rank of this process
	report  trainBenchReport
}

// runBenchTrain measures training steps.
func (a *app) runBenchTrain(ctx context.Context, path string, f *modelFlags, bf *buildFlags, tf *trainFlags, g *benchFlags) (err error) {
	for _, name := range g.modes {
		if mode, err := piecewise.ParseMode(name); err != nil || mode > piecewise.Full {
			return usagef("--mode %s: a training step runs in mode none, piecewise or full", name)
		}
	}
	o, err := tf.options(nil)
	if err != nil {
		return err
	}
	m, err := a.openForOne(path, f)
	if err != nil {
		return err
	}
	shared, err := a.benchRun(bf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.close()) }()
	b := &trainBench{benchRun: shared, flags: tf, bench: g}
	var closeWeights func() error
	if b.weights, closeWeights, err = m.source(f); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeWeights()) }()
	closeData, err := b.prepare(m, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeData()) }()
	closeWorld, err := b.join(ctx, b.program.Module)
	if err != nil {
		return err
	}
	defer func() { err = closeWorld(err) }()
	if b.batches, err = batchesOf(b.data, b.world.ranks()); err != nil {
		return err
	}
	if err := b.run(ctx); err != nil {
		return err
	}
	b.status.clear()
	switch {
	case bf.process.follows():
		return nil
	case a.json:
		return a.printJSON(&b.report)
	}
	return b.print(path)
}

// prepare builds the training step and opens its data. The caller calls closeData.
func (b *trainBench) prepare(m *model, o train.Options) (closeData func() error, err error) {
	closeData = func() error { return nil }
	tf, micro := b.flags, int64(max(b.flags.micro, 1)*max(b.flags.ranks, 1))
	loss, r := m.module, &b.report
	r.Ranks = int64(max(tf.ranks, 1))
	if isLanguageModel(m.module) {
		if tf.rows == 0 {
			tf.rows = 8
		}
		if tf.length == 0 {
			tf.length = 128
		}
		r.Rows, r.Length = tf.rows*micro, tf.length
		if loss, err = train.Language(m.module, tf.rows, tf.length); err != nil {
			return closeData, err
		}
	} else if tf.rows > 0 || tf.length > 0 {
		return closeData, usagef("%s is a module, whose parameters determine the batch: --batch-size and --length have no effect", m.path)
	}
	if b.program, err = train.Build(loss, o); err != nil {
		return closeData, explainTrain(err, true)
	}
	for _, in := range b.program.Inputs {
		if r.Length == 0 && in.Type.Rank() > 0 {
			rows, _ := in.Type.Shape[0].Const()
			r.Rows = max(r.Rows, rows*micro)
		}
	}
	r.Model, r.Target, r.Device, r.Precision, r.Optimizer = m.module.Name, b.target.name, b.target.dev.Info().Name, tf.precision, tf.optimizer
	for i := range b.program.Losses {
		r.Operations = max(r.Operations, train.Operations(loss.Func(b.program.Losses[i].Name))*micro)
	}
	for _, w := range b.program.Weights {
		n, _ := w.Type.Elements().Const()
		r.Parameters += n
	}
	var data safetensors.Source = madeUpBatch{inputs: b.program.Inputs, micro: micro, vocabulary: vocabulary(m.module)}
	if tf.data != "" {
		f, err := safetensors.Open(tf.data)
		if err != nil {
			return closeData, err
		}
		data, closeData = f, f.Close
	}
	if b.data, err = train.NewData(b.program, data); err != nil {
		return closeData, errors.Join(err, closeData())
	}
	return closeData, nil
}

// run measures the rate of a large GEMM, compilation, and steps in every mode.
func (b *trainBench) run(ctx context.Context) error {
	if !b.build.process.follows() {
		b.status.say("measuring the rate of GEMMs")
		dt, _ := dtype.Parse(b.flags.precision)
		var err error
		if b.report.Rate, err = b.rate(ctx, dt); err != nil {
			return err
		}
	}
	for _, seconds := range []*float64{&b.report.Compile.Cold, &b.report.Compile.Warm} {
		b.status.say("compiling")
		start := time.Now()
		s, err := b.make(ctx, b.bench.modes[0])
		if err != nil {
			return errors.Join(err, closeSteps(s))
		}
		*seconds = time.Since(start).Seconds()
		b.report.Plan = s[0].Backend().Plan()
		b.report.Planned = b.report.Plan.Total()
		if err := closeSteps(s); err != nil {
			return err
		}
	}
	if err := b.world.agree(ctx, fmt.Sprintf("module %x, --mode %v, --profile=%v, %s", b.program.Module.Hash(), b.bench.modes, b.bench.profile, b.build.settings())); err != nil {
		return err
	}
	if b.bench.profile {
		if err := b.profile(ctx); err != nil {
			return err
		}
	}
	for _, mode := range b.bench.modes {
		step, err := b.measure(ctx, mode)
		if err != nil {
			return err
		}
		b.report.Steps = append(b.report.Steps, step)
	}
	return nil
}

// make compiles the step in a mode, for all ranks. Artifacts are in the benchmark's temporary cache. The caller closes
// the steps, also if there is an error.
func (b *trainBench) make(ctx context.Context, mode string) ([]*train.Step, error) {
	m, err := piecewise.ParseMode(mode)
	if err != nil {
		return nil, err
	}
	o, done, err := b.options(b.program.Module, m)
	if err != nil {
		return nil, err
	}
	defer done()
	steps, err := b.app.stepsOf(ctx, b.program, b.target, b.world, b.flags.seed, o)
	return steps, explainOptions(err)
}

// load loads the steps of all ranks.
func (b *trainBench) load(ctx context.Context, s []*train.Step) error {
	if err := b.world.meet(ctx, "the step is compiled"); err != nil {
		return err
	}
	return b.world.together(len(s), func(i int) error { return s[i].Load(ctx, b.weights) })
}

// wait waits for the latest step of all ranks.
func (b *trainBench) wait(s []*train.Step) error {
	return b.world.together(len(s), func(rank int) error {
		_, err := s[rank].Loss(s[rank].Steps())
		return err
	})
}

// options returns the options of a backend with the benchmark's temporary cache. The caller calls done when the backend
// is compiled.
func (b *trainBench) options(m *ir.Module, mode piecewise.Mode) (o piecewise.Options, done func(), err error) {
	f := *b.build
	f.uncached = true
	if o, done, err = b.app.backendOptions(m, b.target, &f, mode, bounds(m, nil, nil)); err != nil {
		return o, nil, err
	}
	o.Compile.Store = cache.New(cache.Options{Dir: b.cache})
	return o, done, nil
}

// measure times steps in a mode, alone and in a row.
func (b *trainBench) measure(ctx context.Context, mode string) (r trainBenchStep, err error) {
	r.Mode = mode
	s, err := b.make(ctx, mode)
	defer func() { err = errors.Join(err, closeSteps(s)) }()
	if err != nil {
		return r, err
	}
	meter, err := b.target.meter(s[0].Backend().Stream())
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, meter.close()) }()
	before, known, err := meter.free()
	if err != nil {
		return r, err
	}
	b.status.say("loading and capturing, mode %s", mode)
	start := time.Now()
	if err := b.load(ctx, s); err != nil {
		return r, err
	}
	r.Capture = time.Since(start).Seconds()
	b.status.say("measuring steps, mode %s", mode)
	step := func() error { return b.step(ctx, s) }
	wait := func() error { return b.wait(s) }
	if r.benchTimes, err = (repeats{warmup: warmups, agree: b.world.agreeRuns(ctx)}).times(meter, step, wait); err != nil {
		return r, err
	}
	seconds := r.InARow / 1e3
	r.Tokens = float64(b.report.Rows*max(b.report.Length, 1)) / seconds
	r.Share = float64(b.report.Operations) / seconds / b.report.Rate / float64(b.report.Ranks)
	if after, _, err := meter.free(); err == nil && known {
		taken := before - after
		r.Taken = &taken
	}
	return r, nil
}

// step issues a step on all ranks.
func (b *trainBench) step(ctx context.Context, s []*train.Step) error {
	return b.world.together(len(s), func(rank int) error {
		b.batches[rank].Select(s[rank].Steps())
		return s[rank].Run(ctx, b.batches[rank])
	})
}

// profile measures the kernels of a step.
func (b *trainBench) profile(ctx context.Context) (err error) {
	s, err := b.make(ctx, piecewise.None.String())
	defer func() { err = errors.Join(err, closeSteps(s)) }()
	if err != nil {
		return err
	}
	meter, err := b.target.meter(s[0].Backend().Stream())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, meter.close()) }()
	b.status.say("profiling a step")
	if err := b.load(ctx, s); err != nil {
		return err
	}
	p, err := profile(b.target, s[0].Backend().Stream(), meter, nil, func() error { return b.step(ctx, s) })
	b.report.Profile = &p
	return err
}

// timed returns the device time of the work that issue enqueues, and the host time of issue.
func timed(m meter, issue func() error) (took, issued time.Duration, err error) {
	if err := m.mark(); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	if err := issue(); err != nil {
		return 0, 0, err
	}
	issued = time.Since(start)
	if err := m.mark(); err != nil {
		return 0, 0, err
	}
	d, err := m.intervals()
	if err != nil {
		return 0, 0, err
	}
	return d[len(d)-1], issued, nil
}

// rateSize returns n of the n×n×n GEMM whose rate is measured. It fills a GPU, and takes well under
// a second on the host.
func rateSize(target string) int64 {
	if target == "host" {
		return 512
	}
	return 8192
}

// rate returns the FLOP/s of a GEMM of square matrices; a multiplication and an addition are 2 FLOP.
func (b *trainBench) rate(ctx context.Context, dt dtype.DType) (rate float64, err error) {
	n := rateSize(b.target.name)
	d := dim.Const(n)
	mb := ir.NewBuilder("rate")
	for _, name := range []string{"a", "b", "c"} {
		mb.State(name, ir.TypeOf(dt, d, d))
	}
	fb := mb.Func("fill") // zeros draw less power, so a GPU would multiply them at a higher clock
	for i, name := range []string{"a", "b"} {
		at := fb.Op1("iota", nil, ir.DimsAttr("shape", d, d), ir.DTypeAttr(dtype.I64), ir.IntAttr("axis", int64(i)))
		x := fb.Op1("philox", []ir.Value{fb.Int(int64(i)), fb.Int(0), at})
		if dt != dtype.F32 {
			x = fb.Op1("cast", []ir.Value{x}, ir.DTypeAttr(dt))
		}
		fb.Op("copy", []ir.Value{fb.State(name), x})
	}
	fb.Return()
	fb = mb.Func("gemm")
	fb.Op("copy", []ir.Value{fb.State("c"), fb.Op1("linear", []ir.Value{fb.State("a"), fb.State("b")})})
	fb.Return()
	m, err := mb.Build()
	if err != nil {
		return 0, err
	}
	o, done, err := b.options(m, piecewise.None)
	if err != nil {
		return 0, err
	}
	backend, err := piecewise.New(ctx, m, o)
	done()
	if err != nil {
		return 0, b.target.explain(err)
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	if err := backend.Load(ctx, nil, nil); err != nil {
		return 0, err
	}
	meter, err := b.target.meter(backend.Stream())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, meter.close()) }()
	run := func(name string) error {
		in, err := backend.Func(name).Inputs(1)
		if err != nil {
			return err
		}
		_, err = backend.Func(name).Run(ctx, in, nil)
		return err
	}
	if err := run("fill"); err != nil {
		return 0, err
	}
	var times []time.Duration
	for range 10 {
		took, _, err := timed(meter, func() error { return run("gemm") })
		if err != nil {
			return 0, err
		}
		times = append(times, took)
	}
	return 2 * float64(n) * float64(n) * float64(n) / slices.Min(times).Seconds(), nil
}

// madeUpBatch is the data of bench --train without --data: one batch of floats in [-1, 1) and of
// ids in the vocabulary.
type madeUpBatch struct {
	inputs            []train.Input
	micro, vocabulary int64
}

// Names returns the names of the inputs.
func (d madeUpBatch) Names() []string {
	var out []string
	for _, in := range d.inputs {
		out = append(out, in.Name)
	}
	return out
}

// Info describes an input: batches for all micro-batches, one after the other.
func (d madeUpBatch) Info(name string) (safetensors.Info, error) {
	i := slices.Index(d.Names(), name)
	if i < 0 {
		return safetensors.Info{}, fmt.Errorf("%w: %s", safetensors.ErrNotFound, name)
	}
	t := d.inputs[i].Type
	shape := []int64{d.micro}
	for _, e := range t.Shape {
		n, _ := e.Const()
		shape = append(shape, n)
	}
	return safetensors.Info{Name: name, DType: t.DType, Shape: shape}, nil
}

// Tensor returns the values of an input.
func (d madeUpBatch) Tensor(name string) (safetensors.Tensor, error) {
	info, err := d.Info(name)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	n := int64(1)
	for _, e := range info.Shape {
		n *= e
	}
	const step = 7919 // a prime, so that neighbouring tokens have distant ids
	var data []byte
	for i := range n {
		switch info.DType {
		case dtype.F32:
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(i*step%2048)/1024-1))
		case dtype.I32:
			data = binary.LittleEndian.AppendUint32(data, uint32(i*step%d.vocabulary))
		default:
			return safetensors.Tensor{}, usagef("input %s is %s, for which no values are made up: give them with --data FILE", name, info.DType)
		}
	}
	return safetensors.Tensor{Name: name, DType: info.DType, Shape: info.Shape, Data: data}, nil
}

func (b *trainBench) print(path string) error {
	r, w := &b.report, b.app.out
	rows, unit := plural(r.Rows, "row"), ">rows/s"
	if r.Length > 0 {
		rows, unit = fmt.Sprintf("%s of %d tokens", rows, r.Length), ">tokens/s"
	}
	fmt.Fprintf(w, "%s trained in %s with %s on %s, %s, %.1f million parameters\n\n", path, r.Precision, r.Optimizer, devicesText(int(r.Ranks), r.Device), rows, float64(r.Parameters)/1e6)
	fmt.Fprintf(w, "GEMMs           %.1f GFLOP/s in a large GEMM, %.3f GFLOP per step\n", r.Rate/1e9, float64(r.Operations)/1e9)
	fmt.Fprintf(w, "compile         %.3f s cold, %.3f s warm\n", r.Compile.Cold, r.Compile.Warm)
	fmt.Fprintf(w, "memory          %s planned\n\n", byteCount(r.Planned))
	tab := table{head: []string{"mode", ">ms", ">in a row", ">to issue", unit, ">of GEMM rate", ">taken", ">s to capture"}}
	for _, s := range r.Steps {
		taken := ""
		if s.Taken != nil {
			taken = byteCount(*s.Taken)
		}
		tab.add(s.Mode, fmt.Sprintf("%.3f", s.MS), fmt.Sprintf("%.3f", s.InARow), fmt.Sprintf("%.3f", s.Issue), fmt.Sprintf("%.0f", s.Tokens), fmt.Sprintf("%.1f %%", 100*s.Share), taken, fmt.Sprintf("%.3f", s.Capture))
	}
	if err := tab.write(w, "  "); err != nil || r.Profile == nil {
		return err
	}
	return b.app.printProfile(r.Profile, 0, asText)
}
