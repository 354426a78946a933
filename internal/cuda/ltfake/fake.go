// Package ltfake is cuBLASLt without a GPU, for tests, over devices whose driver is
// internal/cuda/fake. A GEMM fills the first byte of D with the number of its algorithm.
package ltfake

import (
	"errors"
	"fmt"

	"pwc/internal/cuda/lt"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// Algorithm is an algorithm for GEMMs.
type Algorithm struct {
	Number    uint64
	Workspace uint64 // bytes
	Status    int    // cublasStatus_t; 0: it can be used
	Fills     int    // number of fills of a GEMM, in place of its time; 0: one
	Scheme    int32  // cublasLtReductionScheme_t
}

// Library is the library. Its fields may change between calls.
type Library struct {
	Found []Algorithm        // the algorithms, in the order of the heuristic
	Fail  error              // of Heuristic
	Left  int                // calls before one fails with [ErrCall], without Version, Destroy… and Matmul; below 0: no call fails
	Log   []string           // calls that make descriptors, layouts and preferences
	Ran   []uint64           // numbers of the algorithms of GEMMs, in the order of their calls
	Asked int                // calls of Heuristic
	Live  map[uintptr]string // kinds of the objects that were made and not destroyed

	dev     *cuda.Device
	next    uintptr
	wrapped map[uintptr]device.Memory // results, by address
}

// ErrCall is the error of a call that was made to fail.
var ErrCall = errors.New("no luck")

// unsupported is the number of the algorithm that Check refuses.
const unsupported = 99

// New returns the library for a device, with the algorithms found.
func New(dev *cuda.Device, found ...Algorithm) *Library {
	return &Library{Found: found, Left: -1, Live: map[uintptr]string{}, dev: dev, wrapped: map[uintptr]device.Memory{}}
}

func (f *Library) call() error {
	f.Left--
	if f.Left == -1 {
		return ErrCall
	}
	return nil
}

func (f *Library) make(what string) (uintptr, error) {
	if err := f.call(); err != nil {
		return 0, err
	}
	f.next++
	f.Live[f.next] = what
	return f.next, nil
}

func (f *Library) destroy(p uintptr) error {
	if f.Live[p] == "" {
		return fmt.Errorf("%d destroyed twice", p)
	}
	delete(f.Live, p)
	return nil
}

// Version is that of cuBLASLt 13.1.
func (f *Library) Version() int { return 130100 }

// Create makes a handle.
func (f *Library) Create() (lt.Handle, error) {
	p, err := f.make("handle")
	return lt.Handle(p), err
}

// Destroy destroys a handle.
func (f *Library) Destroy(h lt.Handle) error { return f.destroy(uintptr(h)) }

// NewDesc logs and makes a descriptor.
func (f *Library) NewDesc(compute, transA, transB int32) (lt.Desc, error) {
	f.Log = append(f.Log, fmt.Sprintf("desc %d %d %d", compute, transA, transB))
	p, err := f.make("desc")
	return lt.Desc(p), err
}

// NewLayout logs and makes a layout.
func (f *Library) NewLayout(dataType int32, rows, cols, pitch, batch, stride int64) (lt.Layout, error) {
	f.Log = append(f.Log, fmt.Sprintf("layout %d %dx%d/%d %d/%d", dataType, rows, cols, pitch, batch, stride))
	p, err := f.make("layout")
	return lt.Layout(p), err
}

// NewPreference logs and makes a preference.
func (f *Library) NewPreference(workspace int64, a, b, d int) (lt.Preference, error) {
	f.Log = append(f.Log, fmt.Sprintf("preference %d %d %d %d", workspace, a, b, d))
	p, err := f.make("preference")
	return lt.Preference(p), err
}

// DestroyDesc destroys a descriptor.
func (f *Library) DestroyDesc(d lt.Desc) error { return f.destroy(uintptr(d)) }

// DestroyLayout destroys a layout.
func (f *Library) DestroyLayout(y lt.Layout) error { return f.destroy(uintptr(y)) }

// DestroyPreference destroys a preference.
func (f *Library) DestroyPreference(p lt.Preference) error { return f.destroy(uintptr(p)) }

// bytes returns the algorithm as the library's opaque data.
func (a *Algorithm) bytes() lt.Algorithm { return lt.Algorithm{a.Number, a.Workspace} }

// Heuristic returns the first algorithms of Found.
func (f *Library) Heuristic(_ lt.Handle, _ lt.Desc, _ lt.Operands, _ lt.Preference, most int) ([]lt.HeuristicResult, error) {
	f.Asked++
	if err := f.call(); err != nil {
		return nil, err
	}
	var out []lt.HeuristicResult
	for i := range f.Found[:min(most, len(f.Found))] {
		a := &f.Found[i]
		out = append(out, lt.HeuristicResult{Algo: a.bytes(), Workspace: a.Workspace, State: int32(a.Status)})
	}
	return out, f.Fail
}

// Check refuses algorithm 99.
func (f *Library) Check(_ lt.Handle, _ lt.Desc, _ lt.Operands, a *lt.Algorithm) (int64, error) {
	if a[0] == unsupported {
		return 0, &lt.StatusError{Call: "MatmulAlgoCheck", Status: lt.StatusNotSupported}
	}
	return int64(a[1]), f.call()
}

// Config returns an algorithm's reduction scheme.
func (f *Library) Config(a *lt.Algorithm, _ int32) (int32, error) {
	return f.find(a).Scheme, f.call()
}

// find returns the algorithm of Found with a's number, or one without properties.
func (f *Library) find(a *lt.Algorithm) Algorithm {
	for _, x := range f.Found {
		if x.Number == a[0] {
			return x
		}
	}
	return Algorithm{Number: a[0]}
}

// Matmul enqueues the fills of the algorithm.
func (f *Library) Matmul(m *lt.MatmulArgs) error {
	if *m.Alpha != 1 || *m.Beta != 0 || m.C != m.D || m.CLayout != m.DLayout {
		return errors.New("not a plain GEMM: alpha is not 1, beta is not 0, or C is not D")
	}
	s, err := f.dev.WrapStream(m.Stream)
	if err != nil {
		return err
	}
	y := f.wrapped[m.D]
	if y == nil {
		if y, err = f.dev.WrapMemory(uint64(m.D), 1); err != nil {
			return err
		}
		f.wrapped[m.D] = y
	}
	a := f.find(m.Algo)
	f.Ran = append(f.Ran, a.Number)
	for range max(1, a.Fills) {
		if err := s.Fill(device.Buffer{Memory: y, Size: 1}, byte(a.Number)); err != nil {
			return errors.Join(err, s.Close())
		}
	}
	return s.Close()
}
