package cuda

import (
	"pwc/attention"
	"pwc/runtime/device"
)

var _ device.Warmer = (*Op)(nil)

// Warm runs the kernels of a call on a step without rows: its result becomes zero
// and the cache is not touched.
func (o *Op) Warm(c *device.OpCall) error {
	call := *c
	call.Meta, call.Rows = attention.NewBatch(0, 0, 0), 0
	return o.enqueue(&call, true)
}
