package params

import (
	"bytes"
	"os"
	"slices"
	"testing"
)

// counts has the number of parameters of each kernel in testdata/kernels.cu, counted by hand. They are
// pointers and 64-bit integers.
var counts = map[string]int{"add": 4, "scale": 4, "gather": 6, "shared": 2, "wild": 2}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../../testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOfCubin(t *testing.T) {
	cubin, ptx := read(t, "kernels.sm_90.cubin"), read(t, "kernels.ptx")
	for name, n := range counts {
		want := slices.Repeat([]int64{8}, n)
		if got, ok := OfCubin(cubin, name); !ok || !slices.Equal(got, want) {
			t.Errorf("cubin: %s: %v, %v", name, got, ok)
		}
		if got, ok := OfPTX(ptx, name); !ok || !slices.Equal(got, want) {
			t.Errorf("PTX: %s: %v, %v", name, got, ok)
		}
	}
	for _, name := range []string{"", "ad", "addx", "none"} {
		if got, ok := OfCubin(cubin, name); ok {
			t.Errorf("cubin: %q: %v", name, got)
		}
		if got, ok := OfPTX(ptx, name); ok {
			t.Errorf("PTX: %q: %v", name, got)
		}
	}
}

func TestOfPTX(t *testing.T) {
	for text, want := range map[string][]int64{
		".visible .entry k()\n{": {},
		".entry k {":             {},
		".entry k2(.param .u64 a) .entry k(\n.param .u32 a\n,.param .f64 b)":        {4, 8},
		".entry k(.param .align 8 .b8 a[24], .param .u64 .ptr .global .align 16 b)": {24, 8},
		".entry k(.param .b8 a)": {1},
	} {
		if got, ok := OfPTX([]byte(text), "k"); !ok || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", ".entry", ".entry k", ".entry k(", ".entry k)", ".entry k(x)", ".entry k(.param a)", ".entry k(.param .u64 a[x])", ".entry k(.param .u99999999999 a)"} {
		if got, ok := OfPTX([]byte(text), "k"); ok {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// FuzzParams: each function returns the same for the same bytes, and no negative size.
func FuzzParams(f *testing.F) {
	f.Add(read(f, "kernels.sm_90.cubin"))
	f.Add(read(f, "kernels.ptx"))
	f.Fuzz(func(t *testing.T, code []byte) {
		for _, read := range []func([]byte, string) ([]int64, bool){OfCubin, OfPTX} {
			sizes, ok := read(code, "add")
			if again, ok2 := read(bytes.Clone(code), "add"); ok != ok2 || !slices.Equal(sizes, again) {
				t.Fatal("the second call returns other sizes")
			}
			for _, n := range sizes {
				if ok && n < 0 {
					t.Fatalf("%v", sizes)
				}
			}
		}
	})
}
