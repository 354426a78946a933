package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/pieces"
	"pwc/runtime/device"
)

// forGPU calls build, which builds a model for the target. Where that fails because
// nothing can be compiled for this machine's GPU, build is called again for each target
// of earlier GPUs that the cache has models for, the latest first, until it succeeds:
// the GPU runs their machine code, or its driver compiles their PTX, which is counted
// and said. Frozen that is not done: the error says that it could be.
func (a *app) forGPU(ctx context.Context, t *target, f *buildFlags, build func() error) error {
	err := build()
	if err == nil || t.dev == nil || t.aim == nil || f.uncached {
		return err
	}
	own := t.name
	if f.frozen {
		return a.adviseEarlier(ctx, t, err)
	}
	if t.cuda.Err() == nil || own != t.dev.Info().Target {
		return err
	}
	for _, name := range a.earlierTargets(ctx, t) {
		if cerr := t.closeOps(); cerr != nil {
			return errors.Join(err, cerr)
		}
		if t.retarget(f, name) == nil && build() == nil {
			a.logger().Warn("pwc cannot compile for this machine's GPU, so it runs the cached programs for an earlier one", "gpu", own, "target", name, "reason", err)
			return nil
		}
	}
	return errors.Join(err, t.closeOps(), t.retarget(f, own))
}

// retarget makes the target another one, with a compiler of the flags.
func (t *target) retarget(f *buildFlags, name string) error {
	err := t.aim(name)
	t.configure(f)
	return err
}

// earlierTargets returns the targets other than the GPU's own that the cache has models for and the
// GPU runs, the latest first.
func (a *app) earlierTargets(ctx context.Context, t *target) []string {
	dev, ok := t.dev.(device.TargetChecker)
	if !ok {
		return nil
	}
	store, err := a.openStore()
	if err != nil || store == nil {
		return nil
	}
	list, err := store.Modules(ctx)
	if err != nil {
		return nil // the cache is no help; what failed before is what is said
	}
	var out []string
	for _, m := range list {
		if m.Target == t.name || slices.Contains(out, m.Target) {
			continue
		}
		if _, err := dev.Takes(m.Target); err == nil {
			out = append(out, m.Target)
		}
	}
	slices.SortFunc(out, func(x, y string) int { return cmp.Or(cmp.Compare(len(y), len(x)), strings.Compare(y, x)) })
	return out
}

// adviseEarlier says of a frozen build's miss which target would do.
func (a *app) adviseEarlier(ctx context.Context, t *target, err error) error {
	if !errors.As(err, new(*pieces.MissError)) {
		return err
	}
	names := a.earlierTargets(ctx, t)
	if len(names) == 0 {
		return err
	}
	return fmt.Errorf("%w\nthe cache has models for %s; --target %s runs them on this GPU too, but where its driver has to compile their PTX --frozen refuses that", err, strings.Join(names, ", "), names[0])
}
