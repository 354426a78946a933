package cuda_test

import (
	"testing"

	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
)

// gpuBench returns a bench on the GPU, and a bound program that launches two kernels.
func gpuBench(b *testing.B) (*bench, device.BoundLaunch) {
	o := newBench(b, openGPU(b), nil)
	o.rig = gpuRigs(b, o.dev)["ptx"]
	x := o.load(devicetest.Add2)
	p, out := o.alloc(floats(1)), o.alloc(floats(0))
	return o, o.bind(x, 1, out, p, p)
}

// issue measures the host's time of a call. It synchronizes every 256 calls, outside of the
// measured time, so that calls do not wait for room in the driver's queue.
func issue(b *testing.B, o *bench, call func() error) {
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		must(b, call())
		if i++; i%256 == 0 {
			b.StopTimer()
			must(b, o.s.Synchronize())
			b.StartTimer()
		}
	}
	must(b, o.s.Synchronize())
}

func BenchmarkLaunch(b *testing.B) {
	o, l := gpuBench(b)
	issue(b, o, func() error { return o.s.Launch(l) })
}

func BenchmarkReplay(b *testing.B) {
	o, l := gpuBench(b)
	g := o.capture(func() {
		for range 5 {
			must(b, o.s.Launch(l))
		}
	})
	b.Run("alone", func(b *testing.B) { issue(b, o, func() error { return o.s.LaunchGraph(g) }) })
	b.Run("entered", func(b *testing.B) {
		must(b, o.s.Enter())
		defer o.s.Leave()
		issue(b, o, func() error { return o.s.LaunchGraph(g) })
	})
}

func BenchmarkCopyToDevice(b *testing.B) {
	o, _ := gpuBench(b)
	h, buf := o.pinned(make([]byte, 1024)), o.alloc(make([]byte, 1024))
	issue(b, o, func() error { return o.s.CopyToDevice(buf, h.Bytes()) })
}

func BenchmarkRecord(b *testing.B) {
	o, _ := gpuBench(b)
	e := o.event()
	issue(b, o, func() error { return o.s.Record(e) })
}

func BenchmarkSynchronize(b *testing.B) {
	o, _ := gpuBench(b)
	issue(b, o, o.s.Synchronize)
}

func BenchmarkBind(b *testing.B) {
	o, l := gpuBench(b)
	x := l.Executable()
	p, out, scratch := o.alloc(floats(1)), o.alloc(floats(0)), o.alloc(make([]byte, 256))
	args := device.Args{Params: []device.Buffer{p, p}, Results: []device.Buffer{out}, Scratch: scratch}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Bind([]int64{1}, args); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCapture measures one graph of ten kernels: capture, check, instantiation, upload and
// close.
func BenchmarkCapture(b *testing.B) {
	o, l := gpuBench(b)
	for b.Loop() {
		g := o.capture(func() {
			for range 5 {
				must(b, o.s.Launch(l))
			}
		})
		must(b, g.Close())
	}
}

// BenchmarkWeights copies memory that is not pinned, as weights are.
func BenchmarkWeights(b *testing.B) {
	o, _ := gpuBench(b)
	data := make([]byte, 256<<20)
	buf := o.alloc(data)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		must(b, o.s.CopyToDevice(buf, data))
	}
}

// BenchmarkCaptureSizes captures as many graphs of ten kernels as a model of 32
// layers has for the default sizes, and reports the device memory of one graph.
func BenchmarkCaptureSizes(b *testing.B) {
	const graphs = 51 * 33
	o, l := gpuBench(b)
	for b.Loop() {
		before, err := o.dev.FreeBytes()
		must(b, err)
		all := make([]device.Graph, graphs)
		for i := range all {
			all[i] = o.capture(func() {
				for range 5 {
					must(b, o.s.Launch(l))
				}
			})
		}
		must(b, o.s.Synchronize())
		after, err := o.dev.FreeBytes()
		must(b, err)
		b.ReportMetric(float64(before-after)/graphs, "bytes/graph")
		for _, g := range all {
			must(b, g.Close())
		}
	}
}
