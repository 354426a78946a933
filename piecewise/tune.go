package piecewise

import (
	"context"
	"fmt"
	"time"

	"pwc/program"
)

// Sized is a program that every run of a function at a capture size launches.
type Sized struct {
	Func    string
	Size    int64
	Program *program.Program
	Symbols []int64 // values, in the program's order
}

// Programs returns the distinct programs of every function at every capture size, of each function
// the largest size first: those to measure before Capture.
func (b *Backend) Programs() ([]Sized, error) { return b.plan.programs() }

func (pl *plan) programs() ([]Sized, error) {
	var out []Sized
	for _, fn := range pl.funcs {
		for i := len(fn.sizes) - 1; i >= 0; i-- {
			n := fn.sizes[i]
			e := fn.envFor(n)
			done := map[*program.Program]bool{}
			for j := range fn.units {
				u := &fn.units[j]
				if u.piece == nil {
					continue
				}
				p, err := pl.program(u.piece, n)
				if err != nil {
					return nil, err
				}
				if done[p] {
					continue
				}
				done[p] = true
				values, err := e.symbols(u.piece.Symbols)
				if err != nil {
					return nil, err
				}
				out = append(out, Sized{fn.ir.Name, n, p, values})
			}
		}
	}
	return out, nil
}

// tune calls Options.Compile.Tune, if there is one.
func (pl *plan) tune(ctx context.Context) error {
	if pl.opts.Compile.Tune == nil || pl.opts.Device == nil {
		return nil
	}
	programs, err := pl.programs()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := pl.opts.Compile.Tune(ctx, programs); err != nil {
		return fmt.Errorf("piecewise: Options.Compile.Tune: %w", err)
	}
	pl.opts.Observe.Logger.Info("tuned", "programs", len(programs), "seconds", time.Since(start).Seconds())
	return nil
}
