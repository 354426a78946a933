package cudatest

import (
	"errors"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/runtime/device"
)

// TestReader reads buffers whose words of 16 bytes do not divide evenly among the kernel's threads. An
// emulated device fails the test if the kernel reads outside of a buffer.
func TestReader(t *testing.T) {
	dev := Open(t, fake.Options{})
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() }) // after the reader
	r := NewReader(t, dev.Device, stream, dev.Compiler(t))
	for _, bytes := range []int64{16, 16 * 1001, 5<<20 + 16} {
		m, err := dev.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		b := device.Buffer{Memory: m, Size: bytes}
		if err := errors.Join(stream.Fill(b, 1), r.Read(b), stream.Synchronize(), m.Free()); err != nil {
			t.Error(err)
		}
	}
}
