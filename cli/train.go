package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/optim"
	"pwc/train"
)

// trainFlags are the flags of train other than those of modelFlags and buildFlags.
type trainFlags struct {
	data      string
	shuffle   bool
	optimizer string
	lr        float64
	momentum  float64
	nesterov  bool
	decay     float64
	betas     []float64
	eps       float64
	clip      float64

	schedule string
	warmup   int64

	rows   int64 // of a batch of a language model
	length int64 // of a row, in tokens

	steps     int64
	micro     int
	ranks     int   // devices that train together
	bucket    int64 // bytes of one call that sums gradients; 0: the default
	fn        []string
	mode      string
	precision string
	scaler    optim.Scaler
	scaled    bool // a flag of the loss scaling was given
	seed      int64
	seedGiven bool

	out    string
	every  int64
	resume bool
}

func (a *app) trainCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	t := trainFlags{scaler: optim.DefaultScaler()}
	cmd := &cobra.Command{
		Use:   "train FILE",
		Short: "train a model: a module with a loss, or a language model",
		Long: `Train a language model (a checkpoint directory or its config.json) on tensor input_ids,
i32[rows, tokens], of the file --data, and on labels of that shape if the file has them;
the label -100 excludes a token from the loss. Or train a module with a function that returns a
loss, f32[]: its parameters are the batch, and the f32 weights that it reads are trained.
Forward, backward and optimizer are one function, which --mode captures into graphs.

A parameter of a module takes the tensor of its name, which has the batches, [batches,
rows, …], or the rows of all batches in order. The first batch follows the last
one. If there are several losses, @loss.a and @loss.b, @choose selects the loss that a
step trains.

train writes model.safetensors with the weights, loss.csv, loss.svg, and checkpoint-N
directories with the weights and the optimizer's state to --out DIR, or only the weights to
--out FILE.safetensors. An interrupt writes a checkpoint; --resume continues from it with
the same bits.

--dp N trains on N devices, which have copies of the weights. A step takes N times as many
batches, as with N micro-batches on one device. With --rank each device has its own
process, on this host or on several. Rank 0 prints and writes; with --resume all ranks
read the checkpoint.`,
		Example: `  pwc train model.ir --weights initial.safetensors --data data.safetensors --optimizer sgd --lr 0.1 --momentum 0.9 --steps 100
  pwc train model.ir --weights initial.safetensors --data data.safetensors --optimizer adamw --lr 3e-4 --betas 0.9,0.95 --clip-norm 1 --steps 1000 --out run
  pwc train model.ir --weights initial.safetensors --data data.safetensors --optimizer adamw --lr 3e-4 --steps 2000 --out run --resume
  pwc train models/llama --data ids.safetensors --batch-size 8 --lr 1e-4 --schedule cosine --warmup 100 --steps 1000 --out tuned
  pwc train config.json --weights dummy --data ids.safetensors --steps 1000 --out anew
  pwc train model.ir --weights initial.safetensors --data data.safetensors --precision bf16 --target cuda --mode full --steps 1000 --out half
  pwc train models/llama --data ids.safetensors --dp 2 --target cuda --precision bf16 --steps 1000 --out tuned
  pwc train models/llama --data ids.safetensors --dp 2 --steps 9 --out ranks --rank 1 --rendezvous file:meet &
  pwc train models/llama --data ids.safetensors --dp 2 --steps 9 --out ranks --rank 0 --rendezvous file:meet`,
		Args: exactly(1, "one module or checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b.fix(cmd)
			b.trains(cmd)
			if err := t.check(cmd); err != nil {
				return err
			}
			return a.runTrain(cmd.Context(), args[0], &f, &b, &t)
		},
	}
	f.addImport(cmd, "f32")
	hideDivision(cmd)
	f.addWeights(cmd)
	cmd.Flags().Lookup("weights").Usage = "safetensors `FILE` or directory with the weights to start from, or dummy for made-up values (default: the checkpoint itself, or the path in the module)"
	b.add(cmd)
	b.addThreads(cmd)
	b.process.add(cmd, "--dp")
	b.addFrozen(cmd)
	b.addSymbols(cmd)
	cmd.Flags().Lookup("symbol").Usage = "the value of a symbol, since a step has one size: `SYMBOL=VALUE`"
	f.maxOfDims(cmd) // the batches determine the sizes
	b.addTraceOut(cmd)
	t.add(cmd)
	return cmd
}

