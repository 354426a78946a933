package runner

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"pwc/ir"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// Errors of the API, wrapped with context; compare with errors.Is.
var (
	ErrClosed      = errors.New("runner: closed")
	ErrNotLoaded   = errors.New("runner: called before Load")
	ErrRequest     = errors.New("runner: the request cannot be served") // refused by Submit
	ErrQueueFull   = errors.New("runner: the queue is full")            // a [QueueFullError]
	ErrDraining    = errors.New("runner: draining, no request is accepted")
	ErrNotANumber  = errors.New("runner: the logits have no largest finite number")
	ErrMemory      = errors.New("runner: the model does not fit") // a [MemoryError]
	ErrPreparation = errors.New("runner: the options do not fit the model")
)

// Options is how a model is served. Backend.Device (or a pool's), Backend.Target
// and one of Blocks, MaxBlocks, MemoryBytes and a device that knows its memory are required.
type Options struct {
	// Backend is what piecewise.New gets. Max, Symbols, Aliases and DecodeRows are set by
	// the runner, which also makes the pool. Where CaptureSizes is nil it is vLLM's default
	// list: up to min(2 × MaxSequences, 512) and MaxTokens, with the largest decode step;
	// if Frozen, up to min(MaxTokens, 512), because no step may go uncaptured. Sizes and
	// ranges above MaxTokens are an error.
	Backend piecewise.Options

	MaxSequences int // requests in a step; 0: 64
	MaxTokens    int // rows of a step, at least MaxSequences; 0: 512, or MaxSequences if that is more
	MaxLength    int // tokens of a sequence, prompt and answer; 0: 4096, or what the cache holds or the model has positions for if that is less

	// MaxAdjusted is the most requests in a step that have penalties or biases: others wait.
	// Each takes 12 bytes for each token of the vocabulary ([Plan.AdjustmentBytes]). 0: 64, or
	// MaxSequences if that is less.
	MaxAdjusted int

	// MaxQueue is the most requests that wait for their first step; Submit refuses others
	// with a [QueueFullError]. 0: no limit.
	MaxQueue int

	// Blocks is the number of blocks of the KV cache; 0: as many as fit into
	// MemoryBytes beside everything else, and no more than MaxSequences sequences
	// of MaxLength can use.
	Blocks int

	// MaxBlocks limits the blocks of the cache if Blocks is 0, for callers that know the requests
	// that run at once; 0: no limit.
	MaxBlocks int

	// MemoryBytes is what the runner may take of the device; 0: MemoryFraction of
	// the device's memory.
	MemoryBytes    int64
	MemoryFraction float64 // 0: 0.9

	// Peers are the other devices of a model that several run together (ir.Module.World), each
	// with its ops; Backend.Device is rank 0. The devices have joined the module's groups.
	Peers []Peer

	// Processes, if not nil, are processes that each run one rank of such a model, on one or several
	// hosts: Backend.Device is this process's rank. All have the same model and options. Rank 0 is used
	// as any runner, the others with Load and Run alone. They learn of each step in an exchange
	// before it, so rank 0 calls [Runner.Run], or Step at least once a minute.
	Processes Processes

	// Fail, if not nil, is told of a rank that cannot go on, on any goroutine: it ends the
	// rank's groups, so that no other rank waits for it. collective.Group.Fail does.
	Fail func(rank int, cause error)

	Observer Observer // nil: costs nothing
}

// Observer is told what a runner does, on the goroutine that steps, and must
// return quickly.
type Observer interface {
	// Stepped: a step was issued, and the one before it was read.
	Stepped(Step)

	// Finished: a request has ended, and says how. Done is closed when Finished has returned.
	Finished(*Sequence)
}

const (
	defaultSequences = 64
	defaultTokens    = 512
	defaultLength    = 4096
	defaultFraction  = 0.9
	defaultAdjusted  = 64
)

// Resolve returns the options for a model with what they leave out, as New takes
// them: the length of sequences is only a bound of what New will choose.
func (o Options) Resolve(m *ir.Module) (Options, error) {
	lm, err := inspect(m)
	if err != nil {
		return o, err
	}
	if err = o.defaults(lm); o.MaxLength == 0 {
		o.MaxLength = lm.length()
	}
	return o, err
}

