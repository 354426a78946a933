package cuda_test

import (
	"testing"

	"go.uber.org/goleak"

	"pwc/internal/cuda/fake"
	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance holds the device to the suite on the fake, which executes work in several
// orders.
func TestConformance(t *testing.T) {
	schedules := map[string]func() fake.Schedule{
		"lazy":    func() fake.Schedule { return fake.Lazy },
		"eager":   func() fake.Schedule { return fake.Eager },
		"random1": func() fake.Schedule { return fake.Random(1) },
		"random2": func() fake.Schedule { return fake.Random(2) },
	}
	for kernels, r := range map[string]*rig{"go": fakeRig(), "ptx": ptxRig(t)} {
		for name, schedule := range schedules {
			if kernels == "ptx" && name != "random1" {
				continue // the order does not depend on the form of the kernels
			}
			t.Run(kernels+"/"+name, func(t *testing.T) {
				devicetest.Run(t, devicetest.Suite{
					Open: func(t testing.TB) device.Device {
						return open(t, newFake(t, fake.Options{Schedule: schedule()}))
					},
					Program: r.program,
				})
			})
		}
	}
}

// TestConformanceGPU holds the device to the suite on the machine's GPU.
func TestConformanceGPU(t *testing.T) {
	for name, r := range gpuRigs(t, openGPU(t)) {
		t.Run(name, func(t *testing.T) {
			devicetest.Run(t, devicetest.Suite{
				Open:    func(t testing.TB) device.Device { return openGPU(t) },
				Program: r.program,
			})
		})
	}
}
