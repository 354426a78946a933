package philox

import (
	"math"
	"math/rand/v2"
	"testing"
)

// answers are the known answers of the generator's authors: the lines of
// "philox4x32 10" in kat_vectors of Random123 1.14.0.
var answers = []struct {
	counter [4]uint32
	key     [2]uint32
	want    [4]uint32
}{
	{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
	{[4]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}, [2]uint32{math.MaxUint32, math.MaxUint32},
		[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
	{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
		[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
}

func TestKnownAnswers(t *testing.T) {
	for _, a := range answers {
		if got := Words(a.counter, a.key); got != a.want {
			t.Errorf("counter %x, key %x: %x, want %x", a.counter, a.key, got, a.want)
		}
	}
}

// words64 joins two words, low first, to an i64.
func words64(low, high uint32) int64 { return int64(uint64(high)<<32 | uint64(low)) }

// TestUniformIsTheKnownAnswer holds Uniform to the words of the counter and the key that seed,
// offset and index stand for. An offset divided by 4 has at most 30 bits in its high word, so no
// offset stands for the second and third counter of answers: the test shortens the third, and
// compares with Words, which TestKnownAnswers checks.
func TestUniformIsTheKnownAnswer(t *testing.T) {
	for lane, w := range answers[0].want {
		if got, want := Uniform(0, 0, int64(lane)), float32(float64(w>>8)/(1<<24)); got != want {
			t.Errorf("lane %d: %v, want %v", lane, got, want)
		}
	}
	// The third counter, with a shorter high word of the offset.
	a := answers[2]
	counter := [4]uint32{a.counter[0], a.counter[1] >> 4, a.counter[2], a.counter[3]}
	words := Words(counter, a.key)
	seed, offset := words64(a.key[0], a.key[1]), words64(counter[0], counter[1])*4
	index := words64(counter[2], counter[3]) * 4
	for lane, w := range words {
		for low := range int64(4) {
			if got, want := Uniform(seed, offset+low, index+int64(lane)), float32(float64(w>>8)/(1<<24)); got != want {
				t.Errorf("lane %d, offset + %d: %v, want %v", lane, low, got, want)
			}
		}
	}
	if Uniform(seed, offset+4, index) == Uniform(seed, offset, index) {
		t.Error("the next offset gives the same number")
	}
}

// TestUniforms holds Uniforms to Uniform of each element, for successive indices, starts within a
// block, repeated indices, scattered indices and changing seeds and offsets.
func TestUniforms(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n := r.IntN(40)
		seed, offset, index := make([]int64, n), make([]int64, n), make([]int64, n)
		s, o, i := r.Int64(), r.Int64(), int64(r.Uint64())
		for k := range n {
			switch r.IntN(12) {
			case 0:
				s = int64(r.Uint64())
			case 1:
				o += 4
			case 2:
				i = int64(r.Uint64())
			default:
				i += int64(r.IntN(3))
			}
			seed[k], offset[k], index[k] = s, o, i
		}
		got := make([]float32, n)
		Uniforms(got, seed, offset, index)
		for k, x := range got {
			if want := Uniform(seed[k], offset[k], index[k]); x != want {
				t.Fatalf("element %d: %v, want %v", k, x, want)
			}
		}
	}
}

// TestMoments holds 2^16 numbers of one seed to the range and to the first two
// moments: the mean of n numbers has a deviation of sqrt(1/12n), the mean of
// squares one of sqrt(4/45n). Five deviations are allowed, and the seed is fixed.
func TestMoments(t *testing.T) {
	const n = 1 << 16
	sum, squares := 0.0, 0.0
	for i := range int64(n) {
		x := float64(Uniform(42, 8, i))
		if x < 0 || x >= 1 {
			t.Fatalf("element %d is %v", i, x)
		}
		sum, squares = sum+x, squares+x*x
	}
	if d := math.Abs(sum/n - 0.5); d > 5*math.Sqrt(1.0/12/n) {
		t.Errorf("the mean is off by %v", d)
	}
	if d := math.Abs(squares/n - 1.0/3); d > 5*math.Sqrt(4.0/45/n) {
		t.Errorf("the mean of squares is off by %v", d)
	}
	if Float(math.MaxUint32) != 1-1.0/(1<<24) || Float(255) != 0 || Float(256) != 1.0/(1<<24) {
		t.Error("Float does not return a word's 24 highest bits times 2^-24")
	}
}

func BenchmarkUniforms(b *testing.B) {
	const n = 1024
	dst, seed, offset, index := make([]float32, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range index {
		index[i] = int64(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		Uniforms(dst, seed, offset, index)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
}
