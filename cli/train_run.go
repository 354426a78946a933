package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"pwc/internal/openfile"
	"pwc/ir"
	"pwc/piecewise"
	"pwc/safetensors"
	"pwc/train"
)

// trainReport is the JSON of train.
type trainReport struct {
	Losses  []number     `json:"losses"`     // of the steps of this process
	First   int64        `json:"first_step"` // steps before this process
	Steps   int64        `json:"steps"`      // all steps of the run, with those before --resume
	Skipped int64        `json:"skipped"`
	Mode    string       `json:"mode"`
	Ranks   int          `json:"ranks"` // devices that trained together
	Seconds trainSeconds `json:"seconds"`
	Weights string       `json:"weights,omitempty"` // the file
}

type trainSeconds struct {
	Compile float64 `json:"compile"`
	Load    float64 `json:"load"` // of loading and capturing
	Train   float64 `json:"train"`
}

// training is one run of train.
type training struct {
	app     *app
	flags   *trainFlags
	world   *world
	steps   []*train.Step // by rank of this process
	step    *train.Step   // steps[0]: rank 0 writes the files of the run
	data    *train.Data
	batches []*train.Data // by rank, as steps
	weights safetensors.Source
	files   []string // to copy to the directory of the weights
	log     *lossLog
	rows    int64  // of a step
	unit    string // of rows: "rows" or "tokens"
	report  trainReport

	follows bool  // rank 0 is another process
	stopped error // why all ranks end before the last step, after the same step
}

func (a *app) runTrain(ctx context.Context, path string, f *modelFlags, bf *buildFlags, tf *trainFlags) (err error) {
	mode, err := parseMode(tf.mode)
	if err != nil {
		return err
	}
	if mode > piecewise.Full {
		return usagef("--mode %s: a training step has one size; want none, piecewise or full", tf.mode)
	}
	o, err := tf.options(bf.symbols)
	if err != nil {
		return err
	}
	m, err := a.openForOne(path, f)
	if err != nil {
		return err
	}
	r := &training{app: a, flags: tf, follows: bf.process.follows()}
	if err := r.openOut(); err != nil {
		return err
	}
	weights, closeWeights, err := m.source(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeWeights()) }()
	r.weights = weights
	data, err := safetensors.Open(tf.data)
	if err != nil {
		return err
	}
	a.showOnOneLine(data.Names())
	defer func() { err = errors.Join(err, data.Close()) }()
	module, err := r.language(m, data)
	if err != nil {
		return err
	}
	p, err := train.Build(module, o)
	if err != nil {
		return explainTrain(err, false)
	}
	if r.data, err = train.NewData(p, data); err != nil {
		return err
	}
	if err := r.shuffle(tf.seed); err != nil {
		return err
	}
	r.count(p)
	t, w, closeWorld, err := openWorld(ctx, p.Module, bf, true)
	if err != nil {
		return err
	}
	r.world = w
	defer func() {
		if err != nil {
			w.fail(0, err)
		}
		err = errors.Join(err, closeWorld())
	}()
	start := time.Now()
	defer func() { err = errors.Join(err, closeSteps(r.steps)) }()
	if r.steps, err = a.newSteps(ctx, p, t, w, bf, mode, tf.seed); err != nil {
		return err
	}
	r.step = r.steps[0]
	r.report.Mode, r.report.Ranks, r.report.Seconds.Compile = mode.String(), max(tf.ranks, 1), time.Since(start).Seconds()
	if err := w.agree(ctx, fmt.Sprintf("module %x, mode %v, --steps %d, --lr %g, --seed %d, --shuffle=%v, --micro-batches %d, --resume=%v, %s", p.Module.Hash(), mode, tf.steps, tf.lr, tf.seed, tf.shuffle, max(tf.micro, 1), tf.resume, bf.settings())); err != nil {
		return err
	}
	start = time.Now()
	if err := r.load(ctx); err != nil {
		return err
	}
	r.report.Seconds.Load = time.Since(start).Seconds()
	if tf.out != "" { // a step may take longer than grace, and the checkpoint of an interrupted run follows it
		defer hold(ctx)()
	}
	start = time.Now()
	if err = r.run(ctx); err == nil {
		err = w.leave() // writing the files may take long, and needs no other process
	}
	if err != nil || r.follows {
		return errors.Join(err, r.stopped)
	}
	r.report.Seconds.Train = time.Since(start).Seconds()
	return errors.Join(r.stopped, r.finish())
}

