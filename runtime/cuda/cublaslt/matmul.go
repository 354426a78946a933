package cublaslt

import (
	"errors"
	"fmt"

	"pwc/internal/cuda/lt"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// MatmulName is the routine's name in programs.
const MatmulName = "cublaslt.matmul"

// ErrCold is the error of a captured call whose algorithm was not warmed up: the library loads
// code at the first run of an algorithm, which must not happen in a capture.
var ErrCold = errors.New("cublaslt: captured before its warm-up (Stream.WarmLibraries)")

// Matmul is the routine. Its operands are x, w and y.
type Matmul struct{ lib *Library }

var (
	_ device.Warmer      = (*Matmul)(nil)
	_ device.Tunable     = (*Matmul)(nil)
	_ device.Initializer = (*Matmul)(nil)
)

// call is the State of a device.OpCall: a plan with the addresses of its operands.
type call struct {
	plan *plan
	api  lt.API
	args lt.MatmulArgs
	run  func(stream uintptr) error
}

// Signature says that the routine writes y and may be captured.
func (m *Matmul) Signature() device.Signature {
	return device.Signature{Name: MatmulName, Mut: []bool{false, false, true}, Capture: true, Version: fmt.Sprint(m.lib.Version())}
}

// ScratchBytes plans a GEMM. It returns 0 bytes, since algorithms use the stream's
// workspace. The error matches device.ErrDeclined if the library should not compute
// the GEMM.
func (m *Matmul) ScratchBytes(args []device.Tensor, attrs []program.Attr) (int64, error) {
	p, err := parse(args, attrs)
	if err != nil {
		return 0, err
	}
	_, err = m.lib.plan(p)
	return 0, err
}

// typical is a GEMM that every version of the library computes.
var typical = problem{rows: 256, cols: 4096, depth: 4096, batch: 1, in: dtype.BF16, out: dtype.BF16,
	x: matrix{pitch: 4096}, w: matrix{pitch: 4096}, y: matrix{pitch: 4096}}

// Initialize asks the library's heuristic once. With CUDA 13, on a machine with an H200, the first
// answer takes 0.1 s for any GEMM, and later answers 0.3 ms.
func (m *Matmul) Initialize() { _, _ = m.lib.ask(typical, 1) }

// Tuned reports whether the algorithm of a call was measured: it comes from a record or from
// [Library.Choose].
func (m *Matmul) Tuned(args []device.Tensor, attrs []program.Attr) bool {
	p, err := parse(args, attrs)
	if err != nil {
		return false
	}
	plan, err := m.lib.plan(p)
	return err == nil && plan.tuned
}

// Launch enqueues or records a GEMM. From the second launch of a call on, enqueuing allocates nothing.
func (m *Matmul) Launch(c *device.OpCall) error {
	k, s, err := m.call(c)
	if err != nil {
		return err
	}
	if c.Capturing && !k.plan.warm.Load() {
		return fmt.Errorf("%w: %s", ErrCold, k.plan.String())
	}
	return s.CallLibrary(k.plan.nodes, k.run)
}

// Warm runs the algorithm of a call, unless it did before, and records which nodes the call
// becomes in a graph.
func (m *Matmul) Warm(c *device.OpCall) error {
	k, s, err := m.call(c)
	if err != nil {
		return err
	}
	p := k.plan
	p.warming.Lock()
	defer p.warming.Unlock()
	if p.warm.Load() {
		return nil
	}
	if err := s.CallLibrary(cuda.LibraryNodes{}, k.run); err != nil {
		return err
	}
	nodes, err := m.lib.dev.ProbeLibrary(k.run)
	if err != nil {
		return err
	}
	p.nodes = nodes
	p.warm.Store(true)
	return nil
}

// call returns the state of a call, which it makes the first time, and the call's stream.
func (m *Matmul) call(c *device.OpCall) (*call, *cuda.Stream, error) {
	s := c.Stream.(*cuda.Stream)
	k, ok := c.State.(*call)
	if !ok {
		var err error
		if k, err = m.newCall(c); err != nil {
			return nil, nil, err
		}
		c.State = k
	}
	if need := k.plan.workspace; need > 0 {
		address, bytes := s.Workspace()
		if bytes < need {
			return nil, nil, fmt.Errorf("cublaslt: the stream's workspace has %d bytes, %s takes %d", bytes, k.plan.String(), need)
		}
		k.args.Workspace = uintptr(address)
	}
	return k, s, nil
}

func (m *Matmul) newCall(c *device.OpCall) (*call, error) {
	p, err := parse(c.Args, c.Attrs)
	if err != nil {
		return nil, err
	}
	plan, err := m.lib.plan(p)
	if err != nil {
		return nil, err
	}
	k := &call{plan: plan, api: m.lib.api}
	x, err := m.address(c.Args[0], p.x, p.align(p.x, p.in))
	if err != nil {
		return nil, err
	}
	w, err := m.address(c.Args[1], p.w, p.align(p.w, p.in))
	if err != nil {
		return nil, err
	}
	y, err := m.address(c.Args[2], p.y, p.align(p.y, p.out))
	if err != nil {
		return nil, err
	}
	k.args = lt.MatmulArgs{
		Handle: m.lib.handle, Desc: plan.desc, Alpha: &factors[0], Beta: &factors[1], Algo: &plan.algo,
		A: w, ALayout: plan.operands.A, B: x, BLayout: plan.operands.B, C: y, CLayout: plan.operands.D, D: y, DLayout: plan.operands.D,
		WorkspaceBytes: uintptr(plan.workspace),
	}
	k.run = func(stream uintptr) error {
		k.args.Stream = stream
		return k.api.Matmul(&k.args)
	}
	return k, nil
}

// address returns the address of an operand's first matrix.
func (m *Matmul) address(t device.Tensor, at matrix, align int) (uintptr, error) {
	p, err := m.lib.dev.Pointer(t.Buffer)
	if err != nil {
		return 0, err
	}
	p += uint64(at.offset) * uint64(t.DType.Bits()/8)
	if p%uint64(align) != 0 {
		return 0, fmt.Errorf("cublaslt: an operand at %#x, want a multiple of %d", p, align)
	}
	return uintptr(p), nil
}
