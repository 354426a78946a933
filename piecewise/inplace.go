package piecewise

import (
	"fmt"
	"unsafe"

	"pwc/checkpoint"
	"pwc/ir"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// inPlaceWeight is a weight that stays in a mapped file.
type inPlaceWeight struct {
	bytes []byte
	path  string
}

// inPlaceWeights are the weights that the device reads in the mapped files of the checkpoint; nil:
// all weights are copied.
type inPlaceWeights struct {
	weights []inPlaceWeight // by the module's weights; one without bytes is copied
	release func() error    // of the files
}

func (p *inPlaceWeights) find(i int) (inPlaceWeight, bool) {
	if p == nil || len(p.weights[i].bytes) == 0 {
		return inPlaceWeight{}, false
	}
	return p.weights[i], true
}

// planned returns the bytes that the plan counts for these weights, with alignment.
func (p *inPlaceWeights) planned() int64 {
	n := int64(0)
	if p != nil {
		for _, w := range p.weights {
			n += roundUp(int64(len(w.bytes)))
		}
	}
	return n
}

// bytes returns the bytes of these weights.
func (p *inPlaceWeights) bytes() int64 {
	n := int64(0)
	if p != nil {
		for _, w := range p.weights {
			n += int64(len(w.bytes))
		}
	}
	return n
}

// findInPlace finds the weights that need not be copied, and keeps their files mapped until
// [residents.free]. It returns nil if there are no such weights, the device or the source does not
// support them, or the options ask for copies or a [Canary].
func (r *residents) findInPlace(src safetensors.Source) (*inPlaceWeights, error) {
	_, imports := r.plan.opts.Device.(device.HostImporter)
	mapped, ok := src.(safetensors.Mapped)
	if !imports || !ok || r.plan.opts.Memory.CopyWeights || r.plan.opts.Debug.Canary != CanaryOff {
		return nil, nil
	}
	p := &inPlaceWeights{weights: make([]inPlaceWeight, len(r.plan.module.Weights))}
	for i, w := range r.plan.module.Weights {
		b, path, ok := checkpoint.InPlace(mapped, r.plan.module.WeightOf(w, r.plan.opts.Rank))
		if ok && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(max(w.Type.DType.Bits()/8, 1)) == 0 {
			p.weights[i] = inPlaceWeight{b, path}
		}
	}
	if p.bytes() == 0 {
		return nil, nil
	}
	var err error
	if p.release, err = mapped.Retain(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotLoaded, err)
	}
	r.inPlace = p
	return p, nil
}

// importWeight imports a weight that stays in its file into the device, after a read of
// all its pages.
func (r *residents) importWeight(src safetensors.Source, w *ir.Weight, p inPlaceWeight) (device.Buffer, error) {
	gone := fmt.Errorf("weight @%s: %w", w.Name, &safetensors.FaultError{File: p.path})
	err := safetensors.Guard(src, func() error { safetensors.Touch(p.bytes); return nil })
	if err != nil {
		return device.Buffer{}, fmt.Errorf("%w: weight @%s: %w", ErrNotLoaded, w.Name, err)
	}
	m, err := r.plan.opts.Device.(device.HostImporter).ImportHost(p.bytes, gone)
	if err != nil {
		return device.Buffer{}, fmt.Errorf("weight @%s: %w", w.Name, err)
	}
	r.imported = append(r.imported, m)
	return device.Buffer{Memory: m, Size: m.Size()}, nil
}
