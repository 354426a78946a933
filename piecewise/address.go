package piecewise

import (
	"pwc/runtime/device"
)

// fixedMemory is memory whose address graphs contain.
type fixedMemory struct {
	storage int32
	buffer  device.Buffer
}

// checkAddresses compares, before a replay, the addresses that the graphs contain with the current
// ones (C7): those of inputs each time, those of weights and states only if residents.assigned has
// changed since the last comparison. There are hundreds of weights and states, and their addresses are
// in no cache of the processor when a step begins.
func (fn *instance) checkAddresses(c *captured) error {
	if err := fn.checkEach(c, c.inputs); err != nil || c.agreed == fn.b.residents.assigned {
		return err
	}
	if err := fn.checkEach(c, c.fixed); err != nil {
		return err
	}
	c.agreed = fn.b.residents.assigned
	return nil
}

func (fn *instance) checkEach(c *captured, list []fixedMemory) error {
	for i := range list {
		f := &list[i]
		s := &fn.storages[f.storage]
		if now := fn.fixed(s); now.Memory != f.buffer.Memory || now.Offset != f.buffer.Offset {
			return &AddressError{Func: fn.ir.Name, Name: fn.storageName(s), Size: c.size}
		}
	}
	return nil
}

func (fn *function) storageName(s *storage) string {
	switch s.kind {
	case inWeight:
		return "weight @" + fn.plan.module.Weights[s.index].Name
	case inState:
		return "state @" + fn.plan.module.States[s.index].Name
	}
	return "input %" + fn.ir.Values[s.base].Name
}
