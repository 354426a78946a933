package cache

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The hashed text, written by hand. A change of it changes every key and needs another
// keyDomain.
func TestKeySum(t *testing.T) {
	k := Key{Piece: [32]byte{0xab, 31: 0x01}, Shape: "s0=[1, 512]", Target: "cuda:sm_90", Pipeline: "7 -cse", Externs: `my::gemm@"3"`, Format: 2}
	text := "pwc cache key 1\n" +
		"piece \"ab00000000000000000000000000000000000000000000000000000000000001\"\n" +
		"shape \"s0=[1, 512]\"\n" +
		"target \"cuda:sm_90\"\n" +
		"pipeline \"7 -cse\"\n" +
		"externs \"my::gemm@\\\"3\\\"\"\n" +
		"format \"2\"\n"
	if got, want := k.Sum(), sha256.Sum256([]byte(text)); got != want {
		t.Errorf("Sum = %x, want %x", got, want)
	}
	if got, want := k.String(), fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16]; got != want {
		t.Errorf("String = %s, want %s", got, want)
	}
}

// others returns copies of k, each with another field changed, for all fields of the
// type.
func others(k Key) map[string]Key {
	out := map[string]Key{}
	for i := range reflect.TypeFor[Key]().NumField() {
		o := k
		f := reflect.ValueOf(&o).Elem().Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString(f.String() + "x")
		case reflect.Int:
			f.SetInt(f.Int() + 1)
		case reflect.Array:
			f.Index(7).SetUint(f.Index(7).Uint() ^ 1)
		}
		out[strings.ToLower(reflect.TypeFor[Key]().Field(i).Name)] = o
	}
	return out
}

func TestEveryFactorCounts(t *testing.T) {
	k := testKey(0)
	for name, o := range others(k) {
		if o == k || o.Sum() == k.Sum() {
			t.Errorf("%s does not change the sum", name)
		}
		changes := o.Changes(k)
		if len(changes) != 1 || changes[0].Factor != name {
			t.Errorf("%s changed: Changes = %v", name, changes)
		}
		if o.distance(k) != 1 {
			t.Errorf("%s changed: distance = %d", name, o.distance(k))
		}
		if !slices.ContainsFunc(k.Factors(), func(f Factor) bool { return f.Name == name }) {
			t.Errorf("%s is no factor", name)
		}
	}
	// Text of one factor must not be taken for another.
	a, b := k, k
	a.Shape, a.Target = "x\"\ntarget \"y", "z"
	b.Shape, b.Target = "x", "y\"\ntarget \"z"
	if a.Sum() == b.Sum() {
		t.Error("quotes and newlines in a factor make two keys one")
	}
}

func TestChanges(t *testing.T) {
	k, old := testKey(0), testKey(0)
	old.Shape, old.Pipeline = "s0=64", "6"
	want := []Change{{"shape", "s0=64", "s0=[1, 512]"}, {"pipeline", "6", "7 -cse"}}
	if diff := cmp.Diff(want, k.Changes(old)); diff != "" {
		t.Error(diff)
	}
	if got, want := want[0].String(), `shape: "s0=64" → "s0=[1, 512]"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if c := k.Changes(k); c != nil {
		t.Errorf("a key differs from itself: %v", c)
	}
}

func TestKeyValidate(t *testing.T) {
	if err := testKey(0).Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Key){
		"piece":    func(k *Key) { k.Piece = [32]byte{} },
		"target":   func(k *Key) { k.Target = "" },
		"format":   func(k *Key) { k.Format = 0 },
		"shape":    func(k *Key) { k.Shape = "\xff" },
		"pipeline": func(k *Key) { k.Pipeline = strings.Repeat("x", maxString+1) },
		"externs":  func(k *Key) { k.Externs = "\xc0" },
	} {
		k := testKey(0)
		change(&k)
		if err := k.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: Validate = %v", name, err)
		}
	}
	k := testKey(0)
	k.Shape, k.Pipeline, k.Externs = "", "", "" // a piece without symbols and calls
	if err := k.Validate(); err != nil {
		t.Error(err)
	}
}

func TestParseHashes(t *testing.T) {
	id := testKey(0).id()
	if got, err := ParseID(id.String()); err != nil || got != id {
		t.Errorf("ParseID = %v, %v", got, err)
	}
	d := DigestOf(nil)
	if d.String() != "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("digest of nothing: %s", d)
	}
	if got, err := ParseDigest(d.String()); err != nil || got != d {
		t.Errorf("ParseDigest = %v, %v", got, err)
	}
	h := id.String()
	for _, s := range []string{"", h[1:], h + "0", strings.ToUpper(h), "../" + h[3:], h[:63] + "g", h[:63] + "/", strings.Repeat("x", 1000)} {
		if _, err := ParseID(s); err == nil {
			t.Errorf("ParseID accepts %q", s)
		}
		if _, err := ParseDigest("sha256:" + s); err == nil {
			t.Errorf("ParseDigest accepts %q", s)
		}
	}
	if _, err := ParseDigest(h); err == nil {
		t.Error("ParseDigest accepts a digest without its algorithm")
	}
}
