package program

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// KernelFormat is the format of a kernel's code.
type KernelFormat uint8

const (
	KernelVec  KernelFormat = iota // for the host: Code is the encoding of a vec.Kernel
	KernelCUDA                     // for GPUs: Code is a cubin, PTX is for later GPUs
)

// Kernel is code for the target. Several steps may use one. Kernels that were compiled
// together have the same Code, which contains all of them: it is encoded and loaded
// once.
type Kernel struct {
	Name   string
	Format KernelFormat

	// Code is the encoding of a vec.Kernel, or a cubin: machine code for the target. It may
	// be empty if there is PTX.
	Code []byte

	// PTX is the PTX of the cubin's source. For later GPUs that cannot run the cubin, the
	// driver compiles it; without it they cannot run the kernel. It is
	// compressed: the length of the text (u32, little-endian) and DEFLATE (RFC 1951).
	// [CUDAKernel] compresses it, [Kernel.PTXText] decompresses it.
	PTX []byte
}

// MaxPTX is the largest size of a kernel's PTX text in bytes.
const MaxPTX = 64 << 20

// CUDAKernel returns a kernel of a source that was compiled to a cubin, to PTX, or to
// both. It fails for more than [MaxPTX] bytes of PTX.
func CUDAKernel(name string, cubin, ptx []byte) (Kernel, error) {
	k := Kernel{Name: name, Format: KernelCUDA, Code: cubin}
	switch {
	case len(ptx) == 0:
		return k, nil
	case len(ptx) > MaxPTX:
		return Kernel{}, fmt.Errorf("program: kernel %s: %d bytes of PTX, the most is %d", name, len(ptx), MaxPTX)
	}
	var b bytes.Buffer
	b.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(ptx))))
	w, err := flate.NewWriter(&b, flate.DefaultCompression)
	if err != nil {
		return Kernel{}, err
	}
	_, err = w.Write(ptx)
	if err := errors.Join(err, w.Close()); err != nil {
		return Kernel{}, err
	}
	k.PTX = b.Bytes()
	return k, nil
}

// PTXText returns the kernel's PTX as text. If it is missing, damaged or has another length
// than declared, the error matches [ErrCorrupt].
func (k *Kernel) PTXText() ([]byte, error) {
	if len(k.PTX) < 4 {
		return nil, fmt.Errorf("%w: kernel %s has no PTX", ErrCorrupt, k.Name)
	}
	n := binary.LittleEndian.Uint32(k.PTX)
	if n > MaxPTX {
		return nil, fmt.Errorf("%w: kernel %s: %d bytes of PTX, the most is %d", ErrCorrupt, k.Name, n, MaxPTX)
	}
	// The declared length is untrusted, so no memory is allocated by it.
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(k.PTX[4:])), int64(n)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: kernel %s: PTX: %w", ErrCorrupt, k.Name, err)
	case len(text) != int(n):
		return nil, fmt.Errorf("%w: kernel %s: the PTX does not have the %d bytes that it declares", ErrCorrupt, k.Name, n)
	}
	return text, nil
}

// Alone returns a program with one kernel and no steps, for the code of an extern op:
// so it can be validated, cached and exported like other programs.
func Alone(target string, k Kernel) *Program {
	return &Program{Target: target, Kernels: []Kernel{k}}
}
