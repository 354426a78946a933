package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pwc/piecewise"
	"pwc/runtime/cuda/nvrtc"
)

func TestDiff(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"", "", ""},
		{"a\nb\n", "a\nb\n", " a b"},
		{"a\nb\nc\n", "a\nx\nc\n", " a-b+x c"},
		{"a\nb\nc\nd\n", "b\nd\ne\n", "-a b-c d+e"},
		{"", "a\n", "+a"},
		{"a\n", "", "-a"},
	} {
		got := ""
		for _, l := range diff(c.before, c.after) {
			got += l.Mark + l.Text
		}
		if got != c.want {
			t.Errorf("diff of %q and %q is %q, want %q", c.before, c.after, got, c.want)
		}
	}
}

// Kept and removed lines are the text before, kept and added ones the text after.
func TestDiffIsOfBoth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c", "d"}))
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		var before, after []string
		for _, l := range diff(strings.Join(a, "\n"), strings.Join(b, "\n")) {
			if l.Mark != "+" {
				before = append(before, l.Text)
			}
			if l.Mark != "-" {
				after = append(after, l.Text)
			}
		}
		if !slices.Equal(before, a) || !slices.Equal(after, b) {
			t.Fatalf("%v and %v come back as %v and %v", a, b, before, after)
		}
	})
}

func TestCommonPath(t *testing.T) {
	for _, c := range [][3]string{
		{"model.layers.0.mlp", "model.layers.0.self_attn", "model.layers.0"}, {"model.layers.1", "model.layers.10", "model.layers"},
		{"a.b", "a.b", "a.b"}, {"a.b", "a.b.c", "a.b"}, {"a", "b", ""},
	} {
		if got := commonPath(c[0], c[1]); got != c[2] {
			t.Errorf("%s and %s share %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

// Records of .nv.info by hand: one without bytes, one of another kernel, then the kernel's.
func TestRegistersOf(t *testing.T) {
	info := []byte{3, 0x1c, 0, 0, 4, 0x2f, 8, 0, 5, 0, 0, 0, 99, 0, 0, 0, 4, 0x2f, 8, 0, 7, 0, 0, 0, 40, 0, 0, 0}
	if got := registersOf(info, func(symbol uint32) bool { return symbol == 7 }); got != 40 {
		t.Errorf("%d registers, want 40", got)
	}
	for n := range info {
		registersOf(info[:n], func(uint32) bool { return true }) // must not panic
	}
}

// A kernel with 256 bytes of shared memory, compiled.
func TestResources(t *testing.T) {
	c := nvrtc.Deferred(nvrtc.Options{}, "--std=c++17")
	cubin, _, err := c.Compile(context.Background(), `extern "C" __global__ void k(float *x) {
  __shared__ float s[64];
  s[threadIdx.x & 63] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[63 - (threadIdx.x & 63)];
}`, "k.cu", "sm_80")
	if err != nil {
		if os.Getenv("PWC_REQUIRE_NVRTC") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	registers, shared := resources(cubin, "k")
	if registers < 4 || registers > 255 || shared < 256 {
		t.Errorf("%d registers and %d bytes of shared memory", registers, shared)
	}
	if r, s := resources(cubin, "other"); r != 0 || s != 0 {
		t.Errorf("another kernel has %d registers and %d bytes", r, s)
	}
}

// FuzzResources: resources does not panic, whatever the bytes are.
func FuzzResources(f *testing.F) {
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) { resources(b, "k") })
}

// A trace has no events above its limit, and says how many it lacks.
func TestTracerCountsLostEvents(t *testing.T) {
	tr := NewTracer()
	tr.limit = 2
	for range 5 {
		tr.Ran("f", 1, 1, piecewise.RunEager)
	}
	var b bytes.Buffer
	if _, err := tr.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.Count(text, `"ran @f"`) != 2 || !strings.Contains(text, `"otherData":{"lost_events":3}`) {
		t.Errorf("want 2 events and 3 lost ones: %s", text)
	}
}

func TestTracer(t *testing.T) {
	now := time.Unix(0, 0)
	tr := newTracer(func() time.Time { return now })
	step := func() { now = now.Add(time.Millisecond) }
	tr.Enter("outer")
	step()
	tr.Enter("inner")
	step()
	tr.Leave()
	step()
	tr.Leave()
	tr.Leave() // of nothing
	tr.Ran("f", 3, 4, piecewise.RunPiecewise)
	tr.Span("kernel", now, 2*time.Millisecond)
	tr.Memory(map[string]int64{"arena": 64})
	tr.Enter("open")
	step()
	var b bytes.Buffer
	if _, err := tr.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Events []struct {
			Name    string
			Ph      string
			Ts, Dur float64
			Tid     int
			Args    map[string]any
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	at := map[string][3]float64{}
	for _, e := range got.Events {
		at[e.Name] = [3]float64{e.Ts, e.Dur, float64(e.Tid)}
	}
	for name, want := range map[string][3]float64{
		"inner": {1000, 1000, hostTrack}, "outer": {0, 3000, hostTrack}, "ran @f": {3000, 0, hostTrack}, "kernel": {3000, 2000, deviceTrack},
		"device memory": {3000, 0, 0}, "open": {3000, 1000, hostTrack},
	} {
		if at[name] != want {
			t.Errorf("%s at %v, want %v", name, at[name], want)
		}
	}
}
