package verify

import (
	"slices"

	"pwc/compile"
	"pwc/compile/loop"
)

// Variants returns a backend without the kernel variants that a Config avoids. It reports to
// Config.Seen every variant that another can replace. The last variant of a kernel serves all
// sizes and devices, so it stays.
//
// Programs of this backend must not be cached under the other backend's name.
func Variants(b compile.Backend, c Config) compile.Backend {
	if b == nil || c.Seen == nil && len(c.Avoid) == 0 {
		return b
	}
	return &variantFilter{b, c}
}

// variantFilter is a backend without the kernel variants that a Config avoids.
type variantFilter struct {
	compile.Backend
	c Config
}

// Lower implements compile.Backend.
func (b *variantFilter) Lower(k *loop.Kernel) (compile.Code, error) {
	code, err := b.Backend.Lower(k)
	return b.filter(code), err
}

// FusesVertically implements compile.VerticalFuser. It is false if the backend is no
// VerticalFuser.
func (b *variantFilter) FusesVertically(c *compile.Chain) bool {
	inner, ok := b.Backend.(compile.VerticalFuser)
	return ok && inner.FusesVertically(c)
}

// LowerVertical implements compile.VerticalFuser.
func (b *variantFilter) LowerVertical(c *compile.Chain) (compile.Code, error) {
	code, err := b.Backend.(compile.VerticalFuser).LowerVertical(c)
	return b.filter(code), err
}

// FusesHorizontally implements compile.HorizontalFuser. It is false if the backend is no
// HorizontalFuser.
func (b *variantFilter) FusesHorizontally(ks []*loop.Kernel) bool {
	inner, ok := b.Backend.(compile.HorizontalFuser)
	return ok && inner.FusesHorizontally(ks)
}

// LowerHorizontal implements compile.HorizontalFuser.
func (b *variantFilter) LowerHorizontal(ks []*loop.Kernel) (compile.Code, error) {
	code, err := b.Backend.(compile.HorizontalFuser).LowerHorizontal(ks)
	return b.filter(code), err
}

// FusesAllReduce implements compile.AllReduceFuser. It is false if the backend is no AllReduceFuser.
func (b *variantFilter) FusesAllReduce(k *loop.Kernel) bool {
	inner, ok := b.Backend.(compile.AllReduceFuser)
	return ok && inner.FusesAllReduce(k)
}

// ReadsUnalignedWeights implements compile.WeightReader. It is false if the backend is no
// WeightReader.
func (b *variantFilter) ReadsUnalignedWeights() bool {
	inner, ok := b.Backend.(compile.WeightReader)
	return ok && inner.ReadsUnalignedWeights()
}

func (b *variantFilter) filter(code compile.Code) compile.Code {
	if len(code.Variants) < 2 {
		return code
	}
	kept := make([]compile.Variant, 0, len(code.Variants))
	for i, v := range code.Variants {
		name := variantName(v)
		if b.c.Seen != nil && i < len(code.Variants)-1 {
			b.c.Seen(name)
		}
		if i == len(code.Variants)-1 || !slices.Contains(b.c.Avoid, name) {
			kept = append(kept, v)
		}
	}
	code.Variants = kept
	return code
}

// variantName names a variant by its kernels and library routines.
func variantName(v compile.Variant) string {
	name := ""
	for i, s := range v.Steps {
		if i > 0 {
			name += "+"
		}
		if s.Library != "" {
			name += s.Library
		} else {
			name += s.Kernel.Name
		}
	}
	return name
}
