package hf

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"runtime"
	"sync"

	"pwc/internal/termsafe"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// Dummy returns a source that stands in for a checkpoint. Its tensors have the names, shapes and dtypes of params, and
// random values with their Mean and Std. Integers and bools are zeros, which are valid as indices. Each call of Tensor
// computes the values anew and the source does not keep them, so a model of any size can be loaded tensor by tensor.
// The values depend only on params, so they are the same on every machine.
func Dummy(params []Param) safetensors.Source {
	d := &dummy{byName: make(map[string]Param, len(params))}
	for _, p := range params {
		if _, dup := d.byName[p.Name]; !dup {
			d.names = append(d.names, p.Name)
		}
		d.byName[p.Name] = p
	}
	return d
}

type dummy struct {
	names  []string
	byName map[string]Param
}

// Names returns the tensors in the order of the params.
func (d *dummy) Names() []string { return append([]string(nil), d.names...) }

// Info returns the description of a tensor from its param.
func (d *dummy) Info(name string) (safetensors.Info, error) {
	p, ok := d.byName[name]
	if !ok {
		return safetensors.Info{}, fmt.Errorf("hf: dummy weights: %s: %w", termsafe.Quote(name), safetensors.ErrNotFound)
	}
	return p.Info, nil
}

// Tensor computes a tensor. A float dtype other than f32, f16 and bf16 is an error.
func (d *dummy) Tensor(name string) (safetensors.Tensor, error) {
	info, err := d.Info(name)
	if err != nil {
		return safetensors.Tensor{}, err
	}
	n := int64(1)
	for _, e := range info.Shape {
		if e != 0 && n > math.MaxInt64/8/e {
			return safetensors.Tensor{}, fmt.Errorf("hf: dummy weights: %s: %v has too many elements", termsafe.Quote(name), info.Shape)
		}
		n *= e
	}
	t := safetensors.Tensor{Name: name, DType: info.DType, Shape: info.Shape, Data: make([]byte, info.DType.Bytes(n))}
	p := d.byName[name]
	seed := seedOf(name)
	var set func(i int64, v float32)
	switch info.DType {
	case dtype.BF16:
		set = func(i int64, v float32) { binary.LittleEndian.PutUint16(t.Data[2*i:], dtype.F32ToBF16(v)) }
	case dtype.F16:
		set = func(i int64, v float32) { binary.LittleEndian.PutUint16(t.Data[2*i:], dtype.F32ToF16(v)) }
	case dtype.F32:
		set = func(i int64, v float32) { binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(v)) }
	default:
		if info.DType == dtype.Bool || info.DType.Int() {
			return t, nil
		}
		return safetensors.Tensor{}, fmt.Errorf("hf: dummy weights: %s: %s is not supported: floats must be f32, f16 or bf16", termsafe.Quote(name), info.DType)
	}
	inParallel(0, min(n, period), func(from, to int64) {
		for i := from; i < to; i++ {
			set(i, sample(seed, uint64(i), p.Mean, p.Std))
		}
	})
	size := info.DType.Bytes(1)
	inParallel(period, n, func(from, to int64) {
		for from < to {
			at := from % period
			k := min(to-from, period-at)
			copy(t.Data[size*from:size*(from+k)], t.Data[size*at:])
			from += k
		}
	})
	return t, nil
}

// period is the number of elements after which the values of a tensor repeat. Copying is many times faster than
// computing, so a large model takes seconds. period is a prime, so that the rows of a matrix differ.
const period = 1<<22 - 3

// inParallel calls f with parts of [from, to), on at most one goroutine per processor. A tensor of a large model has
// 10⁸ elements.
func inParallel(from, to int64, f func(from, to int64)) {
	const least = 1 << 16 // elements for which a goroutine pays off
	n := max(0, to-from)
	parts := max(1, min(int64(runtime.GOMAXPROCS(0)), n/least))
	var wg sync.WaitGroup
	for p := range parts {
		wg.Go(func() { f(from+n*p/parts, from+n*(p+1)/parts) })
	}
	wg.Wait()
}

func seedOf(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// sample returns element i of a tensor, for i below period. It is the sum of four independent uniform numbers, which is
// close to normal and within 3.5 standard deviations of the mean. The numbers are the four 16-bit parts of a hash of i
// (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
func sample(seed, i uint64, mean, std float64) float32 {
	z := seed + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	sum := int64(z&0xffff) + int64(z>>16&0xffff) + int64(z>>32&0xffff) + int64(z>>48)
	const (
		center = 4 * 65535. / 2
		unit   = 37837.22723720648 // standard deviation of the sum: sqrt(4·(65536²-1)/12)
	)
	// The conversion to float64 prevents a fused multiply-add, which not every machine has and which rounds
	// differently.
	return float32(mean + float64((float64(sum)-center)*(std/unit)))
}
