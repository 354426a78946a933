package collective

import (
	"fmt"

	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// Kind is a routine. Args of its calls are a destination and a source of one dtype, contiguous.
// Sums are of f32, f16 or bf16; all ranks get the same bits of an all_reduce. Unless NCCL computes a sum, it is
// added in f32, in rank order from rank 0 on, and rounded once. Gathers and broadcasts copy any dtype of whole bytes.
type Kind uint8

const (
	AllReduce     Kind = iota // the sum of all ranks' sources; the destination may be the source
	AllGather                 // the sources of all ranks, in rank order
	ReduceScatter             // this rank's part of the sum of all ranks' sources
	Broadcast                 // the source of the rank in attribute AttrRoot
)

// Attributes of calls: the group's name, the number of ranks that the program was compiled for,
// and the rank that a broadcast reads.
const (
	AttrGroup = "group"
	AttrSize  = "size"
	AttrRoot  = "root"
	AttrAsync = "async" // of all_reduce: the call overlaps with later steps of the program, until its wait
)

// Kinds are all routines.
var Kinds = [...]Kind{AllReduce, AllGather, ReduceScatter, Broadcast}

// String returns the name without its namespace: "all_reduce".
func (k Kind) String() string {
	names := [...]string{"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Name returns the name that program.Step.Extern has: "collective::all_reduce".
func (k Kind) Name() string { return "collective::" + k.String() }

// Sums reports whether the routine adds numbers.
func (k Kind) Sums() bool { return k == AllReduce || k == ReduceScatter }

// Signature returns the routine's declaration: it may be captured.
func (k Kind) Signature(version string) device.Signature {
	return device.Signature{Name: k.Name(), Mut: []bool{true, false}, Capture: true, Version: version}
}

// WaitSignature is the declaration of [program.CollectiveWait].
func WaitSignature(version string) device.Signature {
	return device.Signature{Name: program.CollectiveWait, Mut: []bool{true, false}, Capture: true, Version: version}
}

// Call is a call of a routine.
type Call struct {
	Kind  Kind
	Group string
	Size  int
	Root  int
	DType dtype.DType
	Bytes int64 // bytes of one rank's part: the smaller of destination and source
	Async bool  // the call overlaps with the steps after it, until the wait
}

// String describes the call, the same on all ranks.
func (c Call) String() string {
	s := fmt.Sprintf("%s of %d bytes of %s", c.Kind, c.Bytes, c.DType)
	if c.Kind == Broadcast {
		s += fmt.Sprintf(" from rank %d", c.Root)
	}
	return s
}

// Parse returns the call that operands and attributes describe, and checks them.
func Parse(k Kind, args []device.Tensor, attrs []program.Attr) (Call, error) {
	c := Call{Kind: k}
	fail := func(format string, a ...any) (Call, error) {
		return Call{}, fmt.Errorf(k.Name()+": "+format, a...)
	}
	if len(args) != 2 {
		return fail("%d operands, want a destination and a source", len(args))
	}
	for i := range attrs {
		a := &attrs[i]
		n, constant := a.Dim.Const()
		switch {
		case a.Name == AttrGroup && a.Kind == program.AttrString:
			c.Group = a.Str
		case a.Name == AttrSize && a.Kind == program.AttrDim && constant && n >= 1 && n <= MaxSize:
			c.Size = int(n)
		case a.Name == AttrRoot && a.Kind == program.AttrDim && constant && k == Broadcast && n >= 0 && n < MaxSize:
			c.Root = int(n)
		case a.Name == AttrAsync && a.Kind == program.AttrBool && k == AllReduce:
			c.Async = a.Bool
		default:
			return fail("attribute %s is unknown, of another kind or out of range", a.Name)
		}
	}
	if c.Group == "" || c.Size == 0 || c.Root >= c.Size {
		return fail("attributes %s and %s are needed, and a root below the size", AttrGroup, AttrSize)
	}
	dst, src := &args[0], &args[1]
	c.DType = src.DType
	switch {
	case dst.DType != src.DType:
		return fail("a destination of %s and a source of %s", dst.DType, src.DType)
	case k.Sums() && c.DType != dtype.F32 && c.DType != dtype.F16 && c.DType != dtype.BF16:
		return fail("sums of %s; f32, f16 and bf16 can be added", c.DType)
	case c.DType.Bits()%8 != 0:
		return fail("elements of %s are not of whole bytes", c.DType)
	}
	c.Bytes = src.Size
	want := src.Size
	switch k {
	case AllGather:
		want *= int64(c.Size)
	case ReduceScatter:
		c.Bytes = dst.Size
		want = dst.Size
		if want *= int64(c.Size); want != src.Size {
			return fail("a source of %d bytes for %d ranks that get %d each", src.Size, c.Size, dst.Size)
		}
		return c, nil
	}
	if dst.Size != want {
		return fail("a destination of %d bytes, want %d", dst.Size, want)
	}
	return c, nil
}

// Check returns an error if the call is not for the group.
func (c Call) Check(g *Group) error {
	switch {
	case g == nil:
		return fmt.Errorf("%s: the device has no group %q: the ranks must join it before programs run", c.Kind.Name(), c.Group)
	case g.size != c.Size:
		return fmt.Errorf("%s: the program was compiled for %d ranks, and group %q has %d", c.Kind.Name(), c.Size, g.name, g.size)
	}
	return nil
}
