package cuda_test

import (
	"slices"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/runtime/cuda"
)

// TestDescribe checks the description of two devices, and that Open finds the same name and target for
// the first.
func TestDescribe(t *testing.T) {
	drv := newFake(t, fake.Options{Devices: 2, Major: 8, Minor: 9, MemoryBytes: 1 << 20, Version: 12060})
	m, err := cuda.Describe(cuda.Options{Driver: drv})
	must(t, err)
	if len(m.Unreached) != 0 {
		t.Errorf("%v are out of reach", m.Unreached)
	}
	if m.Library != "fake" || m.Major != 12 || m.Minor != 6 || len(m.Devices) != 2 {
		t.Fatalf("%+v", m)
	}
	if want := []string{"0000:10:00.0", "0000:11:00.0"}; !slices.Equal(m.PCI, want) {
		t.Errorf("addresses %q, want %q", m.PCI, want)
	}
	for i, d := range m.Devices {
		if d.Target != "cuda:sm_89" || d.MemoryBytes != 1<<20 || d.Name == "" {
			t.Errorf("device %d: %+v", i, d)
		}
	}
	if d := open(t, drv); d.Info().Name != m.Devices[0].Name || d.Info().Target != m.Devices[0].Target {
		t.Errorf("open finds %+v", d.Info())
	}
}

// TestDescribeUnreached: without peer access no device reaches another.
func TestDescribeUnreached(t *testing.T) {
	m, err := cuda.Describe(cuda.Options{Driver: newFake(t, fake.Options{Devices: 2, NoPeers: true})})
	must(t, err)
	if !slices.Equal(m.Unreached, [][2]int{{0, 1}, {1, 0}}) {
		t.Errorf("%v are out of reach", m.Unreached)
	}
}

// TestDescribeFails makes each driver call of Describe fail. Describe returns an error.
func TestDescribeFails(t *testing.T) {
	for n := 1; ; n++ {
		drv := newFake(t, fake.Options{Devices: 2})
		drv.Fail(n, 2)
		_, err := cuda.Describe(cuda.Options{Driver: drv})
		if drv.Failed() == "" {
			if err != nil || n < 5 {
				t.Errorf("%v after %d calls, of which none failed", err, n)
			}
			return
		}
		if err == nil {
			t.Errorf("call %d (%s) fails: no error", n, drv.Failed())
		}
	}
}
