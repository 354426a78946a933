package train

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"pwc/internal/termsafe"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// Data has the batches of a run, from tensors with the names of the inputs. It cuts a tensor into
// batches along its leading axes: [batches, rows, …] has the rows of each batch; [rows, …], or one axis
// of rows × … elements, such as a text in tokens, has the rows of all batches. A row that is longer by
// an integer factor is cut into several. An incomplete last batch is dropped. A tensor of one batch
// serves every step. The first batch follows the last one.
//
// Data is the [Batch] of the step selected by [Data.Select].
type Data struct {
	src     safetensors.Source
	inputs  []dataInput
	batches int64
	parts   int64
	ranks   int64
	rank    int64
	step    int64
	order   *order // of the rows; nil: the order of the tensors
}

type dataInput struct {
	name    string
	data    []byte
	size    int64 // of one batch
	batches int64
	rows    int64  // of one batch
	drawn   []byte // the last gathered batch, if rows are shuffled
}

// NewData finds the batches for a program. The Data reads the tensors of src in place, so src must stay
// open; only tensors whose integers have another width are copied. A step takes a batch for each
// micro-batch of each rank of the program.
func NewData(p *Program, src safetensors.Source) (*Data, error) {
	if p == nil || src == nil {
		return nil, errors.New("train: a program and the tensors of its batches are needed")
	}
	d := &Data{src: src, batches: 1, parts: int64(p.options.MicroBatches), ranks: int64(p.options.Ranks)}
	var errs []error
	from := ""
	for _, in := range p.Inputs {
		x, err := openInput(in, src)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if x.batches > 1 && d.batches > 1 && x.batches != d.batches {
			errs = append(errs, fmt.Errorf("train: the data has %d batches of %s and %d of %s", d.batches, from, x.batches, in.Name))
		}
		if x.batches > d.batches {
			d.batches, from = x.batches, in.Name
		}
		d.inputs = append(d.inputs, x)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return d, nil
}

// openInput finds the batches of one input.
func openInput(in Input, src safetensors.Source) (dataInput, error) {
	t, err := src.Tensor(in.Name)
	if err != nil {
		return dataInput{}, fmt.Errorf("train: the data needs a tensor %s for the parameter of that name: %w; it has %s", termsafe.Quote(in.Name), err, termsafe.Names(src.Names()))
	}
	want := make([]int64, in.Type.Rank())
	rows := int64(1)
	for i, d := range in.Type.Shape {
		want[i], _ = d.Const()
		rows *= want[i]
	}
	have := int64(1)
	for _, n := range t.Shape {
		have *= n
	}
	if rows == 0 || have < rows || !holdsRows(t.Shape, want[min(len(want), 1):]) {
		return dataInput{}, fmt.Errorf("train: tensor %s of the data is %s%v: it does not hold batches of %s", termsafe.Quote(in.Name), t.DType, t.Shape, in.Type)
	}
	data := t.Data
	if t.DType != in.Type.DType {
		if err := safetensors.Guard(src, func() error { data, err = convert(t, in.Type.DType); return err }); err != nil {
			return dataInput{}, err
		}
	}
	batch := int64(1)
	if len(want) > 0 {
		batch = want[0]
	}
	return dataInput{name: in.Name, data: data, size: in.Type.DType.Bytes(rows), batches: have / rows, rows: batch}, nil
}

// holdsRows reports whether a tensor of the shape consists of rows with the sizes inner. A row
// may be longer by an integer factor: it is cut.
func holdsRows(shape, inner []int64) bool {
	if len(shape) == 1 || len(inner) == 0 {
		return true
	}
	if len(shape) < len(inner) {
		return false
	}
	last := shape[len(shape)-len(inner):]
	return last[0]%inner[0] == 0 && slices.Equal(last[1:], inner[1:])
}

// convert returns the bytes of an integer tensor in another width.
func convert(t safetensors.Tensor, to dtype.DType) ([]byte, error) {
	load := intLoader(t)
	if load == nil || to != dtype.I32 && to != dtype.I64 {
		return nil, fmt.Errorf("train: tensor %s of the data is %s, want %s", termsafe.Quote(t.Name), t.DType, to)
	}
	n := int64(len(t.Data)) * 8 / int64(t.DType.Bits())
	out := make([]byte, 0, to.Bytes(n))
	for i := range n {
		v := load(i)
		switch {
		case to == dtype.I64:
			out = binary.LittleEndian.AppendUint64(out, uint64(v))
		case v < math.MinInt32 || v > math.MaxInt32:
			return nil, fmt.Errorf("train: tensor %s of the data: element %d is %d, which i32 does not hold", termsafe.Quote(t.Name), i, v)
		default:
			out = binary.LittleEndian.AppendUint32(out, uint32(v))
		}
	}
	return out, nil
}

// intLoader returns a function that reads element i; nil for dtypes other than integers.
func intLoader(t safetensors.Tensor) func(i int64) int64 {
	d := t.Data
	switch t.DType {
	case dtype.U8:
		return func(i int64) int64 { return int64(d[i]) }
	case dtype.I8:
		return func(i int64) int64 { return int64(int8(d[i])) }
	case dtype.I16:
		return func(i int64) int64 { return int64(int16(binary.LittleEndian.Uint16(d[2*i:]))) }
	case dtype.I32:
		return func(i int64) int64 { return int64(int32(binary.LittleEndian.Uint32(d[4*i:]))) }
	case dtype.I64:
		return func(i int64) int64 { return int64(binary.LittleEndian.Uint64(d[8*i:])) }
	}
	return nil
}

// Batches returns the number of batches, each for one micro-batch of one rank.
func (d *Data) Batches() int64 { return d.batches }

// ReadOnly reports whether the bytes of a batch never change. Those of shuffled rows do.
func (d *Data) ReadOnly() bool { return d.order == nil }

// OfRank returns the batches of a rank, counted from 0. NewData returns those of rank 0. The result
// has its own step, and shuffles rows in the same order as d.
func (d *Data) OfRank(rank int) (*Data, error) {
	if rank < 0 || int64(rank) >= d.ranks {
		return nil, fmt.Errorf("train: rank %d of %d: ranks count from 0", rank, d.ranks)
	}
	out := *d
	out.rank = int64(rank)
	out.inputs = slices.Clone(d.inputs)
	for i := range out.inputs {
		out.inputs[i].drawn = nil
	}
	if d.order != nil {
		out.order = &order{seed: d.order.seed, total: d.order.total, pass: -1}
	}
	return &out, nil
}

// Select selects the batch of a step, counted from 0.
func (d *Data) Select(step int64) { d.step = step }

// Input returns the bytes of an input for a micro-batch of the step. After [Data.Shuffle] they
// are valid until the next call for that input. If a mapped file of the source was truncated, the error
// is a [*safetensors.FaultError].
func (d *Data) Input(part, input int) (bytes []byte, err error) {
	if part < 0 || int64(part) >= d.parts || input < 0 || input >= len(d.inputs) || d.step < 0 {
		return nil, fmt.Errorf("train: no input %d of micro-batch %d of step %d", input, part, d.step)
	}
	x := &d.inputs[input]
	batch := (d.step*d.ranks+d.rank)*d.parts + int64(part)
	err = safetensors.Guard(d.src, func() error {
		if d.order != nil && x.batches > 1 {
			bytes = x.gather(d.order.batch(batch, x.rows))
			return nil
		}
		at := batch % x.batches * x.size
		bytes = x.data[at : at+x.size]
		safetensors.Touch(bytes) // the caller reads them without Guard
		return nil
	})
	return bytes, err
}
