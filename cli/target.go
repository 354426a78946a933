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

// platform is a kind of device that this program was built for.
type platform struct {
	kind  string   // what stands before the colon
	forms []string // of its targets, as --target takes them

	complete []string // those that a shell completes

	// open opens a target, on the device of that number. Where nothing will run, one that
	// names an architecture is opened without its device. A *usageError says that there is no
	// such target.
	open func(ordinal int, f *buildFlags, run bool) (*target, error)
}

// platforms returns what --target can be.
func platforms() []platform {
	return append([]platform{{kind: host.Target, forms: []string{host.Target}, complete: []string{host.Target}, open: openHost}}, gpus()...)
}

// target is what code is made for, and the device that it runs on.
type target struct {
	name    string        // "host", "cuda:sm_90"
	dev     device.Device // nil: this machine has none, and nothing will run
	backend compile.Backend
	cuda    cudaCompiler // nil: the target has no CUDA C

	watch func(seen func(source string, cubin []byte)) // nil, or has every source that is compiled from then on told

	// aim makes the target another one that the device runs; nil where there is no
	// choice. configure must follow. The error says that the device does not run it.
	aim func(name string) error

	// join gives the device the routines that meet the other ranks of groups, for calls of up to so many
	// bytes. All devices of a group join at the same time. nil: there is no device.
	join func(ctx context.Context, most int64, groups ...*collective.Group) error

	// timeCollectives measures all_reduces on all devices of a group at the same time. nil: there is nothing to choose.
	timeCollectives func(ctx context.Context, g *collective.Group) (tuneCollectives, error)

	// collectives counts the calls that join's routines enqueued or captured. nil: the device does not count.
	collectives func() *collectiveCounts

	meter func(s device.Stream) (meter, error)

	tune    tuner                      // nil: nothing is chosen on the device
	records func(records *cache.Store) // nil, or has the device follow what was measured before

	compiler pieces.Compiler    // the backend with the passes that the flags leave
	events   func(pieces.Event) // nil, or told of what is compiled and loaded
	bar      *progress          // of the last backend
	trace    *traceFile         // nil: none is written
	ops      []device.Op        // that were opened, for close
	kernels  *kernels           // of extern ops
}

// collectiveCounts are the collectives of one device by what computes them. One that was captured counts once.
type collectiveCounts struct {
	Peer  int64 `json:"peer"`  // kernels over peer memory
	Fused int64 `json:"fused"` // all_reduces that are part of other kernels
	NCCL  int64 `json:"nccl"`
}

// cudaCompiler compiles the kernels of ops.
type cudaCompiler interface {
	compileKernel(ctx context.Context, k Kernel, arch string) (cubin, ptx []byte, err error)
	Err() error // what keeps it from compiling anything, found when it was tried
}

// openTarget opens the target of the flags: with its device where something will
// run, or where only the device tells what the target is.
func openTarget(f *buildFlags, run bool) (*target, error) {
	return openTargetOn(f.process.device, f, run)
}

// openTargetOn is openTarget for the device of a number, of those of one kind.
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

// configure makes the compiler of the flags.
func (t *target) configure(f *buildFlags) {
	t.kernels = &kernels{code: map[[sha256.Size]byte]*program.Program{}}
	pipeline := pieces.Pipeline{Backend: t.backend, Options: f.options()}
	t.compiler = pipeline
	if f.dump != "" {
		t.compiler = &dumper{pipeline, f.dump}
	}
}

// targetForms says what --target can be.
func targetForms(all []platform) string {
	var forms []string
	for _, p := range all {
		forms = append(forms, p.forms...)
	}
	return "this pwc compiles for " + strings.Join(forms, ", ")
}

func openHost(_ int, f *buildFlags, _ bool) (*target, error) {
	if f.target != host.Target {
		return nil, usagef("the host has no architectures to choose from")
	}
	dev := host.Open(host.Options{Workers: f.threads})
	return &target{name: host.Target, dev: dev, backend: compilehost.New(), meter: newHostMeter,
		join: func(_ context.Context, _ int64, groups ...*collective.Group) error {
			return collectivehost.Add(dev, groups...)
		}}, nil
}

// closeOps closes the ops that were opened.
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

// explain gives the reason once where all compilations failed for the same one.
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
