package build

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Key identifies an artifact by everything that its bytes depend on, and by
// nothing else: an allow-list that any machine can form. No path, environment
// variable, host name, rank or capture size is in it. Keys are comparable.
type Key struct {
	Piece    [sha256.Size]byte // hash of the piece's text
	Shape    string            // ranges of the piece's symbols, "s0=[1, 512]"
	Target   string            // "host", "cuda:sm_90"
	Pipeline string            // version of the compiler's passes, those switched off, the user's own
	Externs  string            // extern ops of the piece with their versions
	Format   int               // version of the program encoding
}

// Factor is one named part of a key.
type Factor struct{ Name, Value string }

// Factors returns the parts of the key in a fixed order, for listings and for
// saying why a look-up missed (C10).
func (k Key) Factors() []Factor {
	return []Factor{
		{"piece", fmt.Sprintf("%x", k.Piece)},
		{"shape", k.Shape},
		{"target", k.Target},
		{"pipeline", k.Pipeline},
		{"externs", k.Externs},
		{"format", fmt.Sprint(k.Format)},
	}
}

// Sum returns the SHA-256 over names and values of all factors, each preceded by
// its length.
func (k Key) Sum() [sha256.Size]byte {
	var b []byte
	text := func(s string) {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, f := range k.Factors() {
		text(f.Name)
		text(f.Value)
	}
	return sha256.Sum256(b)
}

// Diff returns the factors of k whose value in other is another.
func (k Key) Diff(other Key) []Factor {
	var out []Factor
	theirs := other.Factors()
	for i, f := range k.Factors() {
		if f != theirs[i] {
			out = append(out, f)
		}
	}
	return out
}

// String returns the first 16 hex digits of the sum.
func (k Key) String() string {
	sum := k.Sum()
	return fmt.Sprintf("%x", sum[:8])
}
