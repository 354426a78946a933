//go:build !nocuda

package cli

import (
	"context"

	"pwc/attention"
	attentioncuda "pwc/attention/cuda"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

func openAttentionOnGPU(s *Site) (device.Op, error) {
	d, ok := s.Device.(*cuda.Device)
	if !ok {
		return nil, noImplementation(attention.Name, s)
	}
	return attentioncuda.New(d, attentioncuda.Options{MaxRows: s.Rows, MaxRequests: s.Requests, MaxBlocks: s.Blocks,
		Code: func(ctx context.Context, v attentioncuda.Variant) ([]byte, error) {
			return s.Code(ctx, Kernel{Name: v.String(), Source: v.Source()})
		}})
}
