package cuda

import (
	"testing"

	"pgregory.net/rapid"

	"pwc/attention"
)

// TestShared: take counts the blocks that the step's sequences have more than once, after any
// earlier steps.
func TestShared(t *testing.T) {
	o := &Options{MaxRows: 8, MaxRequests: 4, MaxBlocks: 3}
	var tab table
	name := uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		type sequence struct {
			name   uint64
			blocks []int32
		}
		var live []sequence
		for range 20 {
			if n := len(live); n == 4 || n > 0 && rapid.Bool().Draw(t, "leaves") {
				live = append(live[:0:0], live[rapid.IntRange(1, n).Draw(t, "from"):]...)
			} else {
				name++
				live = append(live, sequence{name, rapid.SliceOfN(rapid.Int32Range(0, 15), 1, 3).Draw(t, "blocks")})
			}
			b, uses, want := attention.NewBatch(4, 8, 3), map[int32]int{}, 0
			for _, s := range live {
				if err := b.AddSequence(s.name, 2*len(s.blocks)-1, 1, s.blocks, 2); err != nil {
					t.Fatal(err)
				}
				for _, block := range s.blocks {
					if uses[block]++; uses[block] == 2 {
						want++
					}
				}
			}
			distinct, err := tab.take(b, b.Rows(), cache{16, 2}, o)
			if err != nil || tab.shared != want || distinct != (want == 0) {
				t.Fatalf("%+v: %d shared, distinct %v, %v; want %d shared", live, tab.shared, distinct, err, want)
			}
		}
	})
}
