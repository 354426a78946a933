package ir

// WeightOp is the op of a weight expression.
type WeightOp uint8

// The ops of weight expressions. All but WeightTensor and WeightShard have the meaning of the op of
// functions with that name.
const (
	WeightTensor WeightOp = iota // the tensor that WeightExpr.Name names
	WeightConcat
	WeightSlice
	WeightTranspose
	WeightCast
	WeightReshape
	WeightShard // one of equal parts ([Shard])
	numWeightOps
)

// weightRows are the table entries of the ops, with their operands and attributes.
var weightRows = [numWeightOps]*Op{
	WeightConcat:    OpConcat.Op(),
	WeightSlice:     OpSlice.Op(),
	WeightTranspose: OpTranspose.Op(),
	WeightCast:      OpCast.Op(),
	WeightReshape:   OpReshape.Op(),
	WeightShard:     shardExpr,
}

// weightOpOf returns the op of a name.
func weightOpOf(name string) (WeightOp, bool) {
	for o, row := range weightRows {
		if row != nil && row.Name == name {
			return WeightOp(o), true
		}
	}
	return WeightTensor, false
}

// Op returns the table entry with the op's operands and attributes; nil for WeightTensor.
func (o WeightOp) Op() *Op {
	if o >= numWeightOps {
		return nil
	}
	return weightRows[o]
}

// String returns the name of the op in the language, "tensor" for WeightTensor.
func (o WeightOp) String() string {
	if row := o.Op(); row != nil {
		return row.Name
	}
	return "tensor"
}

// weightOpNames returns the names of all ops.
func weightOpNames() (names []string) {
	for _, row := range weightRows {
		if row != nil {
			names = append(names, row.Name)
		}
	}
	return names
}
