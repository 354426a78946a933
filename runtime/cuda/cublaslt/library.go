package cublaslt

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"pwc/internal/cuda/lt"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/dl"
	"pwc/runtime/device"
)

// Options give the place of the library and records of its algorithms.
type Options struct {
	// Path is the library's file; empty: the versions of Names, newest first, by the
	// loader's own rules, then in Dirs.
	Path string

	// Dirs are searched after the loader's own rules; nil: below $CUDA_HOME and
	// $CUDA_PATH, in /usr/local/cuda, /opt/cuda and the distribution's own folders.
	Dirs []string

	// Records are the results of tuning; nil: no results.
	Records Records

	// Workspace is the workspace of each stream for algorithms, in bytes; 0:
	// DefaultWorkspace.
	Workspace int64

	// API replaces libcublasLt in tests: see package internal/cuda/ltfake.
	API lt.API
}

// DefaultWorkspace is the size that NVIDIA recommends for GPUs of the Hopper generation
// (cuBLAS, "cublasSetWorkspace"), 32 MiB.
const DefaultWorkspace = 32 << 20

// Names returns the file names of the versions that are known to work, the newest
// first.
func Names() []string {
	return []string{"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"}
}

// StatusError is a call of the library that failed.
type StatusError = lt.StatusError

// NotFoundError says that no version of the library could be used, and lists
// every place where it was looked for.
type NotFoundError = dl.NotFoundError

const (
	libraryName = "cuBLASLt (libcublasLt)"
	advice      = "it comes with the CUDA toolkit; NVIDIA has it as libcublas, pip as nvidia-cublas"
)

// try opens the library at each place in turn, until ready returns no error, or one that ends the
// search (see first).
func (o Options) try(ready func(*lt.Library) error) (l *lt.Library, err error) {
	err = first((dl.Toolkit{Path: o.Path, Names: Names(), Dirs: o.Dirs}).Paths(), func(path string) error {
		opened, err := dl.Open(libraryName, advice, []string{path})
		if err != nil {
			return err
		}
		if l, err = lt.Open(opened); err != nil {
			return err
		}
		return ready(l)
	})
	return l, err
}

// first calls open for each path until open succeeds. It skips a file that cannot be opened, that lacks
// a function, or whose cublasLtCreate returns a status, as with a version that the driver cannot run.
// The result wraps a *NotFoundError if no path is left. Every other error ends the search, and so does
// CUBLAS_STATUS_ALLOC_FAILED: the memory is full, and another version does not help.
func first(paths []string, open func(path string) error) error {
	missing := &NotFoundError{Library: libraryName, Advice: advice}
	for _, p := range paths {
		err := open(p)
		var (
			none   *NotFoundError
			symbol *dl.SymbolError
			status *StatusError
		)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &none):
			missing.Attempts = append(missing.Attempts, none.Attempts...)
		case errors.As(err, &symbol), errors.As(err, &status) && status.Status != lt.StatusAllocFailed:
			missing.Attempts = append(missing.Attempts, dl.Attempt{Path: p, Reason: err.Error()})
		default:
			return fmt.Errorf("cublaslt: %s: %w", p, err)
		}
	}
	return fmt.Errorf("cublaslt: %w", missing)
}

// Find returns the path of the first library that can be opened, and the version that the
// library reports (130100 for 13.1). It needs no GPU. If there is no library the error wraps
// a *NotFoundError.
func Find(o Options) (path string, version int, err error) {
	l, err := o.try(func(*lt.Library) error { return nil })
	if err != nil {
		return "", 0, err
	}
	return l.Path, l.Version(), nil
}

// Library is cuBLASLt, ready for a device. Its methods may be called from any
// goroutine.
type Library struct {
	api       lt.API
	dev       *cuda.Device
	path      string
	handle    lt.Handle
	records   Records
	workspace int64

	mu     sync.Mutex
	plans  map[problem]*plan
	chosen map[problem]*plan // plans by a record or [Library.Choose]; the key's from is 0, since they apply to every from
	made   map[string]Choice // choices of [Library.Choose], by problem.String, which is Key.GEMM
	old    []*plan           // plans that Choose replaced; calls may still use them
	stats  Stats
}

// Stats count plans by their result. Calls with the same attributes and dtypes share a plan. A GEMM
// whose plan failed, or that has fewer rows than AttrFrom and no record, is not counted.
// Nor is the plan that [Library.Choose] makes for the offsets of its arguments.
type Stats struct {
	Tuned    int64 // a record or [Library.Choose] named the algorithm
	Own      int64 // by a record or [Library.Choose], the program's own kernels are faster
	Untuned  int64 // the heuristic's first choice: there is no record, or it is stale
	Stale    int64 // of Untuned: the record's algorithm cannot be used
	Declined int64 // the library has no algorithm
}

// Open opens the library and adds its routine to the device, until the device is closed. If the driver
// cannot run a version, Open tries older ones. If no version is left, the error wraps a *NotFoundError.
// After any other error a library was found, but, for example, the device is lost or closed, has such a
// routine already, or its memory is full.
func Open(dev *cuda.Device, o Options) (*Library, error) {
	out := newLibrary(dev, o)
	if o.API != nil {
		if err := out.start(o.API); err != nil {
			return nil, err
		}
	} else {
		l, err := o.try(func(l *lt.Library) error { return out.start(l) })
		if err != nil {
			return nil, err
		}
		out.path = l.Path
	}
	if err := out.join(); err != nil {
		return nil, errors.Join(err, dev.Do(out.close))
	}
	return out, nil
}

func newLibrary(dev *cuda.Device, o Options) *Library {
	if o.Workspace == 0 {
		o.Workspace = DefaultWorkspace
	}
	return &Library{dev: dev, records: o.Records, workspace: o.Workspace, plans: map[problem]*plan{}, chosen: map[problem]*plan{}, made: map[string]Choice{}}
}

// start makes the handle of cuBLASLt on the device.
func (l *Library) start(a lt.API) error {
	l.api = a
	return l.dev.Do(func() (err error) {
		l.handle, err = a.Create()
		return err
	})
}

// join gives the routines to the device, which then closes the library. After an error the caller
// closes the library.
func (l *Library) join() error {
	return l.dev.AddLibrary(device.OpSet{MatmulName: &Matmul{l}}, l.workspace, l.close)
}

// close destroys plans and the handle; the context is current.
func (l *Library) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, p := range slices.AppendSeq(slices.AppendSeq(l.old, maps.Values(l.plans)), maps.Values(l.chosen)) {
		errs = append(errs, p.close(l.api))
	}
	clear(l.plans)
	clear(l.chosen)
	l.old = nil
	return errors.Join(append(errs, l.api.Destroy(l.handle))...)
}

// Path returns the path of the library; for a bare name the loader's own rules found the file.
func (l *Library) Path() string { return l.path }

// Version returns the version that the library reports, 130100 for 13.1.
func (l *Library) Version() int { return l.api.Version() }

// UseRecords replaces the records for calls that are planned from now on; nil: no records.
func (l *Library) UseRecords(r Records) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = r
}

// Stats returns the counters.
func (l *Library) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}
