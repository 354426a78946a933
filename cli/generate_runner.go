package cli

import (
	"context"
	"fmt"
	"math"
	"slices"

	"pwc/ir"
	"pwc/piecewise"
	"pwc/runner"
)

// options returns the runner's options that the flags set.
func (g *generateFlags) options() runner.Options {
	return runner.Options{MaxSequences: g.sequences, MaxTokens: g.tokens, MaxLength: g.length, Blocks: g.blocks, MemoryBytes: g.memory, MemoryFraction: g.fraction}
}

// mostBlocks returns the most blocks that the model's KV cache can have, with --blocks.
func (g *generateFlags) mostBlocks(m *ir.Module) int {
	most := math.MaxInt
	for _, s := range m.Symbols {
		if s.Kind == ir.Load && !m.IsRank(s.Name) {
			most = min(most, int(s.Hi))
		}
	}
	if g.blocks > 0 {
		most = min(most, g.blocks)
	}
	return most
}

// sizes returns the options of a runner that is large enough for the requests. It refuses requests
// that need more blocks than the KV cache can have.
func (out *generation) sizes(m *ir.Module, g *generateFlags) (runner.Options, error) {
	o := g.options()
	o.Observer, o.MaxLength = out, 0 // the longest request sets MaxLength; bound has applied --max-length
	blockSize, most := int(cacheBlock(m)), g.mostBlocks(m)
	var needed []int // blocks of each request
	for i := range out.requests {
		q := &out.requests[i]
		if q.atMost > 0 && q.atMost/blockSize >= most {
			q.atMost = most * blockSize
		}
		length := q.length()
		blocks := (length + blockSize - 1) / blockSize
		if q.refused == nil && blocks > most {
			q.refused = fmt.Errorf("%d tokens of prompt and %d new ones need %d blocks of %d tokens, and the KV cache has at most %d", len(q.Prompt), q.MaxNew, blocks, blockSize, most)
		}
		if q.refused != nil {
			continue
		}
		o.MaxLength = max(o.MaxLength, length)
		needed = append(needed, blocks)
	}
	full, err := o.Resolve(m)
	if err != nil {
		return o, explainOptions(err)
	}
	// The blocks of the longest requests that fit in a step are enough, no matter how many wait.
	slices.Sort(needed)
	for _, blocks := range needed[max(0, len(needed)-full.MaxSequences):] {
		o.MaxBlocks = min(o.MaxBlocks+blocks, most)
	}
	o.MaxBlocks = max(o.MaxBlocks, 1)
	return o, nil
}

// newRunner makes a runner for the requests, with the flags.
func (a *app) newRunner(ctx context.Context, m *ir.Module, t *target, w *world, bf *buildFlags, g *generateFlags, out *generation) (*runner.Runner, error) {
	o, err := out.sizes(m, g)
	if err != nil {
		return nil, err
	}
	return a.openRunner(ctx, m, t, w, bf, g, o, out)
}

// openRunner makes a runner with the options, after all processes have compared their flags.
func (a *app) openRunner(ctx context.Context, m *ir.Module, t *target, w *world, bf *buildFlags, g *generateFlags, o runner.Options, out *generation) (*runner.Runner, error) {
	steps, err := stepsOf(m, o)
	if err != nil {
		return nil, explainOptions(err)
	}
	if err := w.agree(ctx, bf.settings()); err != nil {
		return nil, err
	}
	var r *runner.Runner
	err = a.forGPU(ctx, t, bf, func() error {
		backend, done, err := a.backendOptions(m, t, bf, piecewise.None, steps)
		if err != nil {
			return err
		}
		defer done()
		if o.Backend, err = a.watched(m, backend, g, out); err != nil {
			return err
		}
		if o.Peers, err = a.peers(m, w, steps); err != nil {
			return err
		}
		o.Fail = w.fail
		if w.process != nil {
			o.Processes = w.process
		}
		r, err = runner.New(ctx, m, o)
		return t.explain(err)
	})
	if err != nil {
		w.fail(0, err)
	}
	return r, explainOptions(err)
}

// watched returns a backend's options with the mode of the flags, and with the observers of metrics,
// NVTX ranges and op times.
func (a *app) watched(m *ir.Module, backend piecewise.Options, g *generateFlags, out *generation) (piecewise.Options, error) {
	var err error
	if g.mode == autoMode {
		backend.Capture.Mode = runner.BestMode(m, backend.Ops)
	} else if backend.Capture.Mode, err = piecewise.ParseMode(g.mode); err != nil {
		return backend, usagef("--mode: %w", err)
	}
	if out.metrics != nil {
		backend.Observe.Observer = both(backend.Observe.Observer, out.metrics)
	}
	if g.nvtx {
		if marks, err := openNVTX(); err != nil {
			fmt.Fprintf(a.err, "pwc: --nvtx marks nothing: %v\n", err)
		} else {
			all := markers{marks}
			if m, ok := backend.Observe.Observer.(piecewise.ProfileRanges); ok {
				all = append(all, m)
			}
			backend.Observe.Observer = marked{backend.Observe.Observer, all}
		}
	}
	out.ops = nil
	for i, op := range backend.Ops {
		timed := &timedOp{wrapped: wrapped{op}}
		backend.Ops[i], out.ops = timed, append(out.ops, timed)
	}
	return backend, nil
}

// openLanguage opens a model. It returns an error if a runner cannot run it.
func (a *app) openLanguage(path string, f *modelFlags) (*model, error) {
	m, err := a.open(path, f)
	if err == nil {
		_, err = runner.Options{}.Resolve(m.module)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// stepsOf returns the limits of the steps of a runner with the options.
func stepsOf(m *ir.Module, o runner.Options) (Site, error) {
	full, err := o.Resolve(m)
	if err != nil {
		return Site{}, err
	}
	block := int(cacheBlock(m))
	return Site{Rows: full.MaxTokens, Requests: full.MaxSequences, Blocks: (full.MaxLength + block - 1) / block}, nil
}
