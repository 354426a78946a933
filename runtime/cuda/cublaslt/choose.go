package cublaslt

import (
	"errors"

	"pwc/internal/cuda/lt"
	"pwc/program"
	"pwc/runtime/device"
)

// KeyOf returns the key of a call's record. args and attrs are those of
// [Matmul.ScratchBytes].
func (l *Library) KeyOf(args []device.Tensor, attrs []program.Attr) (Key, error) {
	p, err := parse(args, attrs)
	if err != nil {
		return Key{}, err
	}
	return l.key(&p), nil
}

// Candidates returns up to limit algorithms that can compute a call, in the order of
// the library's heuristic. The list may be empty.
func (l *Library) Candidates(args []device.Tensor, attrs []program.Attr, limit int) ([]Choice, error) {
	p, err := parse(args, attrs)
	if err != nil {
		return nil, err
	}
	return l.ask(p, limit)
}

// ask is Candidates for a parsed call.
func (l *Library) ask(p problem, limit int) (out []Choice, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	scratch := &plan{problem: p}
	err = l.dev.Do(func() error {
		if err := scratch.describe(l.api); err != nil {
			return err
		}
		found, err := l.candidates(scratch, limit)
		for _, r := range found {
			out = append(out, Choice{Algorithm: r.Algo})
		}
		return err
	})
	return out, errors.Join(err, scratch.close(l.api))
}

// Choose makes a choice for a call and for all calls with the same [Key]. It overrides
// records and the heuristic. An algorithm that cannot be used is an error, and nothing changes.
// A device.OpCall that was launched or warmed before keeps its plan. Tuning uses Choose to measure
// algorithms, and to use the fastest one without a restart.
func (l *Library) Choose(args []device.Tensor, attrs []program.Attr, c Choice) error {
	p, err := parse(args, attrs)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	chosen := &plan{problem: p}
	if c.Own {
		chosen.declined = errOwn
	} else if err := l.dev.Do(func() error { return l.take(chosen, &c) }); err != nil {
		return errors.Join(err, chosen.close(l.api))
	}
	// Calls with other offsets of operands may have the same key: plan them again.
	gemm := p.String()
	for _, plans := range []map[problem]*plan{l.plans, l.chosen} {
		for k, old := range plans {
			if k.String() == gemm {
				l.old = append(l.old, old)
				delete(plans, k)
			}
		}
	}
	l.chosen[p.anyFrom()] = chosen
	l.made[gemm] = c
	return nil
}

// take makes the descriptors of a plan with the algorithm of c.
func (l *Library) take(p *plan, c *Choice) error {
	if err := p.describe(l.api); err != nil {
		return err
	}
	workspace, err := l.usable(p, (*lt.Algorithm)(&c.Algorithm))
	p.algo, p.workspace, p.tuned = c.Algorithm, workspace, true
	return err
}
