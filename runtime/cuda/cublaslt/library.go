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

// try opens the library at each place in turn, until ready returns no error.
func (o Options) try(ready func(*lt.Library) error) (*lt.Library, error) {
	missing := &NotFoundError{Library: libraryName, Advice: advice}
	for _, p := range (dl.Toolkit{Path: o.Path, Names: Names(), Dirs: o.Dirs}).Paths() {
		opened, err := dl.Open(libraryName, advice, []string{p})
		var none *NotFoundError
		if errors.As(err, &none) {
			missing.Attempts = append(missing.Attempts, none.Attempts...)
			continue
		}
		var l *lt.Library
		if err == nil {
			l, err = lt.Open(opened)
		}
		if err == nil {
			err = ready(l)
		}
		if err == nil {
			return l, nil
		}
		missing.Attempts = append(missing.Attempts, dl.Attempt{Path: p, Reason: err.Error()})
	}
	return nil, fmt.Errorf("cublaslt: %w", missing)
}

// Find returns the path of the first library that can be opened, and the version that the
// library reports (130100 for 13.1). It needs no GPU. If there is no library the error is a
// *NotFoundError.
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
	chosen map[problem]*plan // plans by a record or [Library.Choose], for every value of problem.from
	made   map[string]Choice // choices of [Library.Choose], by Key.Product
	old    []*plan           // plans that Choose replaced; calls may hold them
	stats  Stats
}

// Stats count the GEMMs that were planned, each once, by the result.
type Stats struct {
	Tuned    int64 // a record named the algorithm
	Own      int64 // a record says that the program's own kernels are faster
	Untuned  int64 // there is no record: the heuristic's first choice
	Stale    int64 // of Untuned: the record's algorithm cannot be used
	Declined int64 // the library has no algorithm
}

// Open opens the library and adds its routine to the device, until the device is closed.
// If the driver cannot run a version, Open tries older ones. If there is no version that
// runs, the error is a *NotFoundError.
func Open(dev *cuda.Device, o Options) (*Library, error) {
	out := newLibrary(dev, o)
	if o.API != nil {
		if err := out.start(o.API); err != nil {
			return nil, err
		}
		return out, out.join()
	}
	l, err := o.try(func(l *lt.Library) error { return out.start(l) })
	if err != nil {
		return nil, err
	}
	out.path = l.Path
	return out, out.join()
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

// join gives the routines to the device, which closes the library.
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

// Path returns what was opened; a bare name was found by the loader's own rules.
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
