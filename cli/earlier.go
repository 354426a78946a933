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

// forGPU calls build, which builds a model for the target. If build fails because nothing can be
// compiled for this machine's GPU, forGPU retries with the targets of earlier GPUs that the cache
// has models for, the latest first, until build succeeds. The GPU then runs their machine code, or
// its driver compiles their PTX; forGPU logs a warning, and the backend counts the driver's
// compilations. With --frozen there is no retry: the error names the targets to try.
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

// retarget changes the target to the one of a name, with a compiler of the flags.
func (t *target) retarget(f *buildFlags, name string) error {
	err := t.aim(t, name)
	t.configure(f)
	return err
}

// earlierTargets returns the targets that the cache has models for and that the GPU can run, except
// t's own, the latest first.
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
		return nil // the caller reports the error of its build instead
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

// adviseEarlier adds earlier targets to the error of a frozen build that missed the cache.
func (a *app) adviseEarlier(ctx context.Context, t *target, err error) error {
	if !errors.As(err, new(*pieces.MissError)) {
		return err
	}
	names := a.earlierTargets(ctx, t)
	if len(names) == 0 {
		return err
	}
	return fmt.Errorf("%w\nthe cache has models for %s: --target %s runs them on this GPU too, unless its driver must compile their PTX, which --frozen refuses", err, strings.Join(names, ", "), names[0])
}
