package cli

import (
	"context"
	"errors"
	"fmt"

	"pwc/ir"
	"pwc/piecewise"
	"pwc/safetensors"
)

// makePeers makes the backends of the other devices, from the same artifacts. Only the first device
// is measured.
func (b *bench) makePeers(ctx context.Context, m *ir.Module, o piecewise.Options, steps Site) error {
	for i, t := range b.world.peers {
		p := &bench{benchRun: benchRun{app: b.app, target: t, build: b.build, world: b.world}, flags: b.flags, mode: b.mode, module: m, blocks: b.blocks, block: b.block, context: b.context}
		if err := t.closeOps(); err != nil {
			return err
		}
		ops, err := b.app.openOps(m, t, steps)
		if err != nil {
			return err
		}
		o.Device, o.Ops, o.Rank, o.Observe = t.dev, ops, i+1, piecewise.ObserveOptions{}
		if p.backend, err = piecewise.New(ctx, m, o); err != nil {
			return fmt.Errorf("rank %d: %w", o.Rank, err)
		}
		b.peers = append(b.peers, p)
	}
	return nil
}

// closeBackends closes the backends of all devices.
func (b *bench) closeBackends() error {
	errs := []error{b.backend.Close()}
	for _, p := range b.peers {
		errs = append(errs, p.backend.Close())
	}
	b.peers = nil
	return errors.Join(errs...)
}

// together calls own for the first device and other for each other device, concurrently. If a call
// fails, the groups of its device end, so that no other device waits for it.
func (b *bench) together(own func() error, other func(p *bench) error) error {
	return b.world.together(len(b.peers)+1, func(rank int) error {
		if rank == 0 {
			return own()
		}
		return other(b.peers[rank-1])
	})
}

// load loads the weights of all devices.
func (b *bench) load(ctx context.Context, weights safetensors.Source) error {
	load := func(p *bench) error { return p.backend.Load(ctx, weights, nil) }
	return b.together(func() error { return load(b) }, load)
}

// step issues a step on all devices and returns the results of the first.
func (b *bench) step(ctx context.Context, shape stepShape, whole bool) (r piecewise.Results, err error) {
	err = b.together(func() (err error) { r, err = b.stepOnOne(ctx, shape, whole); return err }, func(p *bench) error {
		_, err := p.stepOnOne(ctx, shape, whole)
		return err
	})
	return r, err
}
