package cublaslt

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"pwc/internal/cuda/lt"
	"pwc/ir/dtype"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// plan is a GEMM with its descriptors and its algorithm.
type plan struct {
	problem
	desc      lt.Desc
	operands  lt.Operands
	algo      lt.Algorithm
	workspace int64 // bytes
	tuned     bool  // a record or Library.Choose named the algorithm; false: it is the heuristic's
	declined  error // why the library does not compute the GEMM; then of the other fields only problem is used

	warming sync.Mutex
	warm    atomic.Bool // Matmul.Warm ran it; nodes is known
	nodes   cuda.LibraryNodes
}

// plan returns the plan of a GEMM, which it makes the first time.
func (l *Library) plan(p problem) (*plan, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if have := l.chosen[p.anyFrom()]; have != nil {
		return have, have.declined
	}
	if have := l.plans[p]; have != nil {
		return have, have.declined
	}
	out, recorded := &plan{problem: p}, false
	err := l.dev.Do(func() (err error) {
		recorded, err = l.choose(out)
		return err
	})
	if err != nil {
		err = errors.Join(fmt.Errorf("%s: %w", p.String(), err), out.close(l.api))
		if !errors.Is(err, device.ErrDeclined) {
			return nil, err
		}
		out.declined = err
	}
	if recorded {
		l.chosen[p.anyFrom()] = out
	} else {
		l.plans[p] = out
	}
	return out, err
}

// errOwn declines a call by a record or by [Library.Choose].
var errOwn = fmt.Errorf("%w: measured, the program's own kernels are faster", device.ErrDeclined)

// choose makes the descriptors and picks the algorithm. recorded reports whether there is a
// record of the GEMM, or a choice of [Library.Choose].
func (l *Library) choose(p *plan) (recorded bool, err error) {
	choice, recorded := l.made[p.String()]
	if !recorded && l.records != nil {
		choice, recorded = l.records.Lookup(l.key(&p.problem))
	}
	if recorded && choice.Own {
		l.stats.Own++
		return true, errOwn
	}
	if !recorded && p.rows < p.from {
		return false, fmt.Errorf("%w: the library should serve from %d rows on", device.ErrDeclined, p.from)
	}
	if err := p.describe(l.api); err != nil {
		return recorded, err
	}
	if recorded {
		if workspace, err := l.usable(p, (*lt.Algorithm)(&choice.Algorithm)); err == nil {
			p.algo, p.workspace, p.tuned = choice.Algorithm, workspace, true
			l.stats.Tuned++
			return true, nil
		}
	}
	found, err := l.candidates(p, 8)
	if err != nil {
		return recorded, err
	}
	if len(found) == 0 {
		l.stats.Declined++
		return recorded, fmt.Errorf("%w: the library has no algorithm", device.ErrDeclined)
	}
	p.algo, p.workspace = found[0].Algo, int64(found[0].Workspace)
	l.stats.Untuned++
	if recorded {
		l.stats.Stale++
	}
	return recorded, nil
}

// usable returns the workspace of an algorithm in bytes, or an error if the algorithm cannot
// be used.
func (l *Library) usable(p *plan, a *lt.Algorithm) (int64, error) {
	workspace, err := l.api.Check(l.handle, p.desc, p.operands, a)
	if err != nil {
		return 0, err
	}
	if workspace > l.workspace {
		return 0, fmt.Errorf("it needs %d bytes of workspace, streams have %d", workspace, l.workspace)
	}
	if ok, err := l.ordered(a); !ok {
		return 0, errors.Join(errors.New("its sums depend on scheduling, or are rounded more than once"), err)
	}
	return workspace, nil
}

// ordered reports whether an algorithm's sums do not depend on scheduling, and are
// rounded once.
func (l *Library) ordered(a *lt.Algorithm) (bool, error) {
	scheme, err := l.api.Config(a, lt.ConfigReduction)
	return err == nil && (scheme == lt.ReductionNone || scheme == lt.ReductionComputeType), err
}

// candidates asks the heuristic for up to limit algorithms. It returns those that can be used, in
// the heuristic's order.
func (l *Library) candidates(p *plan, limit int) ([]lt.HeuristicResult, error) {
	pref, err := l.api.NewPreference(l.workspace, p.align(p.w, p.in), p.align(p.x, p.in), p.align(p.y, p.out))
	if err != nil {
		return nil, err
	}
	all, err := l.api.Heuristic(l.handle, p.desc, p.operands, pref, limit)
	err = errors.Join(err, l.api.DestroyPreference(pref))
	var s *StatusError
	if errors.As(err, &s) && s.Status == lt.StatusNotSupported {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []lt.HeuristicResult
	for _, r := range all {
		if r.State != lt.StatusSuccess || r.Workspace > uint64(l.workspace) {
			continue
		}
		ok, err := l.ordered(&r.Algo)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, r)
		}
	}
	return out, nil
}

// factors are alpha and beta: y = factors[0]·x·w + factors[1]·y. They are never
// written.
var factors = [2]float32{1, 0}

// describe makes the descriptors. The library's matrices are column-major: a row here is a
// column there, so y is Dᵀ = (A·B)ᵀ with w as A and x as B.
func (p *plan) describe(a lt.API) error {
	transW, transX, compute := int32(lt.OpT), int32(lt.OpN), int32(lt.Compute32F)
	wCols, wRows, xCols, xRows := p.cols, p.depth, p.rows, p.depth
	if p.byDepth {
		wCols, wRows, transW = wRows, wCols, lt.OpN
	}
	if p.xByDepth {
		xCols, xRows, transX = xRows, xCols, lt.OpT
	}
	if p.tf32 {
		compute = lt.Compute32FFastTF32
	}
	var err error
	if p.desc, err = a.NewDesc(compute, transW, transX); err != nil {
		return err
	}
	if p.operands.A, err = a.NewLayout(dataType(p.in), wRows, wCols, p.w.pitch, p.batch, p.w.stride); err != nil {
		return err
	}
	if p.operands.B, err = a.NewLayout(dataType(p.in), xRows, xCols, p.x.pitch, p.batch, p.x.stride); err != nil {
		return err
	}
	p.operands.D, err = a.NewLayout(dataType(p.out), p.cols, p.rows, p.y.pitch, p.batch, p.y.stride)
	return err
}

func dataType(dt dtype.DType) int32 {
	switch dt {
	case dtype.BF16:
		return lt.TypeBF16
	case dtype.F16:
		return lt.TypeF16
	}
	return lt.TypeF32
}

// close destroys the descriptors.
func (p *plan) close(a lt.API) error {
	var errs []error
	for _, y := range []*lt.Layout{&p.operands.A, &p.operands.B, &p.operands.D} {
		if *y != 0 {
			errs = append(errs, a.DestroyLayout(*y))
			*y = 0
		}
	}
	if p.desc != 0 {
		errs = append(errs, a.DestroyDesc(p.desc))
		p.desc = 0
	}
	return errors.Join(errs...)
}
