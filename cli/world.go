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

// world is the devices that run a module together. The first is the target that it was joined
// for, which is its owner's.
type world struct {
	peers  []*target
	groups [][]*collective.Group // by device of this process, those that it is in

	process *collective.Group // of all processes, each with one rank; nil: one process has all ranks
}

// openTargetFor opens a target that m is compiled for, not run, and joins it to m's groups
// where it has a device. The caller calls closeAll.
func openTargetFor(ctx context.Context, m *ir.Module, f *buildFlags) (t *target, closeAll func() error, err error) {
	t, _, closeAll, err = openWorld(ctx, m, f, false)
	return t, closeAll, err
}

// openWorld opens a target, which has a device if m is run, and joins it to m's groups. The caller
// calls closeAll.
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

// joinWorld opens the other devices that a module needs, the next ones of t's kind, and joins
// all of them to the module's groups. A module for one device needs none, and neither does a
// target without a device, for which code is made and not run.
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
			return nil, err
		}
	}
	for d := 1; d < n; d++ {
		peer, err := openTargetOn(d, f, true)
		if err != nil {
			return nil, fmt.Errorf("device %d of %d: %w", d, n, err)
		}
		peer.kernels = t.kernels // which are compiled once for all devices
		w.peers = append(w.peers, peer)
	}
	return w, w.join(ctx, t, largestCollective(m))
}

// join has all devices join their groups at the same time.
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

// largestCollective returns the most bytes of a rank's part that a collective of a module may have; the largest number
// where sizes have no bounds.
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

// joinGroup makes a group of the module in this process: one for each choice of ranks in the others.
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

// fail ends the groups of a device that cannot go on.
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

// devicesText names the first of n devices that run a module together, with their number.
func devicesText(n int, name string) string {
	if n == 1 {
		return name
	}
	return fmt.Sprintf("%d devices (%s)", n, name)
}

// text says how many devices there are, behind the name of the first.
func (w *world) text() string {
	if w.process != nil {
		return fmt.Sprintf(", rank %d of %d processes; each takes", w.process.Rank(), w.process.Size())
	}
	if len(w.peers) == 0 {
		return ""
	}
	return fmt.Sprintf(", with %d more; each takes", len(w.peers))
}

// close closes the peers, and leaves the groups. What uses them is closed before.
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

// peers returns the other devices with their ops, for a runner.
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

// onOneDevice refuses a module that several devices run together, for commands that run one.
func onOneDevice(m *ir.Module) error {
	if n := m.World(); n > 1 {
		return usagef("the module is for %d devices, which pwc generate, serve, bench and run take; this command, and --mode trees, take one for one device", n)
	}
	return nil
}

// openForOne is open for a command that runs a module on one device.
func (a *app) openForOne(path string, f *modelFlags) (*model, error) {
	m, err := a.open(path, f)
	if err == nil {
		err = onOneDevice(m.module)
	}
	return m, err
}
