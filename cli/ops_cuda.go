//go:build !nocuda

package cli

import (
	"context"

	"pwc/attention"
	attentioncuda "pwc/attention/cuda"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/silly"
	sillycuda "pwc/silly/cuda"
)

// attentionKernels returns the kernels of calls of attention.
func attentionKernels(target string, calls []device.OpCall) ([]Kernel, error) {
	var out []Kernel
	for i := range calls {
		s, err := attention.ParseArgs(calls[i].Args)
		if err != nil {
			return nil, err
		}
		p, err := attention.ParseParams(calls[i].Attrs, s.HeadDim)
		if err != nil {
			return nil, err
		}
		variants, err := attentioncuda.VariantsOf(&s, &p, target)
		if err != nil {
			return nil, err
		}
		for _, v := range variants {
			out = append(out, kernelOf(v))
		}
	}
	return out, nil
}

func kernelOf(v attentioncuda.Variant) Kernel {
	return Kernel{Name: v.String(), Source: v.Source(), ArchSpecific: v.ArchSpecific()}
}

func openAttentionOnGPU(s *Site) (device.Op, error) {
	d, ok := s.Device.(*cuda.Device)
	if !ok {
		return nil, noImplementation(attention.Name, s)
	}
	return attentioncuda.New(d, attentioncuda.Options{MaxRows: s.Rows, MaxRequests: s.Requests, MaxBlocks: s.Blocks, Target: s.Target,
		Code: func(ctx context.Context, v attentioncuda.Variant) (*program.Program, error) {
			return s.Code(ctx, kernelOf(v))
		}})
}

func sillyKernel() Kernel { return Kernel{Name: "silly", Source: sillycuda.Source()} }

// sillyKernels returns the kernels of the demonstration op.
func sillyKernels(string, []device.OpCall) ([]Kernel, error) { return []Kernel{sillyKernel()}, nil }

func openSillyOnGPU(s *Site) (device.Op, error) {
	d, ok := s.Device.(*cuda.Device)
	if !ok {
		return nil, noImplementation(silly.Name, s)
	}
	return sillycuda.New(d, func(ctx context.Context) (*program.Program, error) { return s.Code(ctx, sillyKernel()) }), nil
}
