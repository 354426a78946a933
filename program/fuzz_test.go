package program_test

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"pwc/program"
)

// FuzzDecode: any bytes with a valid checksum give an error, or a valid program with the
// same encoding.
func FuzzDecode(f *testing.F) {
	b := encode(f, example(f))
	f.Add(b[:len(b)-sha256.Size])
	f.Add(b[:8])
	small := encode(f, &program.Program{Target: "host"})
	f.Add(small[:len(small)-sha256.Size])
	f.Fuzz(func(t *testing.T, body []byte) {
		data := signed(body)
		p, err := program.Decode(data)
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Fatalf("a decoded program is invalid: %v", err)
		}
		again, err := p.Encode()
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("the decoded program is encoded as other bytes (%v)", err)
		}
		_ = p.String()
		for i := range p.Kernels {
			k := &p.Kernels[i]
			if text, err := k.PTXText(); err == nil && len(text) > program.MaxPTX {
				t.Fatalf("%d bytes of PTX", len(text))
			}
		}
		env := func(string) (int64, bool) { return 17, true }
		if _, total, err := p.ScratchLayout(env); err == nil && total < 0 {
			t.Fatalf("scratch of %d bytes", total)
		}
	})
}
