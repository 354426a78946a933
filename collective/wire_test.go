package collective

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFrames: written frames can be read, and bytes that are not of the protocol are an error.
func TestFrames(t *testing.T) {
	for _, h := range []hello{{1, 2, "tp", ""}, {1023, 1024, "g", "token"}} {
		f, err := readFrame(bytes.NewReader(appendFrame(nil, frameHello, h.encode())), 2)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeHello(f.payload); err != nil || got != h {
			t.Errorf("%+v, %v, want %+v", got, err, h)
		}
	}
	given := [][]byte{nil, []byte("abc"), make([]byte, 8), make([]byte, 17)}
	all, err := decodeAll(encodeAll(given), len(given))
	if err != nil {
		t.Fatal(err)
	}
	for i := range given {
		if !bytes.Equal(all[i], given[i]) {
			t.Errorf("rank %d gave %q, not %q", i, given[i], all[i])
		}
	}
	if what, data, err := decodeGive(encodeGive("what", []byte("data"))); err != nil || what != "what" || string(data) != "data" {
		t.Errorf("%q %q %v", what, data, err)
	}
	for _, e := range []error{&LostError{Group: "tp", Ranks: []int{1, 2}, What: "x", Waited: time.Second, Cause: ErrMissing},
		&LostError{Group: "tp", Ranks: []int{0}, Cause: ErrLeft}, &MismatchError{Group: "tp", Rank: [2]int{0, 3}, What: [2]string{"a", "b"}}} {
		if got := decodeEnding("tp", 4, 1, encodeEnding(e)); !reflect.DeepEqual(got, e) {
			t.Errorf("%v came as %v", e, got)
		}
	}
	long := strings.Repeat("<", maxWhat)
	for _, e := range []error{&LostError{Ranks: []int{1}, What: long, Cause: errors.New(long + long + long)}, &MismatchError{Rank: [2]int{0, 1}, What: [2]string{long, long}}} {
		b := encodeEnding(e)
		if got := decodeEnding("tp", 4, 0, b); len(b) > maxText || errors.Is(got, errFrame) {
			t.Errorf("an error of long texts takes %d bytes, and came as %v", len(b), got)
		}
	}
	for _, text := range []string{"", "x", `{"ranks":[4]}`, `{"cause":"no rank"}`} {
		var lost *LostError
		if err := decodeEnding("tp", 4, 1, []byte(text)); !errors.As(err, &lost) || !slices.Equal(lost.Ranks, []int{1}) {
			t.Errorf("%q of rank 1: %v", text, err)
		}
	}
	for _, b := range [][]byte{
		{0, 0, 0, 0, 0, 0, 0, 0}, {byte(frameBeat), 1, 0, 0, 0, 0, 0, 0}, {byte(frameBeat), 0, 0, 0, 1, 0, 0, 0, 0},
		{byte(frameKinds), 0, 0, 0, 0, 0, 0, 0}, {byte(frameAll), 0, 0, 0, 255, 255, 255, 255},
	} {
		if _, err := readFrame(bytes.NewReader(b), 2); !errors.Is(err, errFrame) {
			t.Errorf("% x: %v", b, err)
		}
	}
}

// ends reports whether an error is one of those that a group ends with.
func ends(err error) bool {
	var mismatch *MismatchError
	return errors.Is(err, ErrLost) || errors.As(err, &mismatch)
}

// FuzzFrames: any bytes are read without a panic, and the values that are read are within their limits.
func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(nil, frameHello, hello{1, 2, "tp", "t"}.encode()))
	f.Add(appendFrame(nil, frameGive, encodeGive("what", []byte("data"))))
	f.Add(appendFrame(nil, frameAll, encodeAll([][]byte{[]byte("a"), make([]byte, 9)})))
	f.Add(appendFrame(nil, frameEnd, encodeEnding(&LostError{Ranks: []int{1}, Cause: ErrLeft})))
	f.Fuzz(func(t *testing.T, b []byte) {
		const size = 2
		x, err := readFrame(bytes.NewReader(b), size)
		if err != nil {
			return
		}
		if len(x.payload) > x.kind.limit(size) {
			t.Fatalf("%d bytes of kind %d", len(x.payload), x.kind)
		}
		if h, err := decodeHello(x.payload); err == nil && (h.rank < 0 || h.rank >= h.size || h.size > MaxSize) {
			t.Fatalf("%+v", h)
		}
		_, _, _ = decodeGive(x.payload)
		if all, err := decodeAll(x.payload, size); err == nil && len(all) != size {
			t.Fatalf("%d ranks", len(all))
		}
		if !ends(decodeEnding("tp", size, 1, x.payload)) {
			t.Fatal("an end that is neither a LostError nor a MismatchError")
		}
		_, _, _ = parseMeeting("f", b)
	})
}
