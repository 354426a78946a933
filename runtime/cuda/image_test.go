package cuda_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"pwc/runtime/cuda/nvrtc"
)

var update = flag.Bool("update", false, "write testdata/kernels.ptx and kernels.sm_90.cubin, compiled by the machine's NVRTC")

// TestImages compiles testdata/kernels.cu. With NVRTC 11.8, which made the images in testdata, it compares
// them.
func TestImages(t *testing.T) {
	l, err := nvrtc.Open(nvrtc.Options{})
	if err != nil {
		if os.Getenv("PWC_REQUIRE_NVRTC") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "kernels.cu"))
	must(t, err)
	for arch, file := range map[string]string{"compute_80": "kernels.ptx", "sm_90": "kernels.sm_90.cubin"} {
		code, err := l.Compile(nvrtc.Source{Name: "kernels.cu", Text: string(text)}, nvrtc.CompileOptions{Arch: arch})
		must(t, err)
		data := code.Cubin
		if data == nil {
			data = code.PTX
		}
		path := filepath.Join("testdata", file)
		if *update {
			must(t, os.WriteFile(path, data, 0o666))
		}
		have, err := os.ReadFile(path)
		must(t, err)
		if major, minor := l.Version(); major != 11 || minor != 8 {
			t.Logf("%s is of NVRTC 11.8, here is %d.%d", file, major, minor)
		} else if !bytes.Equal(have, data) {
			t.Errorf("%s differs from the code of kernels.cu; run the test with -update", file)
		}
	}
}
