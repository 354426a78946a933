package cli

import (
	"runtime"
	"sync"
	"time"

	"pwc/runtime/device"
)

// meter measures what a device does on one stream.
type meter interface {
	// mark marks this point of the stream.
	mark() error

	// intervals waits for the stream, returns the time of the device between each
	// two marks that follow one another, and forgets the marks. The slice is valid
	// until the next call.
	intervals() ([]time.Duration, error)

	// hold keeps the stream waiting for so long, so that what is enqueued meanwhile
	// runs without waiting for the host. A device that does what is enqueued at once
	// does not wait.
	hold(d time.Duration) error

	// bandwidth returns the bytes a second at which the device reads its memory, the
	// best of several tries.
	bandwidth() (float64, error)

	// free returns the bytes of memory that the device has left; false: it does not
	// know.
	free() (int64, bool, error)

	close() error
}

// hostMeter measures the host device, which has done what is enqueued when the
// call returns.
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

// hostReadBytes is what is read to measure the host's memory: more than caches
// hold, of all processors together.
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

// sum adds up elements in several accumulators, so that memory bandwidth bounds it and not the
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
