package program

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// KernelFormat is whose code a kernel is.
type KernelFormat uint8

const (
	KernelVec  KernelFormat = iota // the host device's: Code is of package vec
	KernelCUDA                     // a GPU's: Code is a cubin, PTX the same for later GPUs
)

// Kernel is code for the target. Several steps may use one. Kernels that were compiled
// together have the same code, which has all of them: the encoding has it once, and a
// device loads it once.
type Kernel struct {
	Name   string
	Format KernelFormat

	// Code is what the target runs: a vec kernel's encoding, or a cubin, which is
	// machine code for GPUs of the target's major version. It may be empty where
	// there is PTX.
	Code []byte

	// PTX is of the same compilation as a cubin. GPUs that are later than the target's
	// take it, and their driver compiles it; where it is empty they do not run the
	// program. It is packed, so that it costs little where nobody takes it: its length
	// (u32, little-endian) and DEFLATE (RFC 1951). [CUDAKernel] packs,
	// [Kernel.PTXText] unpacks.
	PTX []byte
}

// MaxPTX bounds the bytes of a kernel's PTX, unpacked.
const MaxPTX = 64 << 20

// CUDAKernel returns a kernel of what one source was compiled to: a cubin, the PTX
// that it was made of, or both. It fails for more than [MaxPTX].
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

// PTXText returns the kernel's PTX as text. One that is damaged, or not of the
// length that it says, is an error that matches [ErrCorrupt].
func (k *Kernel) PTXText() ([]byte, error) {
	if len(k.PTX) < 4 {
		return nil, fmt.Errorf("%w: kernel %s has no PTX", ErrCorrupt, k.Name)
	}
	n := binary.LittleEndian.Uint32(k.PTX)
	if n > MaxPTX {
		return nil, fmt.Errorf("%w: kernel %s: %d bytes of PTX, the most is %d", ErrCorrupt, k.Name, n, MaxPTX)
	}
	// What is announced is not trusted with memory: the text is read as it comes.
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(k.PTX[4:])), int64(n)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: kernel %s: PTX: %w", ErrCorrupt, k.Name, err)
	case len(text) != int(n):
		return nil, fmt.Errorf("%w: kernel %s: %d bytes of PTX or more, not %d", ErrCorrupt, k.Name, len(text), n)
	}
	return text, nil
}

// Alone returns a program that holds one kernel and does nothing: code of an
// extern op, so that whatever checks, keeps or moves programs does so with it.
func Alone(target string, k Kernel) *Program {
	return &Program{Target: target, Kernels: []Kernel{k}}
}
