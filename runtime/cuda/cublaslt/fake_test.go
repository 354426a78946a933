package cublaslt

import (
	"errors"
	"fmt"
	"math/bits"
	"testing"

	"pwc/runtime/cuda"
	"pwc/runtime/cuda/fake"
	"pwc/runtime/device"
)

// fakeLib is the library without a GPU. Its product fills y with the number of the
// algorithm, which is the first word of its bytes.
type fakeLib struct {
	dev  *cuda.Device
	live map[uintptr]string // what was made and not destroyed
	next uintptr
	log  []string

	wrapped map[uintptr]device.Memory // results, by address

	found   []heuristicResult
	fail    error            // of heuristics
	schemes map[uint64]int32 // reduction schemes, by algorithm
	left    int              // calls until one fails; below 0: none does
}

var errFake = errors.New("no luck")

func (f *fakeLib) call() error {
	f.left--
	if f.left == -1 {
		return errFake
	}
	return nil
}

func (f *fakeLib) make(what string) (uintptr, error) {
	if err := f.call(); err != nil {
		return 0, err
	}
	f.next++
	f.live[f.next] = what
	return f.next, nil
}

func (f *fakeLib) destroy(p uintptr) error {
	if f.live[p] == "" {
		return fmt.Errorf("%d destroyed twice", p)
	}
	delete(f.live, p)
	return nil
}

func (f *fakeLib) Version() int { return 130100 }

func (f *fakeLib) Create() (handle, error) {
	p, err := f.make("handle")
	return handle(p), err
}
func (f *fakeLib) Destroy(h handle) error { return f.destroy(uintptr(h)) }

func (f *fakeLib) NewDesc(compute, transA int32) (matmulDesc, error) {
	f.log = append(f.log, fmt.Sprintf("desc %d %d", compute, transA))
	p, err := f.make("desc")
	return matmulDesc(p), err
}

func (f *fakeLib) NewLayout(dataType int32, rows, cols, pitch, batch, stride int64) (layout, error) {
	f.log = append(f.log, fmt.Sprintf("layout %d %dx%d/%d %d/%d", dataType, rows, cols, pitch, batch, stride))
	p, err := f.make("layout")
	return layout(p), err
}

func (f *fakeLib) NewPreference(workspace int64, a, b, d int) (preference, error) {
	f.log = append(f.log, fmt.Sprintf("preference %d %d %d %d", workspace, a, b, d))
	p, err := f.make("preference")
	return preference(p), err
}

func (f *fakeLib) DestroyDesc(d matmulDesc) error       { return f.destroy(uintptr(d)) }
func (f *fakeLib) DestroyLayout(y layout) error         { return f.destroy(uintptr(y)) }
func (f *fakeLib) DestroyPreference(p preference) error { return f.destroy(uintptr(p)) }

func (f *fakeLib) Heuristic(h handle, d matmulDesc, o operands, p preference, most int) ([]heuristicResult, error) {
	if err := f.call(); err != nil {
		return nil, err
	}
	return f.found, f.fail
}

func (f *fakeLib) Check(h handle, d matmulDesc, o operands, a *algorithm) (int64, error) {
	if a[0] == 99 {
		return 0, &StatusError{"MatmulAlgoCheck", statusNotSupported}
	}
	return int64(a[1]), f.call()
}

func (f *fakeLib) Config(a *algorithm, attribute int32) (int32, error) {
	return f.schemes[a[0]], f.call()
}

func (f *fakeLib) Matmul(m *matmulArgs) error {
	if *m.alpha != 1 || *m.beta != 0 || m.c != m.d || m.cLayout != m.dLayout {
		return errors.New("not a plain product")
	}
	s, err := f.dev.WrapStream(m.stream)
	if err != nil {
		return err
	}
	y := f.wrapped[m.d]
	if y == nil {
		if y, err = f.dev.WrapMemory(uint64(m.d), 1); err != nil {
			return err
		}
		f.wrapped[m.d] = y
	}
	return errors.Join(s.Fill(device.Buffer{Memory: y, Size: 1}, byte(m.algo[0])), s.Close())
}

// recorded is what tuning found.
type recorded map[string]Choice

func (r recorded) Lookup(k Key) (Choice, bool) {
	if k.GPU == "" || k.Version != 130100 {
		return Choice{}, false
	}
	c, ok := r[k.Product]
	return c, ok
}

// result is a candidate of the heuristic.
func result(number, workspace uint64) heuristicResult {
	return heuristicResult{algo: algorithm{number, workspace}, workspace: workspace}
}

// newFakeLib opens the library on a fake device, with some candidates.
func newFakeLib(t testing.TB, o Options, found ...heuristicResult) (*gpu, *fakeLib) {
	t.Helper()
	if bits.UintSize < 64 {
		t.Skip("addresses of a GPU take 64 bits")
	}
	drv := fake.New(fake.Options{})
	dev, err := cuda.Open(cuda.Options{Driver: drv})
	must(t, err)
	f := &fakeLib{dev: dev, live: map[uintptr]string{}, wrapped: map[uintptr]device.Memory{}, found: found, left: -1}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if len(f.live) > 0 || len(drv.Leaks()) > 0 || len(drv.Misuse()) > 0 {
			t.Errorf("left behind: %v %q %q", f.live, drv.Leaks(), drv.Misuse())
		}
	})
	l := newLibrary(dev, o)
	must(t, l.start(f))
	must(t, l.join())
	s, err := dev.NewStream()
	must(t, err)
	t.Cleanup(func() { s.Close() })
	f.log = nil
	g := &gpu{t, dev, l, s.(*cuda.Stream)}
	must(t, g.s.UseWorkspace(g.alloc(l.workspace)))
	return g, f
}
