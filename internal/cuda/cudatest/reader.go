package cudatest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// readSource reads n words of 16 bytes. Each thread loads eight words before it uses one.
const readSource = `
extern "C" __global__ void read(const uint4 *from, long long n, unsigned *to) {
  unsigned x = 0;
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int u = 0; u < 8; u++) v[u] = i + u * step < n ? __ldcs(from + i + u * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int u = 0; u < 8; u++) x |= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (x == 0x9e3779b9u) *to = x;
}`

// Reader reads memory and does nothing with it. Benchmarks compare kernels with its bandwidth, and
// use it to evict other data from a GPU's caches.
type Reader struct {
	testing.TB
	dev    *cuda.Device
	stream *cuda.Stream
	call   *cuda.KernelCall
}

// NewReader returns a reader on a stream. It is closed at the end of the test.
func NewReader(t testing.TB, dev *cuda.Device, stream device.Stream, c Compiler) *Reader {
	t.Helper()
	r := &Reader{TB: t, dev: dev, stream: stream.(*cuda.Stream)}
	target := dev.Info().Target
	cubin, _, err := c.Compile(context.Background(), readSource, "read.cu", strings.TrimPrefix(target, "cuda:"))
	r.check(err)
	kernel, err := program.CUDAKernel("read", cubin, nil)
	r.check(err)
	m, err := dev.LoadModule(program.Alone(target, kernel))
	r.check(err)
	to, err := dev.Alloc(4)
	r.check(err)
	t.Cleanup(func() { r.check(errors.Join(stream.Synchronize(), m.Close(), to.Free())) })
	f, err := m.Function("read")
	r.check(err)
	r.call, err = f.NewCall(3, cuda.LaunchOptions{})
	r.check(err)
	r.call.Grid, r.call.Block = [3]uint32{uint32(8 * dev.Info().Properties["device.sms"]), 1, 1}, [3]uint32{256, 1, 1}
	r.check(r.call.SetBuffer(2, device.Buffer{Memory: to, Size: 4}))
	return r
}

func (r *Reader) check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// Read enqueues a read of a buffer, or records it in a capture. It leaves out the last Size%16 bytes.
func (r *Reader) Read(b device.Buffer) error {
	if err := r.call.SetBuffer(0, b); err != nil {
		return err
	}
	r.call.SetArg(1, uint64(b.Size/16))
	return r.stream.LaunchKernel(r.call)
}

// Bandwidth returns the bandwidth of reading a buffer in bytes per nanosecond, from the least of
// several times. all is by the time of the whole buffer; more is by the time that the second half
// adds to the first, without the overhead of a launch. The buffer should be many times as large as
// the caches.
func (r *Reader) Bandwidth(b device.Buffer) (all, more float64) {
	r.Helper()
	start, err := r.dev.NewTimedEvent()
	r.check(err)
	end, err := r.dev.NewTimedEvent()
	r.check(err)
	half := b.Size / 2
	var least [2]float64
	for i, size := range []int64{half, b.Size} {
		for n := range 8 {
			r.check(errors.Join(r.stream.Record(start), r.Read(b.Slice(0, size)), r.stream.Record(end), r.stream.Synchronize()))
			d, err := r.dev.Elapsed(start, end)
			r.check(err)
			if t := float64(d.Nanoseconds()); n == 0 || t < least[i] {
				least[i] = t
			}
		}
	}
	r.check(errors.Join(start.Close(), end.Close()))
	return float64(b.Size) / least[1], float64(b.Size-half) / (least[1] - least[0])
}