// add adds the flags of train, or only those that are named.
func (t *trainFlags) add(cmd *cobra.Command, only ...string) {
	fl := pflag.NewFlagSet("", pflag.ContinueOnError)
	fl.StringVar(&t.data, "data", "", "safetensors `FILE` with the batches: a tensor for each parameter of the loss")
	fl.BoolVar(&t.shuffle, "shuffle", false, "shuffle the rows of --data for each pass over them, by --seed")
	fl.StringVar(&t.optimizer, "optimizer", "adamw", "`NAME` of the optimizer: sgd, adam or adamw")
	fl.Float64Var(&t.lr, "lr", 1e-3, "learning `RATE`")
	fl.Float64Var(&t.momentum, "momentum", 0, "momentum of sgd")
	fl.BoolVar(&t.nesterov, "nesterov", false, "Nesterov's momentum of sgd")
	fl.Float64Var(&t.decay, "weight-decay", 0, "weight decay: for adamw decoupled (default 0.01), for other optimizers added to the gradient (default 0)")
	fl.Float64SliceVar(&t.betas, "betas", []float64{0.9, 0.999}, "`BETA1,BETA2` of adam and adamw")
	fl.Float64Var(&t.eps, "eps", 1e-8, "added by adam and adamw to the root of the second moment")
	fl.Float64Var(&t.clip, "clip-norm", 0, "the largest `NORM` of all gradients together; gradients with a larger norm are scaled down to it (default: no limit)")
	fl.StringVar(&t.schedule, "schedule", "constant", "the learning rate after the warm-up until --steps: constant, or a linear or cosine decay to 0")
	fl.Var(&wholeNumber[int64]{&t.warmup, 0, 1 << 24}, "warmup", "number of steps in which the learning rate rises from 0")
	fl.Var(&wholeNumber[int64]{&t.rows, 1, maxNumber}, "batch-size", "`ROWS` of a batch of a language model (default: 8)")
	fl.Var(&wholeNumber[int64]{&t.length, 2, maxNumber}, "length", "`TOKENS` in a row of a language model (default: the length of the data's rows)")
	fl.Var(&wholeNumber[int64]{&t.steps, 1, 1 << 40}, "steps", "train until step `N`, counted from the beginning of the run also with --resume")
	fl.Var(&wholeNumber[int]{&t.micro, 1, 1 << 20}, "micro-batches", "accumulate the gradients of `N` micro-batches in each step")
	fl.Var(&wholeNumber[int]{&t.ranks, 1, ir.MaxGroupSize}, "dp", "train on `N` devices, each on its own batches (data parallelism); loss and gradients are the means")
	fl.Var(byteFlag{&t.bucket, 1}, "bucket", "with --dp, sum gradients in buckets of up to `BYTES`, with one all_reduce for each (default 4MiB)")
	fl.StringSliceVar(&t.fn, "func", nil, "`FUNCTION`s that return the loss (default: the only one, or @loss, or those named @loss.…)")
	fl.StringVar(&t.mode, "mode", "full", "capture `MODE`: none, piecewise or full")
	fl.StringVar(&t.precision, "precision", "f32", "`DTYPE` of GEMMs and the ops after them: f32, or bf16 or f16 with weights and optimizer in f32")
	fl.Float64Var(&t.scaler.Initial, "loss-scale", t.scaler.Initial, "the initial loss `SCALE`; f16 always scales the loss, other dtypes if one of the --loss-scale flags is given")
	fl.Float64Var(&t.scaler.Growth, "loss-scale-growth", t.scaler.Growth, "`FACTOR` by which the scale grows")
	fl.Float64Var(&t.scaler.Backoff, "loss-scale-backoff", t.scaler.Backoff, "`FACTOR` by which the scale falls if a gradient is not finite; that step is skipped")
	fl.Var(&wholeNumber[int64]{&t.scaler.Interval, 1, math.MaxInt32}, "loss-scale-interval", "`STEPS` in a row with finite gradients after which the scale grows")
	fl.Int64Var(&t.seed, "seed", 0, "`SEED` of dropout, --shuffle and other random numbers; a resumed run keeps its seed")
	fl.StringVar(&t.out, "out", "", "`DIR` for weights, checkpoints and the curve of the loss, or FILE.safetensors for only the weights")
	fl.Var(&wholeNumber[int64]{&t.every, 1, 1 << 40}, "save-every", "write a checkpoint every `N` steps, in addition to the end and an interrupt")
	fl.BoolVar(&t.resume, "resume", false, "resume from the latest checkpoint in --out")
	fl.VisitAll(func(f *pflag.Flag) {
		if len(only) == 0 || slices.Contains(only, f.Name) {
			cmd.Flags().AddFlag(f)
		}
	})
}

