package cli

import (
	"fmt"
	"slices"

	"pwc/attention"
	attentionhost "pwc/attention/host"
	"pwc/attention/reference"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/runtime/device"
	"pwc/runtime/host"
	"pwc/silly"
)

// builtin returns the ops that every command line knows.
func builtin() []Op {
	return []Op{
		{
			Name: attention.Name,
			Open: func(dev device.Device) (device.Op, error) {
				return openOnHost(attention.Name, dev, func(d *host.Device) device.Op { return attentionhost.New(d) })
			},
			Reference: reference.Extern,
		},
		{
			Name: silly.Name,
			Open: func(dev device.Device) (device.Op, error) {
				return openOnHost(silly.Name, dev, func(d *host.Device) device.Op { return silly.New(d) })
			},
			Reference: func(func() *attention.Batch) interp.Extern { return silly.Reference },
		},
	}
}

func openOnHost(name string, dev device.Device, open func(*host.Device) device.Op) (device.Op, error) {
	d, ok := dev.(*host.Device)
	if !ok {
		return nil, fmt.Errorf("%s has no implementation for %s", name, dev.Info().Target)
	}
	return open(d), nil
}

// op returns the op of a name; the caller's own come before the built-in ones.
func (a *app) op(name string) (Op, bool) {
	for _, list := range [][]Op{a.ops, builtin()} {
		if i := slices.IndexFunc(list, func(o Op) bool { return o.Name == name }); i >= 0 {
			return list[i], true
		}
	}
	return Op{}, false
}

// openOps returns implementations of the extern ops that a module calls.
func (a *app) openOps(m *ir.Module, dev device.Device) ([]device.Op, error) {
	var out []device.Op
	for _, e := range m.Called() {
		o, ok := a.op(e.Name)
		if !ok {
			return nil, &ir.Error{Source: m.Source, Pos: e.Pos, Msg: fmt.Sprintf("op %q is not known to this pwc: build one that passes it to cli.Main", e.Name)}
		}
		impl, err := o.Open(dev)
		if err != nil {
			return nil, err
		}
		out = append(out, impl)
	}
	return out, nil
}
