package cuda_test

import (
	"bytes"
	"strings"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/ir/dim"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// addOf returns a program that launches the kernel add once, with these launch attributes.
func (r *rig) addOf(t *testing.T, attrs ...program.Attr) *program.Program {
	t.Helper()
	p := r.program(t, "add2")
	p.Buffers = append(p.Buffers[:2:2], p.Buffers[3])
	p.Steps = []program.Step{{Args: []int32{0, 1, 2}, Launch: launch(t, attrs...)}}
	return p
}

// TestDimsAreHeldAgainstBuffers passes the kernel add a number of elements for buffers of 4
// elements. Encoding, validation and loading accept any number. Bind refuses one that is
// larger than the buffers, as the kernel would access memory behind them, unless AttrFree
// says that the dim is no number of elements.
func TestDimsAreHeldAgainstBuffers(t *testing.T) {
	r := fakeRig()
	d := open(t, newFake(t, fake.Options{}))
	for name, test := range map[string]struct {
		dim  string
		free bool
		want string // part of the error; "": no error
	}{
		"right":              {"N", false, ""},
		"fewer":              {"N-1", false, ""},
		"a constant":         {"128", false, "dim 0, 128 = 128, is more than the 4 elements of the largest buffer"},
		"one more":           {"N+1", false, "dim 0, N + 1 = 5"},
		"by the device":      {"N+device.sms", false, "is more than the 4 elements"},
		"free":               {"128", true, ""},
		"a fitting constant": {"4", false, ""},
		"an overflow":        {"N*4611686018427387904", false, "overflow"},
	} {
		var attrs []program.Attr
		e, err := dim.Parse(test.dim)
		must(t, err)
		attrs = append(attrs, dimsAttr(cuda.AttrDims, e))
		if test.free {
			attrs = append(attrs, dimsAttr(cuda.AttrFree, dim.Const(0)))
		}
		blob, err := r.addOf(t, attrs...).Encode()
		must(t, err)
		p, err := program.Decode(blob)
		must(t, err)
		x, err := d.Load(p, nil)
		must(t, err)
		m, err := d.Alloc(8192)
		must(t, err)
		seg := device.Buffer{Memory: m, Size: 8192}
		args := device.Args{Params: []device.Buffer{seg.Slice(0, 16), seg.Slice(2048, 16)}, Results: []device.Buffer{seg.Slice(4096, 16)}}
		_, err = x.Bind([]int64{4}, args)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		must(t, x.Close())
		must(t, m.Free())
	}
}

// TestNeighboursStay: a program changes only its result, not other bytes of the segment.
func TestNeighboursStay(t *testing.T) {
	r := fakeRig()
	d := open(t, newFake(t, fake.Options{}))
	x, err := d.Load(r.addOf(t, dimsAttr(cuda.AttrDims, testkit.Dims(t, "N")...)), nil)
	must(t, err)
	b := newBench(t, d, r)
	seg := b.alloc(bytes.Repeat([]byte{0x3f}, 8192))
	l, err := x.Bind([]int64{4}, device.Args{Params: []device.Buffer{seg.Slice(0, 16), seg.Slice(2048, 16)}, Results: []device.Buffer{seg.Slice(4096, 16)}})
	must(t, err)
	must(t, b.s.Launch(l))
	b.expect("before the result", seg.Slice(0, 4096), bytes.Repeat([]byte{0x3f}, 4096))
	b.expect("behind the result", seg.Slice(4096+16, 4096-16), bytes.Repeat([]byte{0x3f}, 4096-16))
	must(t, b.s.Close())
	must(t, seg.Memory.Free())
	must(t, x.Close())
}

// TestFreeDims: Load refuses AttrFree with indices that are out of range, repeated or not constant.
func TestFreeDims(t *testing.T) {
	r := fakeRig()
	d := open(t, newFake(t, fake.Options{}))
	for name, list := range map[string][]dim.Dim{"out of range": testkit.Consts(1), "negative": testkit.Consts(-1), "twice": testkit.Consts(0, 0), "no constant": testkit.Dims(t, "N")} {
		if _, err := d.Load(r.addOf(t, dimsAttr(cuda.AttrDims, testkit.Dims(t, "N")...), dimsAttr(cuda.AttrFree, list...)), nil); err == nil || !strings.Contains(err.Error(), "is not an index of the 1 dims") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestParametersOfOldDrivers holds launches to the parameters that PTX declares, if the driver
// cannot be asked for them.
func TestParametersOfOldDrivers(t *testing.T) {
	r := ptxRig(t)
	d := open(t, newFake(t, fake.Options{Version: 12030}))
	x, err := d.Load(r.addOf(t, dimsAttr(cuda.AttrDims, testkit.Dims(t, "N")...)), nil)
	must(t, err)
	must(t, x.Close())
	if _, err := d.Load(r.addOf(t), nil); err == nil || !strings.Contains(err.Error(), "4 parameters, launched with 3") {
		t.Errorf("a launch with a parameter less: %v", err)
	}
}