// check returns a usage error for flags that exclude or need each other, and sets the defaults that
// depend on other flags.
func (t *trainFlags) check(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	for _, name := range []string{"loss-scale", "loss-scale-growth", "loss-scale-backoff", "loss-scale-interval"} {
		t.scaled = t.scaled || changed(name)
	}
	t.seedGiven = changed("seed")
	if err := refuse(cmd, noEffect{t.optimizer != "sgd", "momentum nesterov", " with --optimizer " + t.optimizer},
		noEffect{t.optimizer == "sgd", "betas eps", " with --optimizer sgd"}, t.oneDevice()); err != nil {
		return err
	}
	switch {
	case t.data == "":
		return usagef("give the batches with --data data.safetensors")
	case t.steps == 0:
		return usagef("give the number of steps to train with --steps N")
	case len(t.betas) != 2:
		return usagef("--betas takes two numbers, as in 0.9,0.95")
	case t.resume && (t.out == "" || t.single()):
		return usagef("--resume needs --out DIR, the directory with the checkpoint to resume from")
	case t.every > 0 && (t.out == "" || t.single()):
		return usagef("--save-every writes checkpoints to the directory that --out names")
	}
	if t.optimizer == "adamw" && !changed("weight-decay") {
		t.decay = optim.DefaultAdamW().WeightDecay
	}
	return nil
}

// oneDevice has the flags without effect on one device.
func (t *trainFlags) oneDevice() noEffect {
	return noEffect{t.ranks <= 1, "bucket", " on one device: --dp N trains on N"}
}

// single reports whether --out is a file for only the weights.
func (t *trainFlags) single() bool { return strings.HasSuffix(t.out, ".safetensors") }

// options returns the options of the training step that the flags set.
func (t *trainFlags) options(symbols map[string]int64) (train.Options, error) {
	o := train.Options{Losses: t.fn, Symbols: symbols, LearningRate: t.lr, ClipNorm: t.clip, MicroBatches: t.micro, Ranks: t.ranks, BucketBytes: t.bucket}
	switch t.optimizer {
	case "sgd":
		o.Optimizer = optim.SGD{Momentum: t.momentum, WeightDecay: t.decay, Nesterov: t.nesterov}
	case "adam", "adamw":
		o.Optimizer = optim.Adam{Beta1: t.betas[0], Beta2: t.betas[1], Eps: t.eps, WeightDecay: t.decay, Decoupled: t.optimizer == "adamw"}
	default:
		return o, usagef("--optimizer %s: want sgd, adam or adamw", t.optimizer)
	}
	left := max(t.steps-t.warmup, 1)
	after := map[string]optim.Schedule{"constant": optim.Constant{}, "linear": optim.Linear{Steps: left}, "cosine": optim.Cosine{Steps: left}}[t.schedule]
	switch {
	case after == nil:
		return o, usagef("--schedule %s: want constant, linear or cosine", t.schedule)
	case t.warmup > 0 || t.schedule != "constant":
		o.Schedule = optim.Warmup{Steps: t.warmup, After: after}
	}
	dt, ok := dtype.Parse(t.precision)
	if !ok || !slices.Contains([]dtype.DType{dtype.F32, dtype.BF16, dtype.F16}, dt) {
		return o, usagef("--precision %s: want f32, bf16 or f16", t.precision)
	}
	o.Precision = dt
	if dt == dtype.F16 || t.scaled {
		o.Scaler = &t.scaler
	}
	for _, err := range []error{o.Optimizer.Check(), t.scaler.Check()} {
		if err != nil {
			return o, usagef("%w", err)
		}
	}
	if !(t.lr >= 0) || !(t.clip >= 0) {
		return o, usagef("--lr %s and --clip-norm %s: want numbers of at least 0", strconv.FormatFloat(t.lr, 'g', -1, 64), fmt.Sprint(t.clip))
	}
	return o, nil
}
