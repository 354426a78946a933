package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"pwc/collective"
	"pwc/ir"
	"pwc/runner"
	"pwc/safetensors"
)

// world has the devices that run a module together. The first device is the target of the caller
// of joinWorld, and is not in peers.
type world struct {
	peers  []*target
	groups [][]*collective.Group // by device of this process: the groups of the device

	process *collective.Group // the group of all processes; nil: one process has all ranks
}

// openTargetFor opens a target to compile m for, without running m. If it has a device, the device
// joins m's groups. The caller calls closeAll.
func openTargetFor(ctx context.Context, m *ir.Module, f *buildFlags) (t *target, closeAll func() error, err error) {
	t, _, closeAll, err = openWorld(ctx, m, f, false)
	return t, closeAll, err
}

// openWorld opens a target as openTarget does. If it has a device, the device joins m's groups with the other
// devices of m. The caller calls closeAll.
func openWorld(ctx context.Context, m *ir.Module, f *buildFlags, run bool) (t *target, w *world, closeAll func() error, err error) {
	if t, err = openTarget(f, run); err != nil {
		return nil, nil, nil, err
	}
	if w, err = t.joinWorld(ctx, m, f); err != nil {
		return nil, nil, nil, errors.Join(err, t.close())
	}
	return t, w, func() error { return errors.Join(w.close(), t.close()) }, nil
}

// openOn opens the weights of a model, and the devices that run it. The caller calls closeAll.
func (m *model) openOn(ctx context.Context, f *modelFlags, bf *buildFlags) (weights safetensors.Source, t *target, w *world, closeAll func() error, err error) {
	weights, closeWeights, err := m.source(f)
	if err != nil {
		return nil, nil, nil, nil, err
	}
	t, w, closeWorld, err := openWorld(ctx, m.module, bf, true)
	if err != nil {
		return nil, nil, nil, nil, errors.Join(err, closeWeights())
	}
	return weights, t, w, func() error { return errors.Join(closeWorld(), closeWeights()) }, nil
}

// joinWorld opens the other devices that a module needs, devices 1 and up of t's kind, and joins
// all devices to the module's groups. It opens no devices if the module is for one device, if t has
// no device, or if each rank has its own process.
func (t *target) joinWorld(ctx context.Context, m *ir.Module, f *buildFlags) (w *world, err error) {
	w = &world{}
	n := m.World()
	defer func() {
		if err != nil {
			w.fail(0, err)
			err = errors.Join(err, w.close())
		}
	}()
	if f.process.apart() && t.dev != nil {
		return w, w.joinProcess(ctx, m, t, &f.process)
	}
	if len(m.Groups) == 0 || t.dev == nil {
		return w, nil
	}
	w.groups = make([][]*collective.Group, n)
	for _, g := range m.Groups {
		if err := w.joinGroup(m, g); err != nil {
			return w, err
		}
	}
	for d := 1; d < n; d++ {
		peer, err := openTargetOn(d, f, true)
		if err != nil {
			return w, fmt.Errorf("device %d of %d: %w", d, n, err)
		}
		peer.kernels = t.kernels // compiled once for all devices
		w.peers = append(w.peers, peer)
	}
	return w, w.join(ctx, t, largestCollective(m))
}

// join joins all devices to their groups concurrently.
func (w *world) join(ctx context.Context, first *target, most int64) error {
	errs := make([]error, len(w.groups))
	var all sync.WaitGroup
	for d, t := range append([]*target{first}, w.peers...) {
		all.Go(func() {
			if errs[d] = t.join(ctx, most, w.groups[d]...); errs[d] != nil {
				w.fail(d, errs[d])
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// largestCollective returns the most bytes of an operand or result in a module's collectives. It returns the largest
// int64 if a size has no bound.
func largestCollective(m *ir.Module) int64 {
	most := int64(0)
	for _, f := range m.Funcs {
		for _, n := range f.Nodes {
			if n.Op.Class != ir.Collective {
				continue
			}
			for _, v := range []ir.Value{n.Args[0], n.Results[0]} {
				t := f.Type(v)
				size, ok := t.Elements().Bounds(m.Bounds)
				if !ok || size.Hi > math.MaxInt64/8 {
					return math.MaxInt64
				}
				most = max(most, t.DType.Bytes(size.Hi))
			}
		}
	}
	return most
}

// joinGroup makes the collective.Groups of one of the module's groups, for a process with all ranks. There is one for
// each combination of ranks in the module's other groups.
func (w *world) joinGroup(m *ir.Module, g *ir.Group) error {
	made := map[string][]*collective.Group{} // by the ranks in the other groups
	for d := range w.groups {
		key := ""
		for _, other := range m.Groups {
			if other != g {
				key += fmt.Sprintf("%d.", m.GroupRank(other, d))
			}
		}
		if made[key] == nil {
			ranks, err := collective.Local(g.Name, int(g.Size), collective.Options{})
			if err != nil {
				return err
			}
			made[key] = ranks
		}
		w.groups[d] = append(w.groups[d], made[key][m.GroupRank(g, d)])
	}
	return nil
}

// fail ends the groups of a device that failed, so that other ranks do not wait for it.
func (w *world) fail(device int, cause error) {
	if w.process != nil {
		device = 0
		w.process.Fail(cause)
	}
	if device < len(w.groups) {
		for _, g := range w.groups[device] {
			g.Fail(cause)
		}
	}
}

// devicesText returns the name of a device, and the number of devices if there are several.
func devicesText(n int, name string) string {
	if n == 1 {
		return name
	}
	return fmt.Sprintf("%d devices (%s)", n, name)
}

// text returns the number of further devices, or the rank and the number of processes, to print after the first device's
// name.
func (w *world) text() string {
	if w.process != nil {
		return fmt.Sprintf(", rank %d of %d processes; each takes", w.process.Rank(), w.process.Size())
	}
	if len(w.peers) == 0 {
		return ""
	}
	return fmt.Sprintf(", with %d more; each takes", len(w.peers))
}

// close closes the peers and leaves the groups. Backends must be closed before.
func (w *world) close() error {
	errs := []error{w.leave()}
	for _, t := range w.peers {
		errs = append(errs, t.close())
	}
	for _, groups := range w.groups {
		for _, g := range groups {
			errs = append(errs, g.Close())
		}
	}
	return errors.Join(errs...)
}

// peers returns the other devices and their ops for a runner.
func (a *app) peers(m *ir.Module, w *world, steps Site) ([]runner.Peer, error) {
	var out []runner.Peer
	for _, t := range w.peers {
		ops, err := a.openOps(m, t, steps)
		if err != nil {
			return nil, err
		}
		out = append(out, runner.Peer{Device: t.dev, Ops: ops})
	}
	return out, nil
}

// onOneDevice returns a usage error if a module is for several devices.
func onOneDevice(m *ir.Module) error {
	if n := m.World(); n > 1 {
		return usagef("the module is for %d devices, and this command takes modules for one: pwc generate, serve, tune, bench without --train, bench-serve, and run without --mode trees take modules for several", n)
	}
	return nil
}

// openForOne is open for a command that takes only modules for one device.
func (a *app) openForOne(path string, f *modelFlags) (*model, error) {
	m, err := a.open(path, f)
	if err == nil {
		err = onOneDevice(m.module)
	}
	return m, err
}