// language returns the module to train: that of a checkpoint with a loss, or the module itself.
func (r *training) language(m *model, data *safetensors.File) (*ir.Module, error) {
	t := r.flags
	if m.params == nil {
		if t.rows > 0 || t.length > 0 {
			return nil, usagef("%s is a module, whose parameters determine the batch: --batch-size and --length have no effect", m.path)
		}
		return m.module, nil
	}
	rows, length := t.rows, t.length
	if rows == 0 {
		rows = 8
	}
	if length == 0 {
		info, err := data.Info(train.InputIDs)
		if err != nil {
			return nil, fmt.Errorf("%w; the data of a language model is tensor %s, i32[rows, tokens]", err, train.InputIDs)
		}
		if len(info.Shape) < 2 {
			return nil, usagef("%s of %s has one dimension: give the number of tokens in a row with --length", train.InputIDs, t.data)
		}
		length = info.Shape[len(info.Shape)-1]
	}
	r.files = sideFiles(m.path)
	if slices.Contains(data.Names(), train.Labels) {
		return train.Labeled(m.module, rows, length)
	}
	return train.Language(m.module, rows, length)
}

// sideFiles returns the files of a checkpoint, other than its weights, that readers of the
// checkpoint need.
func sideFiles(path string) []string {
	dir := path
	if filepath.Ext(path) == ".json" {
		dir = filepath.Dir(path)
	}
	var out []string
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja"} {
		file := filepath.Join(dir, name)
		if name == "config.json" && dir != path {
			file = path
		}
		if _, err := os.Stat(file); err == nil {
			out = append(out, file)
		}
	}
	return out
}

// explainTrain adds the flags that set the options which an error names: those of train, or only those that bench --train
// has too.
func explainTrain(err error, bench bool) error {
	for _, x := range []struct{ text, both, train string }{
		{"a training step has one size", "", "--symbol N=64 sets the value of a symbol"}, {"name the one that returns the loss", "", "--func NAME names the function"},
		{"Options.Symbols", "", "--symbol gives Options.Symbols"},
		{"weights that are trained must be f32", "--dtype f32 reads the weights of a checkpoint in f32; --precision gives Options.Precision", ""},
		{"several losses are not cut", "--micro-batches gives Options.MicroBatches", "--func NAME chooses one loss"}, {"several losses is trained on one device", "--dp gives Options.Ranks", "--func NAME chooses one loss"},
	} {
		flags := []string{x.both, x.train}
		if bench {
			flags = flags[:1]
		}
		flags = slices.DeleteFunc(flags, func(s string) bool { return s == "" })
		if len(flags) > 0 && strings.Contains(err.Error(), x.text) {
			return fmt.Errorf("%w\nOn the command line: %s", err, strings.Join(flags, "; "))
		}
	}
	return err
}

// newSteps compiles a training program with the flags for each rank of this process. The caller closes the
// steps.
func (a *app) newSteps(ctx context.Context, p *train.Program, t *target, w *world, f *buildFlags, mode piecewise.Mode, seed int64) (out []*train.Step, err error) {
	err = a.forGPU(ctx, t, f, func() error {
		o, done, err := a.backendOptions(p.Module, t, f, mode, bounds(p.Module, nil, nil))
		if err != nil {
			return err
		}
		defer done()
		if out, err = a.stepsOf(ctx, p, t, w, seed, o); err != nil { // forGPU may call this function again
			err, out = errors.Join(err, closeSteps(out)), nil
		}
		return err
	})
	return out, explainOptions(err)
}

