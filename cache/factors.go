package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Key is the look-up key of an entry: the SHA-256 of the canonical text of its
// [Factors].
type Key [sha256.Size]byte

// String returns the key in lower-case hex, which is also its file name.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey parses what Key.String returns, and nothing else.
func ParseKey(s string) (Key, error) {
	b, err := parseHash(s)
	return Key(b), err
}

// Digest is the SHA-256 of stored bytes.
type Digest [sha256.Size]byte

// DigestOf returns the digest of b.
func DigestOf(b []byte) Digest { return sha256.Sum256(b) }

// String returns the digest as "sha256:" and lower-case hex.
func (d Digest) String() string { return "sha256:" + d.hex() }

func (d Digest) hex() string { return hex.EncodeToString(d[:]) }

// ParseDigest parses what Digest.String returns, and nothing else.
func ParseDigest(s string) (Digest, error) {
	h, ok := strings.CutPrefix(s, "sha256:")
	if !ok {
		return Digest{}, fmt.Errorf("cache: digest %q does not begin with sha256:", clip(s))
	}
	b, err := parseHash(h)
	return Digest(b), err
}

// parseHash parses 64 lower-case hex digits.
func parseHash(s string) (h [sha256.Size]byte, err error) {
	if len(s) != 2*sha256.Size || strings.ToLower(s) != s {
		return h, fmt.Errorf("cache: %q is not %d lower-case hex digits", clip(s), 2*sha256.Size)
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return h, fmt.Errorf("cache: %q is not %d lower-case hex digits", clip(s), 2*sha256.Size)
	}
	return h, nil
}

// clip shortens outside text for a message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// Setting is a named value among the factors of a key.
type Setting struct {
	Name, Value string
}

// Factors are everything that decides which program a piece compiles to, and
// nothing else: the fields are the allow-list, so a path, an environment
// variable, a host name or the sizes that are captured cannot get into a key
// without a change of this type. Every factor can be formed on a machine that
// has neither a compiler nor a device; the versions of compilers are
// [Provenance].
type Factors struct {
	Format   int               // program.FormatVersion of the blob
	Piece    [sha256.Size]byte // ir.HashFunc of the piece's function
	Shape    string            // ranges or values of its symbols in their canonical names: "s0 in [1, 512]"
	Target   string            // "host", "cuda:sm_90"
	Pipeline string            // fingerprint of the pass table and the code generator
	Passes   []string          // identities of user passes, in the order they run
	Externs  []Setting         // extern ops the piece calls, and their versions
	Options  []Setting         // options that change code, and their values
}

// keyDomain is hashed ahead of the factors. It changes with the canonical text.
const keyDomain = "pwc cache key 1\n"

// Key returns the look-up key. The order of Externs and of Options does not
// matter, that of Passes does.
func (f Factors) Key() Key {
	var w textWriter
	w.buf = append(w.buf, keyDomain...)
	f.write(&w)
	return sha256.Sum256(w.buf)
}

// Bounds on what a manifest may hold. They are far above what compilation
// makes and keep one manifest below maxManifest bytes in practice.
const (
	maxString   = 4 << 10 // bytes in one string
	maxSettings = 4 << 10 // entries in one list
)

// Validate reports why f cannot be a key: a missing factor, text that is too
// long or not UTF-8, two settings of one name.
func (f Factors) Validate() error {
	var errs []error
	if f.Format <= 0 {
		errs = append(errs, fmt.Errorf("cache: factor format is %d, not a version", f.Format))
	}
	if f.Piece == [sha256.Size]byte{} {
		errs = append(errs, errors.New("cache: factor piece is missing"))
	}
	for _, s := range []Setting{{"shape", f.Shape}, {"target", f.Target}, {"pipeline", f.Pipeline}} {
		if s.Value == "" && s.Name != "shape" { // a piece without symbols has no shape to name
			errs = append(errs, fmt.Errorf("cache: factor %s is missing", s.Name))
		}
		errs = append(errs, checkString("factor "+s.Name, s.Value))
	}
	if len(f.Passes) > maxSettings {
		errs = append(errs, fmt.Errorf("cache: %d user passes, above %d", len(f.Passes), maxSettings))
	}
	for _, p := range f.Passes {
		errs = append(errs, checkString("pass", p))
	}
	errs = append(errs, checkSettings("extern", f.Externs), checkSettings("option", f.Options))
	return errors.Join(errs...)
}

