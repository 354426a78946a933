package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/cache"
	"pwc/collective"
	collectivehost "pwc/collective/host"
	"pwc/compile"
	compilehost "pwc/compile/host"
	"pwc/inspect"
	"pwc/pieces"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// platform is a kind of device that this program supports.
type platform struct {
	kind  string   // the part of a target before the colon
	forms []string // descriptions of its targets, for errors

	complete []string // targets that a shell completes

	// open opens a target on the device of that number. If run is false and the target
	// names an architecture, it is opened without a device. The error is a *usageError if
	// there is no such target.
	open func(ordinal int, f *buildFlags, run bool) (*target, error)
}

// platforms returns the platforms of --target.
func platforms() []platform {
	return append([]platform{{kind: host.Target, forms: []string{host.Target}, complete: []string{host.Target}, open: openHost}}, gpus()...)
}

// target is a compile target, with the device that runs its code.
type target struct {
	name    string        // "host", "cuda:sm_90"
	dev     device.Device // nil: code is compiled and not run
	backend compile.Backend
	cuda    cudaCompiler // nil: the target is not a GPU
	driver  string       // the driver's CUDA version; "": no driver is known, or the target is not a GPU

	watch func(seen func(source string, cubin []byte)) // makes the compiler call seen after each source; nil: not a GPU

	// aim changes t, this target or a copy, to another target that the device runs. The caller
	// must call configure afterwards. It returns an error if the device does not run the target.
	// nil: the device has only one target.
	aim func(t *target, name string) error

	// join adds the routines of collectives to the device, for calls of up to most bytes. All devices
	// of a group must call it concurrently. nil: there is no device.
	join func(ctx context.Context, most int64, groups ...*collective.Group) error

	// timeCollectives measures all_reduces. All devices of a group must call it concurrently. nil: there is only one
	// algorithm.
	timeCollectives func(ctx context.Context, g *collective.Group) (tuneCollectives, error)

	// collectives returns the number of collectives that the device enqueued or captured. nil: the device does not
	// count them.
	collectives func() *collectiveCounts

	meter func(s device.Stream) (meter, error)

	tune    tuner                      // nil: the device has nothing to tune
	untuned error                      // why a GPU has nothing to tune: the library was not found
	records func(records *cache.Store) // makes the device use the store's tuning records; nil: the device has nothing to tune

	compiler pieces.Compiler    // the backend with the passes of the flags
	events   func(pieces.Event) // gets the events of the build; may be nil
	bar      *progress          // of the last backend
	trace    *traceFile         // nil: no --trace-out
	ops      []device.Op        // open ops, for close
	kernels  *kernels           // of extern ops and collectives
}

// collectiveCounts counts the collectives of one device by implementation. A captured collective counts once.
type collectiveCounts struct {
	Peer  int64 `json:"peer"`  // kernels over peer memory
	Fused int64 `json:"fused"` // all_reduces that are part of other kernels
	NCCL  int64 `json:"nccl"`
}

// cudaCompiler compiles kernels that are not generated from the IR, such as those of extern ops.
type cudaCompiler interface {
	compileKernel(ctx context.Context, k Kernel, arch string) (cubin, ptx []byte, err error)
	Err() error // why it cannot compile at all; nil if it can, or has not tried yet
}

// openTarget opens the target of the flags. It opens no device if run is false and the target names an
// architecture, as cuda:sm_90 does.
func openTarget(f *buildFlags, run bool) (*target, error) {
	return openTargetOn(f.process.device, f, run)
}

// openTargetOn is openTarget for device number ordinal of the target's kind.
func openTargetOn(ordinal int, f *buildFlags, run bool) (*target, error) {
	for _, name := range f.disable {
		if err := canDisable(name); err != nil {
			return nil, err
		}
	}
	if f.dump != "" && f.frozen {
		return nil, usagef("--dump-passes and --frozen exclude each other: dumping compiles pieces, which --frozen refuses")
	}
	kind, _, _ := strings.Cut(f.target, ":")
	all := platforms()
	i := slices.IndexFunc(all, func(p platform) bool { return p.kind == kind })
	if i < 0 {
		return nil, usagef("--target %s is not known; %s", f.target, targetForms(all))
	}
	t, err := all[i].open(ordinal, f, run)
	var wrong *usageError
	switch {
	case errors.As(err, &wrong):
		return nil, usagef("--target %s: %w; %s", f.target, wrong.err, targetForms(all))
	case err != nil:
		return nil, fmt.Errorf("--target %s: %w", f.target, err)
	}
	t.configure(f)
	if f.traceOut != "" {
		t.trace = &traceFile{f.traceOut, inspect.NewTracer()}
	}
	return t, nil
}

// configure sets the compiler with the flags, and removes the kernels of an earlier target.
func (t *target) configure(f *buildFlags) {
	t.kernels = &kernels{code: map[[sha256.Size]byte]*program.Program{}}
	pipeline := pieces.Pipeline{Backend: t.backend, Options: f.options()}
	t.compiler = pipeline
	if f.dump != "" {
		t.compiler = &dumper{pipeline, f.dump}
	}
}

// targetForms lists the values of --target, for errors.
func targetForms(all []platform) string {
	var forms []string
	for _, p := range all {
		forms = append(forms, p.forms...)
	}
	return "this pwc compiles for " + strings.Join(forms, ", ")
}

func openHost(_ int, f *buildFlags, _ bool) (*target, error) {
	if f.target != host.Target {
		return nil, usagef("target host has no architectures")
	}
	dev := host.Open(host.Options{Workers: f.threads})
	return &target{name: host.Target, dev: dev, backend: compilehost.New(), meter: newHostMeter,
		join: func(_ context.Context, _ int64, groups ...*collective.Group) error {
			return collectivehost.Add(dev, groups...)
		}}, nil
}

// closeOps closes the open ops.
func (t *target) closeOps() error {
	var errs []error
	for _, op := range t.ops {
		if c, ok := op.(interface{ Close() error }); ok {
			errs = append(errs, c.Close())
		}
	}
	t.ops = nil
	return errors.Join(errs...)
}

// close closes the ops and the device.
func (t *target) close() error {
	errs := []error{t.closeOps(), t.trace.write()}
	if t.dev != nil {
		errs = append(errs, t.dev.Close())
	}
	return errors.Join(errs...)
}

// explain replaces the errors of all compilations by the compiler's error, if it cannot compile at all.
func (t *target) explain(err error) error {
	if err != nil && t.cuda != nil && t.cuda.Err() != nil {
		return fmt.Errorf("compiling for %s: %w", t.name, t.cuda.Err())
	}
	return err
}

// arch returns "sm_90" of "cuda:sm_90".
func (t *target) arch() string {
	_, arch, _ := strings.Cut(t.name, ":")
	return arch
}
