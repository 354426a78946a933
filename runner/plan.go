package runner

import (
	"fmt"
	"slices"
	"strings"

	"pwc/ir"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/runtime/mem"
)

// Plan is the device memory of a runner, known before anything is allocated.
type Plan struct {
	piecewise.Plan // StateBytes has the KV cache and AdjustmentBytes

	LimitBytes int64 `json:"limit_bytes"` // largest number of bytes that the runner may allocate; 0: unknown
	Rounding   int64 `json:"rounding"`    // upper bound of the bytes lost to alignment and to the allocator's segments

	AdjustmentBytes int64 `json:"adjustment_bytes"` // counts and biases of tokens, for Options.MaxAdjusted requests

	BlockBytes int64 `json:"block_bytes"` // bytes of a block in all caches
	BlockSize  int64 `json:"block_size"`  // tokens in a block
	Blocks     int64 `json:"blocks"`
	MaxLength  int   `json:"max_length"` // tokens of the longest sequence

	Sizes     []int64  `json:"sizes"`               // capture sizes of @forward
	Uncovered []string `json:"uncovered,omitempty"` // decode steps above the largest capture size and, if rows must not be padded, steps of other sizes, with reasons; in mode none: all steps
}

// Total returns an upper bound of the runner's device memory in bytes, without graphs and code.
func (p *Plan) Total() int64 { return p.Plan.Total() + p.Rounding }

// fixed returns Total without the KV cache.
func (p *Plan) fixed() int64 { return p.Total() - p.cacheBytes() }

func (p *Plan) cacheBytes() int64 { return p.StateBytes - p.AdjustmentBytes }