func (o *Options) defaults(lm *language) error {
	if o.MaxSequences == 0 {
		o.MaxSequences = int(min(defaultSequences, lm.maxRows, lm.maxTokens))
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = int(min(max(defaultTokens, int64(o.MaxSequences)), lm.maxTokens))
	}
	if o.MaxAdjusted == 0 {
		o.MaxAdjusted = min(defaultAdjusted, o.MaxSequences)
	}
	if o.MemoryFraction == 0 {
		o.MemoryFraction = defaultFraction
	}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrPreparation}, args...)...))
	}
	if o.Backend.Memory.Max != nil || o.Backend.Memory.Symbols != nil || o.Backend.Memory.Aliases != nil || o.Backend.Pool != nil || o.Backend.Capture.DecodeRows != 0 {
		bad("Options.Backend sets Max, Symbols, Aliases, DecodeRows or Pool, which the runner sets")
	}
	if o.MaxSequences < 1 || int64(o.MaxSequences) > lm.maxRows {
		bad("MaxSequences %d is not in [1, %d], the rows that @logits takes", o.MaxSequences, lm.maxRows)
	}
	if n := lm.bounds.Positions; n > 0 && int64(o.MaxLength) > n {
		bad("MaxLength %d is above %d, the positions that the model is for", o.MaxLength, n)
	}
	if o.MaxTokens < o.MaxSequences || int64(o.MaxTokens) > lm.maxTokens {
		bad("MaxTokens %d is not in [%d, %d]: at least MaxSequences, so that every request can decode, and at most what @forward takes", o.MaxTokens, o.MaxSequences, lm.maxTokens)
	}
	if o.MaxLength < 0 || int64(o.MaxLength) > math.MaxInt32 {
		bad("MaxLength %d is not in [0, %d]: positions are i32", o.MaxLength, math.MaxInt32)
	}
	if o.Blocks < 0 || int64(o.Blocks) > lm.maxBlocks {
		bad("Blocks %d is not in [0, %d], what the model takes", o.Blocks, lm.maxBlocks)
	}
	if o.MaxAdjusted < 1 || o.MaxAdjusted > o.MaxSequences {
		bad("MaxAdjusted %d is not in [1, %d], the requests of a step", o.MaxAdjusted, o.MaxSequences)
	}
	if o.MaxQueue < 0 {
		bad("MaxQueue %d is negative", o.MaxQueue)
	}
	if o.MaxBlocks < 0 {
		bad("MaxBlocks %d is negative", o.MaxBlocks)
	}
	if o.MemoryBytes < 0 {
		bad("MemoryBytes %d is negative", o.MemoryBytes)
	}
	if !(o.MemoryFraction > 0 && o.MemoryFraction <= 1) {
		bad("MemoryFraction %g is not in (0, 1]", o.MemoryFraction)
	}
	for _, list := range []struct {
		what  string
		sizes []int64
	}{{"capture size", o.Backend.Capture.Sizes}, {"compile size", o.Backend.Compile.Sizes}, {"range endpoint", o.Backend.Compile.Endpoints}} {
		for _, n := range list.sizes {
			if n > int64(o.MaxTokens) {
				bad("%s %d is above MaxTokens %d, and no step has so many rows", list.what, n, o.MaxTokens)
			}
		}
	}
	if o.Backend.Capture.Sizes == nil && o.Backend.Capture.Mode != piecewise.None && len(errs) == 0 {
		o.Backend.Capture.Sizes = o.captureSizes()
	}
	// A frozen backend refuses runs above its largest size, which would end requests
	// that are under way.
	most, what := o.MaxTokens, "steps of up to MaxTokens"
	if o.Backend.Capture.Mode == piecewise.FullDecodeOnly {
		most, what = o.MaxSequences, "decode steps of up to MaxSequences"
	}
	if c := o.Backend.Capture.Sizes; o.Backend.Frozen && len(c) > 0 && o.Backend.Capture.Mode != piecewise.None && slices.Max(c) < int64(most) {
		bad("Backend.Frozen, but %s %d rows would run uncaptured: the largest of Backend.CaptureSizes is %d", what, most, slices.Max(c))
	}
	return errors.Join(errs...)
}

// captureSizes returns the default list: vLLM's, up to min(2 × max_num_seqs, 512) and the
// rows of a step (VllmConfig._set_cudagraph_sizes in vllm/config/vllm.py), with the largest
// decode step in it.
func (o *Options) captureSizes() []int64 {
	top := min(2*int64(o.MaxSequences), int64(o.MaxTokens))
	if o.Backend.Frozen {
		top = int64(o.MaxTokens)
	}
	list := piecewise.DefaultCaptureSizes(top)
	if top := list[len(list)-1]; top < int64(o.MaxSequences) {
		list = append(list, int64(o.MaxSequences))
	}
	if o.Backend.Capture.Mode == piecewise.FullDecodeOnly { // larger ones would have no use
		list = slices.DeleteFunc(list, func(n int64) bool { return n > covering(list, int64(o.MaxSequences)) })
	}
	return list
}

// covering returns the smallest of the sizes that holds n rows, or n: rows that
// are sampled are padded like the others.
func covering(sizes []int64, n int64) int64 {
	best := int64(-1)
	for _, s := range sizes {
		if s >= n && (best < 0 || s < best) {
			best = s
		}
	}
	if best < 0 {
		return n
	}
	return best
}

// BestMode returns the mode that serves decode steps from one graph and others
// in pieces, where every extern op that the model is cut at can be captured, else
// piecewise.
func BestMode(m *ir.Module, ops []device.Op) piecewise.Mode {
	if m == nil {
		return piecewise.Piecewise
	}
	for _, e := range m.Called() {
		i := slices.IndexFunc(ops, func(op device.Op) bool { return op != nil && op.Signature().Name == e.Name })
		if e.Split && (i < 0 || !ops[i].Signature().Capture || e.Host) {
			return piecewise.Piecewise
		}
	}
	return piecewise.FullAndPiecewise
}
