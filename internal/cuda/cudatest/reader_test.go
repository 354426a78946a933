package cudatest

import (
	"errors"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/runtime/device"
)

// TestReader reads buffers that do not come out even: an emulated device fails the test
// for what lies outside of them.
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