// String returns the plan as lines of text.
func (p *Plan) String() string {
	var b strings.Builder
	line := func(what string, bytes int64, note string, args ...any) {
		text := fmt.Sprintf("%-12s %12.2f MiB  %s", what, float64(bytes)/(1<<20), fmt.Sprintf(note, args...))
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	line("weights", p.WeightBytes, "")
	line("arena", p.PeakArenaBytes, "between pieces and scratch, shared by all sizes")
	if p.WorkspaceBytes > 0 {
		line("workspaces", p.WorkspaceBytes, "of library routines")
	}
	line("inputs", p.InputBytes+p.ResultBytes+p.ConstBytes, "and results, and constants")
	line("rounding", p.Rounding, "at most, by the allocator")
	line("adjustments", p.AdjustmentBytes, "counts and biases of tokens, for penalties")
	line("KV cache", p.cacheBytes(), "blocks of %d tokens and %d bytes: %d, for %d tokens", p.BlockSize, p.BlockBytes, p.Blocks, p.Blocks*p.BlockSize)
	if p.LimitBytes > 0 {
		line("in all", p.Total(), "of %.2f MiB", float64(p.LimitBytes)/(1<<20))
	} else {
		line("in all", p.Total(), "")
	}
	fmt.Fprintf(&b, "%d graphs at %d sizes; no sequence is longer than %d\n", p.Graphs, len(p.Sizes), p.MaxLength)
	for _, u := range p.Uncovered {
		fmt.Fprintf(&b, "not captured: %s\n", u)
	}
	for _, u := range p.Plan.Uncaptured {
		fmt.Fprintf(&b, "not captured: %s\n", u.Why)
	}
	for _, u := range p.Unused {
		fmt.Fprintf(&b, "unused: %s\n", u)
	}
	return b.String()
}

// MemoryError says that a model does not fit, with the numbers. It matches [ErrMemory].
type MemoryError struct {
	Plan   Plan
	Needed int64 // blocks that the options require, or 1
	Why    string
}

// Error gives the plan in one line.
func (e *MemoryError) Error() string {
	p := &e.Plan
	return fmt.Sprintf("%v: %s: %d bytes for weights, %d for the arena and workspaces, %d for inputs, results and constants, %d for rounding, %d for counts and biases of tokens, and %d blocks of %d bytes are %d of %d bytes",
		ErrMemory, e.Why, p.WeightBytes, p.PeakArenaBytes+p.WorkspaceBytes, p.InputBytes+p.ResultBytes+p.ConstBytes, p.Rounding, p.AdjustmentBytes, e.Needed, p.BlockBytes, p.fixed()+e.Needed*p.BlockBytes, p.LimitBytes)
}

// Unwrap returns ErrMemory.
func (e *MemoryError) Unwrap() error { return ErrMemory }

// cacheAlign is the alignment of a state in the backend's memory, in bytes.
const cacheAlign = 256

// blockBytes returns the bytes of one block in all caches together.
func blockBytes(m *ir.Module) (int64, error) {
	total := int64(0)
	for _, s := range m.States {
		if slices.Contains(adjustStates[:], s.Name) {
			continue
		}
		n, err := s.Type.Elements().Eval(func(string) (int64, bool) { return 1, true })
		if err != nil {
			return 0, fmt.Errorf("state @%s: %w", s.Name, err)
		}
		total += s.Type.DType.Bytes(n)
	}
	return total, nil
}

// newPlan chooses the number of blocks. backend is the plan of a backend with any number of blocks;
// newPlan reads only its bytes other than the cache's.
func newPlan(backend piecewise.Plan, m *ir.Module, o *Options, lm *language) (Plan, error) {
	p := Plan{Plan: backend, BlockSize: lm.blockSize, LimitBytes: o.MemoryBytes, Rounding: cacheAlign * int64(len(m.States))}
	p.AdjustmentBytes = int64(len(adjustStates)) * 4 * lm.vocabulary * int64(o.MaxAdjusted)
	var err error
	if p.BlockBytes, err = blockBytes(m); err != nil {
		return p, err
	}
	if p.LimitBytes == 0 {
		p.LimitBytes = int64(o.MemoryFraction * float64(o.Backend.Device.Info().MemoryBytes))
	}
	if r, ok := o.Backend.Device.(device.Reserver); ok {
		g, err := r.MapGranularity()
		if err != nil {
			return p, err
		}
		p.Rounding += g
	}
	for _, n := range []int64{p.WeightBytes, p.InputBytes, p.ResultBytes, p.PeakArenaBytes, p.WorkspaceBytes} {
		if n > 0 {
			p.Rounding += mem.SegmentBytes(n) - n
		}
	}
	p.MaxLength = o.MaxLength
	if p.MaxLength == 0 {
		p.MaxLength = lm.length()
	}
	longest := (int64(p.MaxLength) + p.BlockSize - 1) / p.BlockSize
	p.Blocks = int64(o.Blocks)
	most, by := lm.maxBlocks, "the model allows"
	if n := int64(o.MaxBlocks); n > 0 && n < most {
		most, by = n, "MaxBlocks is"
	}
	if p.Blocks == 0 {
		if p.LimitBytes == 0 && o.MaxBlocks == 0 {
			return p, fmt.Errorf("%w: %s does not report its memory: set MemoryBytes, Blocks or MaxBlocks", ErrPreparation, o.Backend.Device.Info().Name)
		}
		p.Blocks = min(most, longest*int64(o.MaxSequences))
		if p.LimitBytes > 0 {
			p.Blocks = min(p.Blocks, max(0, p.LimitBytes-p.fixed())/p.BlockBytes)
		}
	}
	switch {
	case p.Blocks < 1:
		return p, &MemoryError{Plan: p, Needed: 1, Why: "no block of the KV cache is left"}
	case p.LimitBytes > 0 && p.fixed()+p.Blocks*p.BlockBytes > p.LimitBytes:
		return p, &MemoryError{Plan: p, Needed: p.Blocks, Why: "the blocks asked for do not fit"}
	case o.MaxLength > 0 && longest > p.Blocks && o.Blocks > 0:
		return p, fmt.Errorf("%w: a sequence of %d tokens needs %d blocks of %d tokens, the cache is given %d", ErrPreparation, o.MaxLength, longest, p.BlockSize, p.Blocks)
	case o.MaxLength > 0 && longest > most && o.Blocks == 0:
		return p, fmt.Errorf("%w: MaxLength %d needs %d blocks of %d tokens, %s %d", ErrPreparation, o.MaxLength, longest, p.BlockSize, by, most)
	case o.MaxLength > 0 && longest > p.Blocks:
		return p, &MemoryError{Plan: p, Needed: longest, Why: fmt.Sprintf("one sequence of %d tokens does not fit", o.MaxLength)}
	}
	p.MaxLength = int(min(int64(p.MaxLength), p.Blocks*p.BlockSize))
	return p, nil
}
