package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pwc/attention"
	attn "pwc/attention/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda/nvrtc"
	"pwc/runtime/device"
)

// compiler implements Compiler by NVRTC. It fails if NVRTC writes to its log.
type compiler struct{ lib *nvrtc.Library }

func (c compiler) Compile(_ context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	code, err := c.lib.Compile(nvrtc.Source{Name: name, Text: source}, nvrtc.CompileOptions{Arch: arch, Flags: []string{"--std=c++17"}})
	if err == nil && code.Log != "" {
		err = fmt.Errorf("%s: log %q", name, code.Log)
	}
	return code.Cubin, code.PTX, err
}

func (c compiler) Supports(arch string) bool { return c.lib.Compiler().Supports(arch) }

// openNVRTC opens the machine's NVRTC. If there is none, it skips the test, or fails it with
// PWC_REQUIRE_NVRTC=1.
func openNVRTC(t testing.TB) compiler {
	t.Helper()
	l, err := nvrtc.Open(nvrtc.Options{})
	if err != nil {
		var missing *nvrtc.NotFoundError
		if !errors.As(err, &missing) || os.Getenv("PWC_REQUIRE_NVRTC") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return compiler{l}
}

func shapeOf(dim, group, block int, dt, kv dtype.DType) *attention.Shape {
	return &attention.Shape{Rows: 8, Heads: 2 * group, KVHeads: 2, HeadDim: dim, Blocks: 4, BlockSize: block, DType: dt, KVDType: kv}
}

// plain has default parameters, except for the scale.
var plain = attention.Params{Scale: 1, Causal: true}

func variants(t testing.TB, target string, s *attention.Shape, p attention.Params) []attn.Variant {
	t.Helper()
	v, err := attn.VariantsOf(s, &p, target)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestCompile compiles kernels with and without tensor cores, with and without attributes, for the oldest architecture
// and for a newer one. It needs no GPU.
func TestCompile(t *testing.T) {
	c := openNVRTC(t)
	compile := func(target string, params attention.Params, shapes ...*attention.Shape) {
		for _, s := range shapes {
			for _, v := range variants(t, target, s, params) {
				p, err := attn.Compile(context.Background(), c, target, v)
				if err != nil {
					t.Error(err)
					continue
				}
				k := &p.Kernels[0]
				ptx, err := k.PTXText()
				if p.Target != target || !strings.HasPrefix(string(k.Code), "\x7fELF") || !strings.Contains(string(ptx), ".entry paged(") {
					t.Errorf("%s: %.20q is no cubin, or %.20q no PTX (%v)", v, k.Code, ptx, err)
				}
			}
		}
	}
	compile("cuda:sm_80", plain, shapeOf(128, 4, 16, dtype.BF16, dtype.BF16), shapeOf(64, 1, 32, dtype.F16, dtype.F16), shapeOf(64, 4, 16, dtype.F32, dtype.F32))
	compile("cuda:sm_90", plain, shapeOf(64, 4, 16, dtype.BF16, dtype.BF16), shapeOf(80, 71, 5, dtype.F16, dtype.F16), shapeOf(19, 3, 7, dtype.F32, dtype.BF16),
		shapeOf(160, 1, 16, dtype.BF16, dtype.F16))
	compile("cuda:sm_90", attention.Params{Scale: -1, Softcap: 30, Window: 8}, shapeOf(256, 2, 16, dtype.BF16, dtype.BF16), shapeOf(64, 4, 16, dtype.F32, dtype.F32))
}

func TestVariantsOf(t *testing.T) {
	for _, c := range []struct {
		target string
		shape  *attention.Shape
		params attention.Params
		want   string
	}{
		{"cuda:sm_90", shapeOf(128, 4, 16, dtype.BF16, dtype.BF16), plain, "paged_bf16_d128_g4_b16_tensor_2x4 paged_bf16_d128_g4_b16_tensor_large_2x4 paged_bf16_d128_g4_b16_tensor_3x4 paged_bf16_d128_g4_b16_tensor_4x2"},
		{"cuda:sm_90", shapeOf(128, 4, 16, dtype.BF16, dtype.F32), plain, "paged_bf16_kvf32_d128_g4_b16"},
		{"cuda:sm_90", shapeOf(128, 4, 16, dtype.F32, dtype.F32), plain, "paged_f32_d128_g4_b16"},
		{"cuda:sm_90", shapeOf(72, 1, 16, dtype.F16, dtype.F16), plain, "paged_f16_d72_g1_b16"},
		{"cuda:sm_90a", shapeOf(256, 1, 16, dtype.F16, dtype.F16), plain, "paged_f16_d256_g1_b16_tensor_1x4 paged_f16_d256_g1_b16_tensor_large_1x4"},
		{"cuda:sm_86", shapeOf(256, 1, 16, dtype.F16, dtype.F16), plain, "paged_f16_d256_g1_b16"}, // 132 KiB of shared memory
		{"cuda:sm_90", shapeOf(64, 4, 16, dtype.BF16, dtype.BF16), plain, "paged_bf16_d64_g4_b16_tensor_2x8 paged_bf16_d64_g4_b16_tensor_large_2x4 paged_bf16_d64_g4_b16_tensor_4x4 paged_bf16_d64_g4_b16_tensor_5x4 paged_bf16_d64_g4_b16_tensor_6x2"},
		{"cuda:sm_90", shapeOf(128, 17, 16, dtype.BF16, dtype.BF16), plain, "paged_bf16_d128_g17_b16_tensor_large_2x4 paged_bf16_d128_g17_b16_tensor_large_3x4"}, // no small tiles
		{"cuda:sm_86", shapeOf(64, 4, 16, dtype.BF16, dtype.BF16), plain, "paged_bf16_d64_g4_b16_tensor_1x8 paged_bf16_d64_g4_b16_tensor_large_2x4 paged_bf16_d64_g4_b16_tensor_2x4 paged_bf16_d64_g4_b16_tensor_3x2"},
		{"cuda:sm_90", shapeOf(128, 4, 16, dtype.BF16, dtype.BF16), attention.Params{Scale: 1, Causal: true, Window: 7, Softcap: 30}, "paged_bf16_d128_g4_b16_window_softcap_tensor_2x4 paged_bf16_d128_g4_b16_window_softcap_tensor_large_2x4 paged_bf16_d128_g4_b16_window_softcap_tensor_3x4 paged_bf16_d128_g4_b16_window_softcap_tensor_4x2"},
		{"cuda:sm_90", shapeOf(128, 17, 1<<21-1, dtype.BF16, dtype.BF16), plain, "paged_bf16_d128_g17_b2097151_tensor_large_2x4 paged_bf16_d128_g17_b2097151_tensor_large_3x4"},
		{"cuda:sm_90", shapeOf(128, 17, 1<<21, dtype.BF16, dtype.BF16), plain, "paged_bf16_d128_g17_b2097152"}, // 2 GiB from one block of two heads to the next
		{"cuda:sm_90", shapeOf(128, 4, 16, dtype.F32, dtype.F32), attention.Params{Scale: -1}, "paged_f32_d128_g4_b16_bidirectional_negative"},
	} {
		if got := fmt.Sprint(variants(t, c.target, c.shape, c.params)); got != "["+c.want+"]" {
			t.Errorf("%s: %s, want %s", c.target, got, c.want)
		}
	}
	for target, want := range map[string]string{"cuda:sm_75": "older than sm_80", "host": "not of the form", "cuda:sm_90": "room for 512"} {
		if _, err := attn.VariantsOf(shapeOf(513, 1, 16, dtype.F32, dtype.F32), &plain, target); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

// TestArchSpecific: for heads of 64 and 128, the kernel of large tiles has arch-specific code for sm_90a if there are
// enough stages and registers for wgmma, and Compile compiles it for sm_90a.
func TestArchSpecific(t *testing.T) {
	for _, c := range []struct {
		target string
		shape  *attention.Shape
		want   string
	}{
		{"cuda:sm_90", shapeOf(128, 4, 16, dtype.BF16, dtype.BF16), ", sm_90a, , "},
		{"cuda:sm_90", shapeOf(64, 4, 16, dtype.F16, dtype.F16), ", sm_90a, , , "}, // after these, blocks of four warps (four and five on a multiprocessor) and of two warps
		{"cuda:sm_90", shapeOf(128, 71, 16, dtype.BF16, dtype.BF16), "sm_90a, "},
		{"cuda:sm_90", shapeOf(96, 4, 16, dtype.F16, dtype.F16), ", , , , "},
		{"cuda:sm_90", shapeOf(192, 4, 16, dtype.F16, dtype.F16), ", "},
		{"cuda:sm_90", shapeOf(256, 4, 16, dtype.F16, dtype.F16), ", "},
		{"cuda:sm_90", shapeOf(128, 4, 16, dtype.F32, dtype.F32), ""},
		{"cuda:sm_80", shapeOf(128, 4, 16, dtype.BF16, dtype.BF16), ", , "}, // two stages
	} {
		var own []string
		for _, v := range variants(t, c.target, c.shape, plain) {
			own = append(own, v.ArchSpecific())
			if has := strings.Contains(v.Source(), "#define WARPGROUPS 1\n"); has != (v.ArchSpecific() != "") {
				t.Errorf("%s: arch-specific %q, and warpgroups %v", v, v.ArchSpecific(), has)
			}
		}
		if got := strings.Join(own, ", "); got != c.want {
			t.Errorf("%s, %v: %q, want %q", c.target, c.shape, got, c.want)
		}
	}
	v := variants(t, "cuda:sm_90", shapeOf(128, 4, 16, dtype.BF16, dtype.BF16), plain)[1]
	p, err := attn.Compile(t.Context(), maker{}, "cuda:sm_90", v)
	if err != nil || string(p.Kernels[0].Code) != "sm_90a" {
		t.Fatalf("%v: code for %s", err, p.Kernels[0].Code)
	}
	if ptx, err := p.Kernels[0].PTXText(); err != nil || string(ptx) != "compute_90" {
		t.Errorf("%v: PTX for %s", err, ptx)
	}
}

// maker is a compiler that supports every architecture, and returns its name as the code.
type maker struct{}

func (maker) Supports(string) bool { return true }

func (maker) Compile(_ context.Context, _, _, arch string) (cubin, ptx []byte, err error) {
	return []byte(arch), []byte(arch), nil
}

// image is a program with the kernel, for the fake driver.
var image = program.Alone("cuda:sm_90", program.Kernel{Name: "paged", Format: program.KernelCUDA, Code: fake.Image("paged")})

// TestLimitsAreNotInKeys: the variants of an op do not depend on the limits in its options.
func TestLimitsAreNotInKeys(t *testing.T) {
	var asked []attn.Variant
	for _, o := range []attn.Options{{MaxRows: 8, MaxBlocks: 1}, {MaxRows: 4096, MaxRequests: 7, MaxBlocks: 8192}} {
		r := newFakeRig(t, fake.Eager)
		o.Code = func(_ context.Context, v attn.Variant) (*program.Program, error) {
			asked = append(asked, v)
			return image, nil
		}
		op, err := attn.New(r.dev, o)
		r.must(err)
		_, err = op.ScratchBytes(r.args, nil)
		r.must(errors.Join(err, op.Close()))
	}
	if len(asked) != 2 || asked[0] != asked[1] {
		t.Errorf("asked for %+v", asked)
	}
}

// TestVariantsOfTheTarget: an op's variants are those of Options.Target, also if the device has more
// shared memory.
func TestVariantsOfTheTarget(t *testing.T) {
	s := shapeOf(256, 1, 16, dtype.F16, dtype.F16)
	args := []device.Tensor{}
	for _, dims := range [][]int64{{8, 2, 256}, {8, 2, 256}, {8, 2, 256}, {4, 2, 16, 2, 256}, {8, 2, 256}} {
		args = append(args, device.Tensor{DType: dtype.F16, Shape: dims})
	}
	for target, made := range map[string]string{"": "cuda:sm_90", "cuda:sm_90": "cuda:sm_90", "cuda:sm_86": "cuda:sm_86"} {
		r := newFakeRig(t, fake.Eager)
		var asked []attn.Variant
		op, err := attn.New(r.dev, attn.Options{MaxRows: 8, MaxBlocks: 1, Target: target, Code: func(_ context.Context, v attn.Variant) (*program.Program, error) {
			asked = append(asked, v)
			return image, nil
		}})
		r.must(err)
		_, err = op.ScratchBytes(args, nil)
		r.must(errors.Join(err, op.Close()))
		if want := variants(t, made, s, plain); !slices.Equal(asked, want) {
			t.Errorf("%q: asked for %+v, want %+v", target, asked, want)
		}
	}
	if variants(t, "cuda:sm_86", s, plain)[0] == variants(t, "cuda:sm_90", s, plain)[0] {
		t.Error("both targets have one kernel: nothing was tested")
	}
	r := newFakeRig(t, fake.Eager)
	_, err := attn.New(r.dev, attn.Options{MaxRows: 8, MaxBlocks: 1, Target: "cuda:sm_75", Code: func(context.Context, attn.Variant) (*program.Program, error) { return image, nil }})
	r.refuses("older than sm_80", err)
}

// TestKeysGoFirst: small tiles load cached keys with the policy evict-first, because other blocks seldom read
// them; large tiles, of which several blocks read the same keys, do not.
func TestKeysGoFirst(t *testing.T) {
	c := compiler{cudatest.NVRTC(t)}
	for _, v := range variants(t, "cuda:sm_90", shapeOf(64, 4, 16, dtype.BF16, dtype.BF16), plain) {
		_, ptx, err := c.Compile(context.Background(), v.Source(), "paged.cu", "sm_90")
		if err != nil {
			t.Fatal(err)
		}
		once, often := strings.Count(string(ptx), "cp.async.cg.shared.global.L2::cache_hint"), strings.Count(string(ptx), "cp.async.cg.shared.global [")
		// Small tiles copy few keys of the step itself; these copies have no hint.
		if v.Large && once > 0 || !v.Large && (often == 0 || once <= often) {
			t.Errorf("%s: %d copies with the policy evict-first, %d without", v, once, often)
		}
	}
}