func checkSettings(what string, list []Setting) error {
	if len(list) > maxSettings {
		return fmt.Errorf("cache: %d settings %s, above %d", len(list), what, maxSettings)
	}
	var errs []error
	seen := make(map[string]bool, len(list))
	for _, s := range list {
		if s.Name == "" {
			errs = append(errs, fmt.Errorf("cache: an %s without a name", what))
		}
		if seen[s.Name] {
			errs = append(errs, fmt.Errorf("cache: %s %q is given twice", what, clip(s.Name)))
		}
		seen[s.Name] = true
		errs = append(errs, checkString(what, s.Name), checkString(what, s.Value))
	}
	return errors.Join(errs...)
}

func checkString(what, s string) error {
	if len(s) > maxString {
		return fmt.Errorf("cache: %s of %d bytes, above %d", what, len(s), maxString)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("cache: %s %q is not UTF-8", what, clip(s))
	}
	return nil
}

// sorted returns the settings by name.
func sorted(list []Setting) []Setting {
	byName := func(a, b Setting) int { return strings.Compare(a.Name, b.Name) }
	if slices.IsSortedFunc(list, byName) {
		return list
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, byName)
	return list
}

// write appends the canonical text: one line a factor.
func (f Factors) write(w *textWriter) {
	w.line("format", strconv.Itoa(f.Format))
	w.line("piece", Digest(f.Piece).String())
	w.line("shape", strconv.Quote(f.Shape))
	w.line("target", strconv.Quote(f.Target))
	w.line("pipeline", strconv.Quote(f.Pipeline))
	for _, p := range f.Passes {
		w.line("pass", strconv.Quote(p))
	}
	for _, s := range sorted(f.Externs) {
		w.line("extern", strconv.Quote(s.Name), strconv.Quote(s.Value))
	}
	for _, s := range sorted(f.Options) {
		w.line("option", strconv.Quote(s.Name), strconv.Quote(s.Value))
	}
}

// parseLine takes one line of the canonical text, if it is one of a factor.
func (f *Factors) parseLine(l *textLine) (ok bool) {
	switch l.word {
	case "format":
		f.Format = int(l.int())
	case "piece":
		f.Piece = l.digest()
	case "shape":
		f.Shape = l.quoted()
	case "target":
		f.Target = l.quoted()
	case "pipeline":
		f.Pipeline = l.quoted()
	case "pass":
		f.Passes = append(f.Passes, l.quoted())
	case "extern":
		f.Externs = append(f.Externs, Setting{l.quoted(), l.quoted()})
	case "option":
		f.Options = append(f.Options, Setting{l.quoted(), l.quoted()})
	default:
		return false
	}
	return true
}

// Diff is one factor in which two keys differ. A setting that one side lacks
// is empty there.
type Diff struct {
	Factor   string // "shape", "option fusion", "extern my::gemm"
	Old, New string
}

// String returns "factor: old → new".
func (d Diff) String() string {
	show := func(s string) string {
		if s == "" {
			return "(none)"
		}
		return s
	}
	return d.Factor + ": " + show(d.Old) + " → " + show(d.New)
}

// Diff returns the factors in which old and f differ, in the order of the
// fields of [Factors]; none if and only if the keys are the same.
func (f Factors) Diff(old Factors) []Diff {
	var diffs []Diff
	add := func(factor, a, b string) {
		if a != b {
			diffs = append(diffs, Diff{factor, a, b})
		}
	}
	add("format", strconv.Itoa(old.Format), strconv.Itoa(f.Format))
	add("piece", Digest(old.Piece).String(), Digest(f.Piece).String())
	add("shape", old.Shape, f.Shape)
	add("target", old.Target, f.Target)
	add("pipeline", old.Pipeline, f.Pipeline)
	if !slices.Equal(old.Passes, f.Passes) {
		add("passes", quoteAll(old.Passes), quoteAll(f.Passes))
	}
	diffSettings("extern ", old.Externs, f.Externs, add)
	diffSettings("option ", old.Options, f.Options, add)
	return diffs
}

func quoteAll(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = strconv.Quote(s)
	}
	return strings.Join(quoted, ", ")
}

// diffSettings merges two lists by name. A value is quoted, so that an empty
// one differs from none.
func diffSettings(prefix string, a, b []Setting, add func(factor, a, b string)) {
	a, b = sorted(a), sorted(b)
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Name < b[0].Name:
			add(prefix+a[0].Name, strconv.Quote(a[0].Value), "")
			a = a[1:]
		case len(a) == 0 || b[0].Name < a[0].Name:
			add(prefix+b[0].Name, "", strconv.Quote(b[0].Value))
			b = b[1:]
		default:
			add(prefix+a[0].Name, strconv.Quote(a[0].Value), strconv.Quote(b[0].Value))
			a, b = a[1:], b[1:]
		}
	}
}
