package compile

import (
	"encoding/binary"
	"math"

	"pwc/ir"
	"pwc/ir/dim"
)

// cse computes equal nodes once. It never merges calls, random draws, nodes that write, empty
// memory, or full tensors that this function writes or that it returns, as other pieces may write
// them (C1). Versions of a storage are different values, so reads of different versions are not equal.
func cse(m *ir.Module, fn *ir.Func) (*ir.Func, error) {
	written, returned := writtenStorages(fn), returnedStorages(fn)
	seen := make(map[string][]ir.Value)
	var key []byte
	return ir.RewriteUnverified(m, fn, func(rw *ir.Rewriter, _ int, n *ir.Node) {
		if n.Op.Class == ir.Call || len(n.Versions) > 0 || n.IsEmpty() || n.Effects()&(ir.Random|ir.Host) != 0 ||
			n.Writable() && (written[n.Results[0]] > 0 || returned[n.Results[0]]) {
			rw.Keep(n)
			return
		}
		key = appendKey(key[:0], rw, n)
		if old, ok := seen[string(key)]; ok {
			for i, r := range n.Results {
				rw.Replace(r, old[i])
			}
			return
		}
		if k := rw.Keep(n); k != nil {
			seen[string(key)] = k.Results
		}
	})
}

// appendKey appends a key that equal nodes have in common: the op, the operands and the
// attributes. The key of a literal has its dtype, its value, and whether it is an integer.
func appendKey(b []byte, rw *ir.Rewriter, n *ir.Node) []byte {
	b = appendString(b, n.Op.Name)
	for _, a := range n.Args {
		info := &rw.Old().Values[a]
		if info.Kind != ir.LiteralValue {
			b = append(b, 'v')
			b = binary.AppendVarint(b, int64(rw.Map(a)))
			continue
		}
		l := info.Literal
		b = append(b, 'l', byte(info.Type.DType))
		if l.IsInt {
			b = append(b, 'i')
		}
		b = binary.AppendVarint(b, l.Int)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(l.Float))
	}
	for _, a := range n.Attrs {
		b = appendString(b, a.Name)
		b = append(b, byte(a.Kind), boolByte(a.Bool))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(a.Float))
		b = appendString(b, a.Str)
		b = appendDims(b, append([]dim.Dim{a.Dim}, a.Dims...))
		b = binary.AppendUvarint(b, uint64(len(a.Floats)))
		for _, x := range a.Floats {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
	}
	return b
}

func boolByte(x bool) byte {
	if x {
		return 1
	}
	return 0
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendDims(b []byte, ds []dim.Dim) []byte {
	b = binary.AppendUvarint(b, uint64(len(ds)))
	for _, d := range ds { // equal dims have one text
		b = append(d.AppendText(b), ';')
	}
	return b
}
