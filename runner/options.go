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
	ErrNotANumber  = errors.New("runner: the largest logit is not finite: it is NaN or infinite, or every token is masked")
	ErrMemory      = errors.New("runner: the model does not fit") // a [MemoryError]
	ErrPreparation = errors.New("runner: the options do not fit the model")
)

// Options says how a model is served. Backend.Device and Backend.Compile.Compiler are required. If
// the device does not report its memory, one of Blocks, MaxBlocks and MemoryBytes is required, too.
type Options struct {
	// Backend has the options for piecewise.New. The runner makes the pool, and sets Memory.Max,
	// Memory.Symbols, Memory.Aliases and Capture.DecodeRows; a caller that sets one gets an error.
	//
	// If Capture.Sizes is nil, the runner takes [piecewise.DefaultCaptureSizes] up to
	// min(2 × MaxSequences, MaxTokens, 512), or up to min(MaxTokens, 512) if Frozen, because then
	// every step needs a graph. It adds MaxSequences if the list ends below it. In mode
	// full-decode-only it drops the sizes above the one that holds MaxSequences rows. Capture
	// sizes, compile sizes and range endpoints above MaxTokens are an error. If Frozen, a largest
	// size below MaxTokens (full-decode-only: MaxSequences) is an error, too, so in the other modes
	// that capture, MaxTokens above max(512, MaxSequences) needs explicit sizes.
	Backend piecewise.Options

	MaxSequences int // requests in a step; 0: 64, or fewer if the model takes fewer
	MaxTokens    int // rows of a step, at least MaxSequences; 0: max(512, MaxSequences), or fewer if the model takes fewer
	MaxLength    int // tokens of a sequence, prompt and answer; 0: the minimum of 4096, the tokens of the cache, and the model's positions

	// MaxAdjusted is the largest number of running requests with penalties or biases; further ones
	// wait. Each takes 12 bytes for each token of the vocabulary ([Plan.AdjustmentBytes]).
	// 0: min(64, MaxSequences).
	MaxAdjusted int

	// MaxQueue is the largest number of requests that wait for their first step; Submit refuses
	// further ones with a [QueueFullError]. 0: no limit.
	MaxQueue int

	// Blocks is the number of blocks of the KV cache. 0: the number that fits into the memory that
	// everything else leaves, at most MaxBlocks, and at most what MaxSequences sequences of
	// MaxLength tokens can use.
	Blocks int

	// MaxBlocks limits the blocks of the cache if Blocks is 0, for callers that know their requests;
	// 0: no limit.
	MaxBlocks int

	// MemoryBytes is the device memory that the runner may allocate; 0: MemoryFraction of the
	// device's memory.
	MemoryBytes    int64
	MemoryFraction float64 // 0: 0.9

	// Peers are the other devices of a model that several devices run together (ir.Module.World),
	// each with its ops. Backend.Device is rank 0. The devices must have joined the module's groups.
	Peers []Peer

	// Processes, if not nil, are processes that each run one rank of such a model, on one or several
	// hosts. Backend.Device is the device of this process's rank. All processes need the same model
	// and options. Rank 0 takes requests like any runner; the callers of the other ranks call Load,
	// Run and Close. These ranks wait at most the group's limit, by default a minute, for the exchange
	// that describes the next step, so rank 0 must call [Runner.Run], or Step more often.
	Processes Processes

	// Fail, if not nil, is called on any goroutine when a rank fails. It must end the rank's groups
	// (collective.Group.Fail), so that no other rank waits for the failed one.
	Fail func(rank int, cause error)

	Observer Observer // nil: costs nothing
}

// Observer observes a runner. The goroutine that calls Step, Run or Close calls its methods and
// holds the runner's lock meanwhile, so they must return quickly and call none of these three.
type Observer interface {
	// Stepped is called at the end of Runner.Step, except if Step ends before its schedule: the runner is not
	// loaded or has ended, or ctx has ended.
	Stepped(Step)

	// Finished is called when a request has ended; Sequence.Reason says why. Sequence.Done is
	// closed after Finished returns.
	Finished(*Sequence)
}

const (
	defaultSequences = 64
	defaultTokens    = 512
	defaultLength    = 4096
	defaultFraction  = 0.9
	defaultAdjusted  = 64
)

// Resolve returns the options with New's defaults for a model. MaxLength is an upper bound: New
// may choose less if the cache is small. Do not pass the result to New, which refuses a MaxLength
// that the cache cannot hold.
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
		bad("Options.Backend must leave Pool, Memory.Max, Memory.Symbols, Memory.Aliases and Capture.DecodeRows unset: the runner sets them")
	}
	if o.MaxSequences < 1 || int64(o.MaxSequences) > lm.maxRows {
		bad("MaxSequences %d is not in [1, %d], the rows that @logits takes", o.MaxSequences, lm.maxRows)
	}
	if n := lm.bounds.Positions; n > 0 && int64(o.MaxLength) > n {
		bad("MaxLength %d is above %d, the positions that the model is for", o.MaxLength, n)
	}
	if o.MaxTokens < o.MaxSequences || int64(o.MaxTokens) > lm.maxTokens {
		bad("MaxTokens %d is not in [%d, %d]: at least MaxSequences, so that every request can decode, and at most the rows that @forward takes", o.MaxTokens, o.MaxSequences, lm.maxTokens)
	}
	if o.MaxLength < 0 || int64(o.MaxLength) > math.MaxInt32 {
		bad("MaxLength %d is not in [0, %d]: positions are i32", o.MaxLength, math.MaxInt32)
	}
	if o.Blocks < 0 || int64(o.Blocks) > lm.maxBlocks {
		bad("Blocks %d is not in [0, %d], the blocks that the model takes", o.Blocks, lm.maxBlocks)
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
	// A frozen backend refuses runs above its largest size. Such a run would end running requests.
	most, what := o.MaxTokens, "steps of up to MaxTokens"
	if o.Backend.Capture.Mode == piecewise.FullDecodeOnly {
		most, what = o.MaxSequences, "decode steps of up to MaxSequences"
	}
	if c := o.Backend.Capture.Sizes; o.Backend.Frozen && len(c) > 0 && o.Backend.Capture.Mode != piecewise.None && slices.Max(c) < int64(most) {
		bad("Backend.Frozen, but %s %d rows would run uncaptured: the largest of Backend.Capture.Sizes is %d", what, most, slices.Max(c))
	}
	return errors.Join(errs...)
}

// captureSizes returns the default list: [piecewise.DefaultCaptureSizes] up to vLLM's bound,
// min(2 × max_num_seqs, max_num_batched_tokens, 512) (VllmConfig._set_cudagraph_sizes in
// vllm/config/vllm.py), or min(max_num_batched_tokens, 512) if frozen, extended to the largest decode step.
func (o *Options) captureSizes() []int64 {
	top := min(2*int64(o.MaxSequences), int64(o.MaxTokens))
	if o.Backend.Frozen {
		top = int64(o.MaxTokens)
	}
	list := piecewise.DefaultCaptureSizes(top)
	if top := list[len(list)-1]; top < int64(o.MaxSequences) {
		list = append(list, int64(o.MaxSequences))
	}
	if o.Backend.Capture.Mode == piecewise.FullDecodeOnly { // larger sizes would be unused
		list = slices.DeleteFunc(list, func(n int64) bool { return n > covering(list, int64(o.MaxSequences)) })
	}
	return list
}

// covering returns the smallest size that is at least n, or n if all are smaller.
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

// BestMode returns FullAndPiecewise if each op declared split that the model calls has an
// implementation in ops that can be captured, and is not declared host; otherwise Piecewise.
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
