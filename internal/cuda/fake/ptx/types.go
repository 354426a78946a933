package ptx

// class is the interpretation of the bits of a type.
type class uint8

const (
	classBits class = iota
	classUnsigned
	classSigned
	classFloat
	classBFloat
	classPred
	classTF32
)

// kind is a type of PTX: a fundamental type, or an alternate floating-point format (bf16, tf32).
type kind struct {
	class class
	bits  int
	pack  int // elements: 2 in f16x2 and bf16x2
}

// kindOf finds a type by name.
func kindOf(name string) (kind, bool) {
	switch name {
	case "b8":
		return kind{classBits, 8, 1}, true
	case "b16":
		return kind{classBits, 16, 1}, true
	case "b32":
		return kind{classBits, 32, 1}, true
	case "b64":
		return kind{classBits, 64, 1}, true
	case "u8":
		return kind{classUnsigned, 8, 1}, true
	case "u16":
		return kind{classUnsigned, 16, 1}, true
	case "u32":
		return kind{classUnsigned, 32, 1}, true
	case "u64":
		return kind{classUnsigned, 64, 1}, true
	case "s8":
		return kind{classSigned, 8, 1}, true
	case "s16":
		return kind{classSigned, 16, 1}, true
	case "s32":
		return kind{classSigned, 32, 1}, true
	case "s64":
		return kind{classSigned, 64, 1}, true
	case "f16":
		return kind{classFloat, 16, 1}, true
	case "f32":
		return kind{classFloat, 32, 1}, true
	case "f64":
		return kind{classFloat, 64, 1}, true
	case "bf16":
		return kind{classBFloat, 16, 1}, true
	case "f16x2":
		return kind{classFloat, 32, 2}, true
	case "bf16x2":
		return kind{classBFloat, 32, 2}, true
	case "tf32":
		return kind{classTF32, 32, 1}, true
	case "pred":
		return kind{classPred, 1, 1}, true
	}
	return kind{}, false
}

func (k kind) signed() bool { return k.class == classSigned }

// integer reports whether the type is an integer or untyped bits (.b8 to .b64).
func (k kind) integer() bool { return k.class <= classSigned }

// float reports whether the type is an IEEE 754 binary32 or binary64.
func (k kind) float() bool { return k.class == classFloat && k.bits >= 32 && k.pack == 1 }

// register is a register of an entry. Registers of 16 and 32 bits are in one file, registers of 64 bits in
// another, predicates in a third.
type register struct {
	kind  kind
	index int32
}

// space is a state space.
type space uint8

const (
	spaceGeneric space = iota
	spaceGlobal        // .const, too
	spaceShared        // of the block itself
	spaceCluster       // shared memory of any block of the cluster
	spaceLocal
	spaceParam
)

// variable is a variable of a module or an entry.
type variable struct {
	space   space
	align   int64
	bytes   int64
	offset  int64 // in its space, in bytes; for .global and .const in the module's data
	dynamic bool  // shared memory whose size is a parameter of the launch
	data    []byte
}

// Limits of a module: registers of a file, bytes of a variable and of all variables of a space, nested braces.
// Compilers stay far below them.
const (
	maxRegisters = 1 << 16
	maxBytes     = 1 << 24
	maxNesting   = 64
)
