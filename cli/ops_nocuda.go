//go:build nocuda

package cli

import (
	"pwc/attention"
	"pwc/runtime/device"
	"pwc/silly"
)

func openAttentionOnGPU(s *Site) (device.Op, error) { return nil, noImplementation(attention.Name, s) }

func openSillyOnGPU(s *Site) (device.Op, error) { return nil, noImplementation(silly.Name, s) }

// attentionKernels returns nil: a program without CUDA has no target that needs kernels.
func attentionKernels(string, []device.OpCall) ([]Kernel, error) { return nil, nil }

// sillyKernels returns nil.
func sillyKernels(string, []device.OpCall) ([]Kernel, error) { return nil, nil }
