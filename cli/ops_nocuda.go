//go:build nocuda

package cli

import (
	"pwc/attention"
	"pwc/runtime/device"
)

func openAttentionOnGPU(s *Site) (device.Op, error) { return nil, noImplementation(attention.Name, s) }

// attentionKernels returns none: no target of this program has kernels.
func attentionKernels(string, [][]device.Tensor) ([]Kernel, error) { return nil, nil }
