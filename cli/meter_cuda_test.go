//go:build !nocuda

package cli

import (
	"bytes"
	"os"
	"testing"

	"pwc/runtime/cuda/nvrtc"
)

// The kernels of the meter compile for sm_80 and sm_90, and the compiler does not remove the loads of the
// kernel that reads.
func TestMeterCompiles(t *testing.T) {
	l, err := nvrtc.Open(nvrtc.Options{})
	if err != nil {
		if os.Getenv("PWC_REQUIRE_NVRTC") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	for _, arch := range []string{"sm_80", "sm_90"} {
		_, code, err := l.Compiler("--std=c++17").Compile(t.Context(), meterSource, "meter.cu", arch)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(code, []byte("ld.global.cs.v4.u32")); n < 9 {
			t.Errorf("%s: %d loads of 16 bytes, want 8 in the unrolled loop and 1 in the loop for the rest", arch, n)
		}
	}
}
