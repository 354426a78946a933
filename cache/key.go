package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"pwc/internal/termsafe"
)

// Key has exactly the factors that determine the bytes of a compiled piece, except the version of
// NVRTC, on which machine code depends and which is [Provenance]. The fields are an allow-list: a
// path, an environment variable, a host name, a rank or capture sizes cannot enter a key without a
// change of this type. A machine without a compiler or a device can compute all of them. Keys are
// comparable.
//
// The key of a kernel of an extern op or of collectives has no Shape. Its Piece is the hash of the
// kernel's source and arch-specific target, Pipeline the version of the compilation of kernels, and
// Externs the name of the op, or "collectives".
type Key struct {
	Piece    [sha256.Size]byte // hash of the piece's canonical text
	Shape    string            // the sizes that the piece is compiled for, "s0=[1, 512]"; empty if it does not depend on the size
	Target   string            // "host", "cuda:sm_90"
	Pipeline string            // version of the compiler's passes, disabled passes, precision of f32 GEMMs, the user's own passes
	Externs  string            // extern ops of the piece with their versions
	Format   int               // version of the program encoding
}

// Factor is one named part of a key.
type Factor struct{ Name, Value string }

// Factors returns the parts of the key in a fixed order.
func (k Key) Factors() []Factor {
	return []Factor{
		{"piece", hex.EncodeToString(k.Piece[:])},
		{"shape", k.Shape},
		{"target", k.Target},
		{"pipeline", k.Pipeline},
		{"externs", k.Externs},
		{"format", strconv.Itoa(k.Format)},
	}
}

// keyDomain is hashed ahead of the factors. It changes with their text.
const keyDomain = "pwc cache key 1\n"

// Sum returns the SHA-256 under which the entry is stored: of a header and one line for each
// factor, with its name and its quoted value.
func (k Key) Sum() [sha256.Size]byte {
	w := textWriter{buf: []byte(keyDomain)}
	k.write(&w)
	return sha256.Sum256(w.buf)
}

// id returns the sum as the name of a file.
func (k Key) id() ID { return ID(k.Sum()) }

// String returns the first 16 hex digits of the sum.
func (k Key) String() string { return k.id().String()[:16] }

func (k Key) write(w *textWriter) {
	for _, f := range k.Factors() {
		w.line(f.Name, strconv.Quote(f.Value))
	}
}

// parseLine parses one line of a factor. It reports whether the line is one.
func (k *Key) parseLine(l *textLine) (ok bool) {
	switch l.word {
	case "piece":
		h, err := parseHash(l.quoted())
		if err != nil {
			l.fail("piece: %w", err)
		}
		k.Piece = h
	case "shape":
		k.Shape = l.quoted()
	case "target":
		k.Target = l.quoted()
	case "pipeline":
		k.Pipeline = l.quoted()
	case "externs":
		k.Externs = l.quoted()
	case "format":
		n, err := strconv.Atoi(l.quoted())
		if err != nil {
			l.fail("format: not a number")
		}
		k.Format = n
	default:
		return false
	}
	return true
}

// maxString bounds the bytes of one string in a manifest. Compilation makes far shorter ones.
const maxString = 64 << 10

// Validate returns an error if k has no piece, target or format, or a factor that is too long or not
// UTF-8. The other factors may be empty.
func (k Key) Validate() error {
	var errs []error
	if k.Piece == [sha256.Size]byte{} {
		errs = append(errs, errors.New("cache: key without a piece"))
	}
	if k.Target == "" {
		errs = append(errs, errors.New("cache: key without a target"))
	}
	if k.Format <= 0 {
		errs = append(errs, fmt.Errorf("cache: key of program format %d, want at least 1", k.Format))
	}
	for _, f := range k.Factors() {
		errs = append(errs, checkString(f.Name, f.Value))
	}
	return errors.Join(errs...)
}

func checkString(what, s string) error {
	if len(s) > maxString {
		return fmt.Errorf("cache: %s of %d bytes; the most is %d", what, len(s), maxString)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("cache: %s %q is not UTF-8", what, termsafe.Clip(s, 80))
	}
	return nil
}

// Change is a factor in which two keys differ.
type Change struct {
	Factor   string
	Old, New string
}

// String returns `factor: "old" → "new"`.
func (c Change) String() string { return fmt.Sprintf("%s: %q → %q", c.Factor, c.Old, c.New) }

// Changes returns the factors that differ from those of old, in the order of Factors. It is empty
// if and only if the keys are equal.
func (k Key) Changes(old Key) []Change {
	var out []Change
	was := old.Factors()
	for i, f := range k.Factors() {
		if f != was[i] {
			out = append(out, Change{f.Name, was[i].Value, f.Value})
		}
	}
	return out
}

// distance returns the number of Changes.
func (k Key) distance(old Key) int {
	n := 0
	for _, differs := range []bool{k.Piece != old.Piece, k.Shape != old.Shape, k.Target != old.Target,
		k.Pipeline != old.Pipeline, k.Externs != old.Externs, k.Format != old.Format} {
		if differs {
			n++
		}
	}
	return n
}

// ID identifies an entry, a module or a tuning record: the SHA-256 of its identifying fields.
type ID [sha256.Size]byte

// String returns the id in lower-case hex, which is also a file name.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID parses the form of ID.String, and no other.
func ParseID(s string) (ID, error) {
	h, err := parseHash(s)
	return ID(h), err
}

// Digest is the SHA-256 of stored bytes.
type Digest [sha256.Size]byte

// DigestOf returns the digest of b.
func DigestOf(b []byte) Digest { return sha256.Sum256(b) }

// String returns the digest as "sha256:" and lower-case hex.
func (d Digest) String() string { return "sha256:" + d.hex() }

func (d Digest) hex() string { return hex.EncodeToString(d[:]) }

// ParseDigest parses the form of Digest.String, and no other.
func ParseDigest(s string) (Digest, error) {
	digits, ok := strings.CutPrefix(s, "sha256:")
	if !ok {
		return Digest{}, fmt.Errorf("cache: digest %q has no prefix sha256", termsafe.Clip(s, 80))
	}
	h, err := parseHash(digits)
	return Digest(h), err
}

// parseHash parses 64 lower-case hex digits.
func parseHash(s string) (h [sha256.Size]byte, err error) {
	if len(s) != 2*sha256.Size || strings.ToLower(s) != s {
		return h, fmt.Errorf("cache: %q is not %d lower-case hex digits", termsafe.Clip(s, 80), 2*sha256.Size)
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return h, fmt.Errorf("cache: %q is not %d lower-case hex digits", termsafe.Clip(s, 80), 2*sha256.Size)
	}
	return h, nil
}
