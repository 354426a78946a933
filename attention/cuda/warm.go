package cuda

import (
	"pwc/attention"
	"pwc/runtime/device"
)

var _ device.Warmer = (*Op)(nil)

// Warm launches the kernels of a call with a step without rows: they write zeros to the
// result and do not access the cache.
func (o *Op) Warm(c *device.OpCall) error {
	call := *c
	call.Meta, call.Rows = attention.NewBatch(0, 0, 0), 0
	return o.enqueue(&call, true)
}
