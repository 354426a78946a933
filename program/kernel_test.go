package program_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"pwc/program"
)

// TestPTX compresses and decompresses PTX. PTX that is cut off, too long or of another length than
// declared is damaged.
func TestPTX(t *testing.T) {
	text := strings.Repeat("\tld.param.u64 \t%rd1, [add_param_0];\n", 1000)
	pack := func(text string) program.Kernel {
		k, err := program.CUDAKernel("add", []byte("\x7fELF"), []byte(text))
		if err != nil || k.Name != "add" || k.Format != program.KernelCUDA || string(k.Code) != "\x7fELF" {
			t.Fatalf("%v, %v", k, err)
		}
		return k
	}
	for _, s := range []string{text, "x"} {
		k := pack(s)
		if !bytes.Equal(k.PTX, pack(s).PTX) {
			t.Error("the same text is compressed to other bytes")
		}
		if got, err := k.PTXText(); err != nil || string(got) != s {
			t.Errorf("%d bytes of %d, %v", len(got), len(s), err)
		}
	}
	packed := pack(text).PTX
	if len(packed) > len(text)/5 {
		t.Errorf("%d bytes are packed into %d", len(text), len(packed))
	}
	if k := pack(""); k.PTX != nil {
		t.Errorf("%d bytes of no PTX", len(k.PTX))
	}
	other := program.Kernel{PTX: stored("abc")}
	if got, err := other.PTXText(); err != nil || string(got) != "abc" {
		t.Errorf("a stored block: %q, %v", got, err)
	}
	announce := func(n uint32) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, n), packed[4:]...)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "a length alone": packed[:4], "half": packed[:len(packed)/2], "no DEFLATE": append(packed[:4:4], 0xff, 0xff, 0xff),
		"shorter than it says": announce(uint32(len(text) + 1)), "longer than it says": announce(uint32(len(text) - 1)), "too long": announce(program.MaxPTX + 1),
	} {
		k := program.Kernel{Name: "add", PTX: bad}
		if _, err := k.PTXText(); !errors.Is(err, program.ErrCorrupt) || !strings.Contains(err.Error(), "add") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := program.CUDAKernel("add", nil, make([]byte, program.MaxPTX+1)); err == nil {
		t.Error("more than MaxPTX was packed")
	}
}

func TestAlone(t *testing.T) {
	k := program.Kernel{Name: "paged", Format: program.KernelCUDA, Code: []byte("\x7fELF")}
	p := program.Alone("cuda:sm_90", k)
	if err := p.Validate(); err != nil || p.Target != "cuda:sm_90" || len(p.Kernels) != 1 || p.Kernels[0].Name != "paged" || len(p.Steps) > 0 {
		t.Errorf("%v, %v", p, err)
	}
}
