// Package devicetest is the conformance suite of devices (C14). It tests any
// implementation of the required interfaces of package device, including the errors for misuse,
// and of the optional ones Reserver, HostImporter, Timer and Tracer.
// Kernels differ by target, so the test of a device provides the few programs that the
// suite runs (see Suite.Program).
package devicetest

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"pwc/program"
	"pwc/runtime/device"
)

// Names of the programs that the suite runs. N is their symbol, with the guard
// 1 <= N <= MaxN; tensors are f32[N] unless noted.
const (
	// Add2: parameters x, y; two steps: t = x + y in scratch memory, and result t + y.
	Add2 = "add2"
	// Gather: parameters table f32[TableLen] and index i32[N]; result
	// table[index], zero where the index is out of range. The node is GatherNode.
	Gather = "gather"
	// Extern: parameter x; calls the extern op ExternOp on (x, result), with the
	// attribute "factor", a float of value 1.
	Extern = "extern"

	MaxN       = 4096
	TableLen   = 8
	GatherNode = 5
	ExternOp   = "devicetest::copy"
)

// Suite is a device under test.
type Suite struct {
	// Open opens a device, which t's cleanup closes. It is called more than once,
	// also while another device is open.
	Open func(t testing.TB) device.Device

	// Program returns the program of that name for the device.
	Program func(t testing.TB, name string) *program.Program
}

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	for _, group := range []struct {
		name  string
		tests map[string]func(*env)
	}{
		{"Memory", memoryTests},
		{"State", stateTests},
		{"Stream", streamTests},
		{"Capture", captureTests},
		{"Fork", forkTests},
		{"Template", templateTests},
		{"Rebind", rebindTests},
		{"Timer", timerTests},
		{"Graph", graphTests},
		{"Program", programTests},
		{"Extern", externTests},
	} {
		for name, test := range group.tests {
			t.Run(group.name+"/"+name, func(t *testing.T) {
				e := &env{T: t, suite: s, dev: s.Open(t)}
				e.stream = e.newStream()
				test(e)
			})
		}
	}
}

// env is a device with a stream, and helpers that fail the test.
type env struct {
	*testing.T
	suite  Suite
	dev    device.Device
	stream device.Stream
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// refused checks that err is the typed error want; nil wants any error.
func (e *env) refused(what string, err, want error) {
	e.Helper()
	if err == nil || want != nil && !errors.Is(err, want) {
		e.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (e *env) newStream() device.Stream {
	e.Helper()
	s, err := e.dev.NewStream()
	e.must(err)
	e.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, device.ErrClosed) {
			e.Error(err)
		}
	})
	return s
}

func (e *env) newEvent() device.Event {
	e.Helper()
	v, err := e.dev.NewEvent()
	e.must(err)
	e.Cleanup(func() {
		if err := v.Close(); err != nil && !errors.Is(err, device.ErrClosed) {
			e.Error(err)
		}
	})
	return v
}

// alloc allocates memory, which is freed at the end of the test.
func (e *env) alloc(n int64) device.Buffer {
	e.Helper()
	m, err := e.dev.Alloc(n)
	e.must(err)
	e.Cleanup(func() {
		if err := m.Free(); err != nil && !errors.Is(err, device.ErrFreed) {
			e.Error(err)
		}
	})
	return device.Buffer{Memory: m, Size: n}
}

// zeroed returns memory of zeros. Graphs that copy memory which they wrote before need it to be
// initialized, because compute-sanitizer counts their copies as reads at the launch.
func (e *env) zeroed(n int64) device.Buffer {
	e.Helper()
	return e.filled(make([]byte, n))
}

// filled returns memory with the contents of data.
func (e *env) filled(data []byte) device.Buffer {
	e.Helper()
	b := e.alloc(int64(len(data)))
	e.write(b, data)
	return b
}

func (e *env) write(b device.Buffer, data []byte) {
	e.Helper()
	e.must(e.stream.CopyToDevice(b, data))
	e.must(e.stream.Synchronize())
}

func (e *env) read(b device.Buffer) []byte {
	e.Helper()
	out := make([]byte, b.Size)
	e.must(e.stream.CopyToHost(out, b))
	e.must(e.stream.Synchronize())
	return out
}

// expect checks the contents of memory.
func (e *env) expect(what string, b device.Buffer, want []byte) {
	e.Helper()
	if got := e.read(b); string(got) != string(want) {
		e.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// elsewhere calls f on another goroutine, and returns when f has returned or was ended by must.
func (e *env) elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// capture records the operations of f.
func (e *env) capture(f func()) device.Graph {
	e.Helper()
	return e.captureIn(device.CaptureThreadLocal, f)
}

func (e *env) captureIn(m device.CaptureMode, f func()) device.Graph {
	e.Helper()
	e.must(e.stream.BeginCapture(m))
	f()
	g, err := e.stream.EndCapture()
	e.must(err)
	e.Cleanup(func() {
		if err := g.Close(); err != nil && !errors.Is(err, device.ErrClosed) {
			e.Error(err)
		}
	})
	return g
}

// capturing calls f while the stream captures, drops the graph, and returns the error of f.
func (e *env) capturing(f func() error) (err error) {
	e.Helper()
	e.must(e.stream.BeginCapture(device.CaptureThreadLocal))
	err = f()
	if g, endErr := e.stream.EndCapture(); endErr == nil {
		e.must(g.Close())
	}
	return err
}

// floats encodes f32 elements.
func floats(vs ...float32) []byte {
	var b []byte
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// ints encodes i32 elements.
func ints(vs ...int32) []byte {
	var b []byte
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// sequence returns n bytes that do not repeat with a period that is a power of two.
func sequence(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i/251)
	}
	return b
}
