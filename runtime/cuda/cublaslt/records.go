package cublaslt

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"pwc/internal/exactjson"
)

// Key identifies the calls that a choice is for.
type Key struct {
	GPU     string // the device's name, "NVIDIA H200"
	Version int    // of the library, 130100 for 13.1: the meaning of an algorithm's bytes depends on it
	GEMM    string // sizes, dtypes, layouts, strides and alignment
}

// Choice is the result of tuning for a GEMM.
type Choice struct {
	// Own is true if the program's own kernels are faster: the library is not called.
	Own bool

	// Algorithm is cublasLtMatmulAlgo_t, valid for the version of the key.
	Algorithm [8]uint64
}

// Records are choices that were made before. Lookup may be called from any
// goroutine and does not change the records.
type Records interface {
	Lookup(Key) (Choice, bool)
}

func (l *Library) key(p *problem) Key {
	return Key{GPU: l.dev.Info().Name, Version: l.api.Version(), GEMM: p.String()}
}

// choiceText is a choice as JSON.
type choiceText struct {
	Own       bool   `json:"own,omitempty"`
	Algorithm string `json:"algorithm,omitempty"` // hex, little-endian
}

// MarshalJSON writes {"own":true} or {"algorithm":"…"}.
func (c Choice) MarshalJSON() ([]byte, error) {
	t := choiceText{Own: c.Own}
	if !c.Own {
		var b []byte
		for _, v := range c.Algorithm {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		t.Algorithm = hex.EncodeToString(b)
	}
	return json.Marshal(t)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Choice) UnmarshalJSON(b []byte) error {
	var t choiceText
	if err := exactjson.Unmarshal(b, &t); err != nil {
		return err
	}
	*c = Choice{Own: t.Own}
	if t.Own {
		return nil
	}
	raw, err := hex.DecodeString(t.Algorithm)
	if err == nil && len(raw) != 8*len(c.Algorithm) {
		err = fmt.Errorf("%d bytes", len(raw))
	}
	if err != nil {
		return fmt.Errorf("cublaslt: an algorithm: %w", err)
	}
	for i := range c.Algorithm {
		c.Algorithm[i] = binary.LittleEndian.Uint64(raw[8*i:])
	}
	return nil
}