// stepsOf makes the steps of all ranks of this process. The first step compiles; the others load its artifacts
// from the store, or compile again without one, and have no observers. Steps are returned also with an error.
func (a *app) stepsOf(ctx context.Context, p *train.Program, t *target, w *world, seed int64, o piecewise.Options) (out []*train.Step, err error) {
	o.Rank = w.rank()
	s, err := train.New(ctx, p, seed, o)
	if err != nil {
		return nil, t.explain(err)
	}
	out = append(out, s)
	for i, peer := range w.peers {
		o.Device, o.Rank, o.Observe = peer.dev, i+1, piecewise.ObserveOptions{}
		if o.Ops, err = a.openOps(p.Module, peer, bounds(p.Module, nil, nil)); err != nil {
			return out, err
		}
		if s, err = train.New(ctx, p, seed, o); err != nil {
			return out, fmt.Errorf("rank %d: %w", o.Rank, t.explain(err))
		}
		out = append(out, s)
	}
	return out, nil
}

// closeSteps closes the steps of all ranks.
func closeSteps(steps []*train.Step) error {
	var errs []error
	for _, s := range steps {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// batchesOf returns the batches of each rank.
func batchesOf(d *train.Data, ranks []int) ([]*train.Data, error) {
	out := make([]*train.Data, len(ranks))
	for i, rank := range ranks {
		var err error
		if out[i], err = d.OfRank(rank); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// shuffle shuffles the rows of the data with a seed, if --shuffle is given.
func (r *training) shuffle(seed int64) error {
	if !r.flags.shuffle {
		return nil
	}
	return r.data.Shuffle(seed)
}

// count sets rows and unit: the number of tokens of a step if an input is a matrix of integers, else of rows.
func (r *training) count(p *train.Program) {
	parts := int64(max(r.flags.micro, 1) * max(r.flags.ranks, 1))
	r.rows, r.unit = parts, "rows"
	for _, in := range p.Inputs {
		n, _ := in.Type.Elements().Const()
		if in.Type.DType.Int() && in.Type.Rank() == 2 {
			r.rows, r.unit = n*parts, "tokens"
			return
		}
	}
	for _, in := range p.Inputs {
		if in.Type.Rank() > 0 {
			n, _ := in.Type.Shape[0].Const()
			r.rows = n * parts
			return
		}
	}
}

// load loads the steps and, with --resume, the checkpoint.
func (r *training) load(ctx context.Context) error {
	if err := r.together(func(i int) error { return r.steps[i].Load(ctx, r.weights) }); err != nil {
		return err
	}
	if r.flags.out != "" && !r.follows { // fail before training
		if err := r.step.CanSave(r.weights); err != nil {
			return err
		}
	}
	if r.flags.resume {
		from, err := latestCheckpoint(r.flags.out)
		if err != nil {
			return err
		}
		if err := r.together(func(i int) error { return r.steps[i].Restore(from) }); err != nil {
			return err
		}
		if err := r.shuffle(r.step.Seed()); err != nil {
			return err
		}
		if err := r.world.agree(context.WithoutCancel(ctx), fmt.Sprintf("checkpoint after step %d, seed %d", r.step.Steps(), r.step.Seed())); err != nil {
			return err
		}
		if !r.follows {
			if err := r.log.read(filepath.Join(r.flags.out, lossFile), r.step.Steps()); err != nil {
				return err
			}
		}
	}
	r.report.First = r.step.Steps()
	var err error
	r.batches, err = batchesOf(r.data, r.world.ranks())
	return err
}

// together calls f for all ranks of this process at the same time.
func (r *training) together(f func(i int) error) error { return r.world.together(len(r.steps), f) }

// goesOn reports whether there is another step. The ranks exchange interrupts before each step, so that all of them end
// after the same step.
func (r *training) goesOn(ctx context.Context) (bool, error) {
	if r.step.Steps() >= r.flags.steps {
		return false, nil
	}
	interrupted := int64(0)
	if ctx.Err() != nil {
		interrupted = 1
	}
	all, err := r.world.numbers(context.WithoutCancel(ctx), "the next step", interrupted)
	if err != nil {
		return false, err
	}
	if rank := slices.Index(all, 1); interrupted != 0 {
		r.stopped = context.Cause(ctx)
	} else if rank >= 0 {
		r.stopped = fmt.Errorf("rank %d was interrupted", rank)
	}
	return r.stopped == nil, nil
}

// run trains until the steps are done or a rank is interrupted.
func (r *training) run(ctx context.Context) error {
	line := statusLine{w: r.app.screen}
	defer line.clear()
	start, first := time.Now(), r.step.Steps()
	take := func() error {
		n := r.step.Steps()
		if n == first {
			return nil
		}
		loss, err := r.step.Loss(n)
		if err != nil {
			return err
		}
		r.log.add(n, loss)
		r.report.Losses = append(r.report.Losses, number(loss))
		line.say("%s", r.progress(n, loss, time.Since(start), first))
		return nil
	}
	begun := context.WithoutCancel(ctx)
	one := func(i int) error {
		s, batch := r.steps[i], r.batches[i]
		batch.Select(s.Steps())
		if err := s.Run(begun, batch); err != nil {
			return err
		}
		if i == 0 && !r.follows {
			return take()
		}
		_, err := s.Loss(s.Steps())
		return err
	}
	for {
		if more, err := r.goesOn(ctx); err != nil || !more {
			return err
		}
		if err := r.together(one); err != nil {
			return err
		}
		if n := r.step.Steps(); !r.follows && r.flags.every > 0 && n%r.flags.every == 0 && n < r.flags.steps {
			if err := r.checkpoint(); err != nil {
				return err
			}
		}
	}
}

// progress returns the text of the status line after step n.
func (r *training) progress(n int64, loss float32, took time.Duration, first int64) string {
	done := n - first
	left := time.Duration(float64(took) / float64(done) * float64(r.flags.steps-n)).Round(time.Second)
	return fmt.Sprintf("step %d of %d  loss %.4f  %.0f %s/s  %s left", n, r.flags.steps, loss, float64(done*r.rows)/took.Seconds(), r.unit, left)
}

// finish writes the files of the run and prints the report. After an interrupt it writes the same files, and instead of
// the report prints how to resume, if --out is a directory.
func (r *training) finish() error {
	r.report.Steps = r.step.Steps()
	var err error
	if r.report.Skipped, err = r.step.Skipped(); err != nil {
		return err
	}
	if err := r.write(); err != nil {
		return err
	}
	if r.stopped != nil {
		if r.flags.out != "" && !r.flags.single() {
			fmt.Fprintf(r.app.err, "pwc: interrupted after step %d; --resume continues from %s\n", r.report.Steps, checkpointDir(r.flags.out, r.report.Steps))
		}
		return nil
	}
	if r.app.json {
		return r.app.printJSON(r.report)
	}
	return r.print()
}

func (r *training) write() error {
	out := r.flags.out
	if out == "" {
		return nil
	}
	if !r.flags.single() {
		if err := r.checkpoint(); err != nil {
			return err
		}
		if err := train.CopyFiles(out, r.files...); err != nil {
			return err
		}
		out = filepath.Join(out, train.ModelFile)
	}
	weights, err := r.step.Weights(r.weights)
	if err != nil {
		return err
	}
	r.report.Weights = filepath.ToSlash(out)
	return safetensors.Write(out, weights, map[string]string{"format": "pt"})
}

// checkpoint writes a checkpoint, and the losses so far.
func (r *training) checkpoint() error {
	dir := checkpointDir(r.flags.out, r.step.Steps())
	if _, err := os.Stat(dir); err == nil { // it was written after this step
		return nil
	}
	if err := r.log.write(r.flags.out); err != nil { // before the checkpoint: a resumed run reads the losses of all its steps
		return err
	}
	return r.step.Save(dir, r.weights, r.files...)
}

const checkpointPrefix = "checkpoint-"

func checkpointDir(out string, step int64) string {
	return filepath.Join(out, checkpointPrefix+strconv.FormatInt(step, 10))
}

// latestCheckpoint returns the checkpoint of a directory with the most steps.
func latestCheckpoint(dir string) (string, error) {
	steps, err := checkpoints(dir)
	if err != nil {
		return "", err
	}
	if len(steps) == 0 {
		return "", fmt.Errorf("%s has no checkpoint to resume from; omit --resume to begin a new run", dir)
	}
	return checkpointDir(dir, slices.Max(steps)), nil
}

// checkpoints returns the step numbers of the checkpoints in a directory.
func checkpoints(dir string) ([]int64, error) {
	root, err := openfile.Dir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	var out []int64
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), checkpointPrefix)
		if n, err := strconv.ParseInt(rest, 10, 64); ok && err == nil && n >= 0 && e.IsDir() {
			out = append(out, n)
		}
	}
	return out, nil
}

// openOut checks --out before the run begins, and creates the directory of a new run. For a run that is resumed it only
// checks --seed.
func (r *training) openOut() error {
	r.log = &lossLog{}
	out := r.flags.out
	switch {
	case out == "":
		return nil
	case r.flags.resume:
		return r.flags.checkSeed()
	case r.follows: // rank 0 writes
		return nil
	case r.flags.single():
		return canWrite(out)
	}
	steps, err := checkpoints(out)
	if err != nil {
		return err
	}
	if len(steps) > 0 {
		return usagef("--out %s already has a run of %s: add --resume to continue it, or give another directory", out, plural(slices.Max(steps), "step"))
	}
	return os.MkdirAll(out, 0o755)
}

// checkSeed refuses a --seed that differs from the seed of the run to resume, whose random numbers
// continue.
func (t *trainFlags) checkSeed() error {
	if !t.seedGiven {
		return nil
	}
	from, err := latestCheckpoint(t.out)
	if err != nil {
		return err
	}
	seed, err := train.SavedSeed(from)
	if err == nil && seed != t.seed {
		err = usagef("--seed %d: the run of %s has seed %d, which --resume keeps: omit --seed, or begin a new run with another --out", t.seed, from, seed)
	}
	return err
}

// print prints the report as text.
func (r *training) print() error {
	w, rep := r.app.out, &r.report
	fmt.Fprintf(w, "%s in mode %s: %.3f s to compile, %.3f to load, %.3f to train", plural(int64(len(rep.Losses)), "step"), rep.Mode, rep.Seconds.Compile, rep.Seconds.Load, rep.Seconds.Train)
	if rep.Seconds.Train > 0 && len(rep.Losses) > 0 {
		fmt.Fprintf(w, ", %.0f %s/s", float64(int64(len(rep.Losses))*r.rows)/rep.Seconds.Train, r.unit)
	}
	fmt.Fprintln(w)
	if rep.Skipped > 0 {
		fmt.Fprintf(w, "%s skipped: gradients were not finite\n", plural(rep.Skipped, "step"))
	}
	tab := table{head: []string{">step", ">loss"}}
	const shown = 10
	n := len(rep.Losses)
	for i, loss := range rep.Losses {
		if i == n-1 || i%max((n+shown-1)/shown, 1) == 0 {
			tab.add(strconv.FormatInt(rep.First+int64(i)+1, 10), fmt.Sprintf("%.5f", float64(loss)))
		}
	}
	if n > 0 {
		fmt.Fprintln(w)
		if err := tab.write(w, "  "); err != nil {
			return err
		}
	}
	if rep.Weights != "" {
		fmt.Fprintf(w, "\nwrote %s\n", rep.Weights)
	}
	return nil
}
