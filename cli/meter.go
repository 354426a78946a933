package cli

import (
	"runtime"
	"sync"
	"time"

	"pwc/runtime/device"
)

// meter measures times on one stream of a device.
type meter interface {
	// mark records a mark at this point of the stream.
	mark() error

	// intervals waits for the stream, returns the device times between consecutive
	// marks, and removes the marks. The slice is valid until the next call.
	intervals() ([]time.Duration, error)

	// hold makes the stream wait for a time, so that work which is enqueued meanwhile
	// then runs without waiting for the host. It does nothing on a device that runs
	// work synchronously.
	hold(d time.Duration) error

	// bandwidth returns the bytes per second at which the device reads its memory, the
	// best of several measurements.
	bandwidth() (float64, error)

	// free returns the bytes of free device memory. It returns false if the device does
	// not know them.
	free() (int64, bool, error)

	close() error
}

// hostMeter measures the host device, which runs work synchronously.
type hostMeter struct {
	marks []time.Time
	times []time.Duration
}

func newHostMeter(device.Stream) (meter, error) { return &hostMeter{}, nil }

func (m *hostMeter) mark() error {
	m.marks = append(m.marks, time.Now())
	return nil
}

func (m *hostMeter) intervals() ([]time.Duration, error) {
	m.times = m.times[:0]
	for i := 1; i < len(m.marks); i++ {
		m.times = append(m.times, m.marks[i].Sub(m.marks[i-1]))
	}
	m.marks = m.marks[:0]
	return m.times, nil
}

func (m *hostMeter) hold(time.Duration) error { return nil }

func (m *hostMeter) free() (int64, bool, error) { return 0, false, nil }

func (m *hostMeter) close() error { return nil }

// hostReadBytes are the bytes that bandwidth reads. They exceed the caches of most machines.
const hostReadBytes = 512 << 20

func (m *hostMeter) bandwidth() (float64, error) {
	data := make([]uint64, hostReadBytes/8)
	for i := range data {
		data[i] = uint64(i)
	}
	workers := runtime.GOMAXPROCS(0)
	sums := make([]uint64, workers)
	best := time.Duration(0)
	for range 5 {
		start := time.Now()
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() { sums[w] = sum(data[len(data)*w/workers : len(data)*(w+1)/workers]) })
		}
		wg.Wait()
		if took := time.Since(start); best == 0 || took < best {
			best = took
		}
	}
	return hostReadBytes / best.Seconds(), nil
}

// sum adds up elements in several accumulators, so that the memory bandwidth limits it and not the
// latency of additions.
func sum(x []uint64) uint64 {
	var a, b, c, d uint64
	for len(x) >= 8 {
		a += x[0] + x[4]
		b += x[1] + x[5]
		c += x[2] + x[6]
		d += x[3] + x[7]
		x = x[8:]
	}
	for _, v := range x {
		a += v
	}
	return a + b + c + d
}
