package cuda_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pwc/attention"
	"pwc/internal/cuda/fake"
)

// TestNamedSequences: the metadata that launches read does not depend on whether sequences have
// names, or on earlier steps. Requests join, leave, change their order, grow, shrink, get other
// blocks under other names, and share blocks; two batches alternate, with tables of two widths. A
// step is refused if and only if it would be refused as the first step. Some runs have such a
// change in most steps, and in others (steady) most requests only decode.
func TestNamedSequences(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	c := r.call(batch(t, 0))
	r.must(r.op.Launch(c)) // the op knows the cache
	const size, room = 4, fakeBlocks
	type sequence struct {
		name   uint64
		blocks []int32
		tokens int
	}
	names, turn, refused, launched := uint64(0), 0, 0, 0
	batches := []*attention.Batch{attention.NewBatch(8, 8, room), attention.NewBatch(1, 1, 1)} // the second grows
	rapid.Check(t, func(t *rapid.T) {
		var live []*sequence
		steady := rapid.Bool().Draw(t, "steady")
		most, changes, stride := 4, 6, room
		if steady {
			most, changes = 2, 60 // requests do not share blocks
		}
		seldom := func(label string) bool { return rapid.IntRange(0, 30).Draw(t, label) == 0 }
		for range 30 {
			switch rapid.IntRange(0, changes).Draw(t, "change") {
			case 0, 1:
				if len(live) < most {
					live = append(live, &sequence{})
				}
			case 2:
				if n := len(live); n > 0 {
					i := rapid.IntRange(0, n-1).Draw(t, "leaves")
					live = slices.Delete(live, i, i+1)
				}
			case 3:
				live = rapid.Permutation(live).Draw(t, "order")
			case 5:
				if n := len(live); n > 0 {
					s := live[rapid.IntRange(0, n-1).Draw(t, "shrinks")]
					s.tokens = rapid.IntRange(0, s.tokens).Draw(t, "to")
				}
			case 4:
				if n := len(live); n > 0 { // the request loses its blocks
					live[rapid.IntRange(0, n-1).Draw(t, "preempted")].name = 0
				}
			}
			b := batches[turn%2]
			turn++
			b.Reset()
			named := !seldom("nameless")
			if !steady || seldom("widths") {
				named = rapid.IntRange(0, 7).Draw(t, "named") > 0
				stride = rapid.IntRange(room-1, room).Draw(t, "stride")
			}
			b.Stride = stride
			var tokens []int
			for _, s := range live {
				if s.name == 0 {
					names++
					s.name, s.tokens = names, 0
					s.blocks = rapid.SliceOfN(rapid.Int32Range(0, 8), room, room).Draw(t, "blocks")
					if steady {
						s.blocks = s.blocks[:0]
						for b := int32(0); len(s.blocks) < room; b++ {
							if !slices.ContainsFunc(live, func(o *sequence) bool { return slices.Contains(o.blocks, b) }) {
								s.blocks = append(s.blocks, b)
							}
						}
					}
				}
				n := 1
				if !steady || seldom("others") {
					n = rapid.IntRange(0, 2).Draw(t, "rows")
				}
				if s.tokens+n > size*b.Stride {
					s.tokens = rapid.IntRange(0, size).Draw(t, "shrunk")
				}
				add := b.Add
				if named {
					add = func(computed, tokens int, blocks []int32, size int) error {
						return b.AddSequence(s.name, computed, tokens, blocks, size)
					}
				}
				if err := add(s.tokens, n, s.blocks, size); err != nil {
					t.Fatal(err)
				}
				s.tokens += n
				tokens = append(tokens, s.tokens)
			}
			used := func(i int) []int32 { return live[i].blocks[:(tokens[i]+size-1)/size] }
			rows := func(i int) int { return int(b.QueryStart[i+1] - b.QueryStart[i]) }
			shares := false
			for i := range live {
				for p := tokens[i] - rows(i); p < tokens[i]; p++ {
					for j := range live {
						shares = shares || j != i && rows(j) > 0 && slices.Contains(used(j), live[i].blocks[p/size])
					}
				}
			}
			err := r.op.Prepare(r.stream, b, 8, int64(b.Rows()))
			if (err != nil) != shares {
				t.Fatalf("%+v: %v, shared: %v", b, err, shares)
			}
			if shares {
				refused++
				continue
			}
			c.Meta, c.Rows = b, int64(b.Rows())
			if err := r.op.Launch(c); err != nil {
				t.Fatal(err)
			}
			if err := r.stream.Synchronize(); err != nil {
				t.Fatal(err)
			}
			got := r.seen[len(r.seen)-1]
			at := 0
			for i := range live {
				if rows(i) == 0 {
					continue
				}
				row := got.table[at*int(got.stride):][:len(used(i))]
				if int(got.lengths[at]) != tokens[i] || !slices.Equal(row, used(i)) || got.starts[at] != b.QueryStart[i] {
					t.Fatalf("request %d has %d tokens in %v, the launch found %d in %v", i, tokens[i], used(i), got.lengths[at], row)
				}
				at++
			}
			if int(got.requests) != at || !slices.Equal(got.slots, b.Slots) {
				t.Fatalf("%d requests with rows, the launch found %+v", at, got)
			}
			launched++
		}
		r.seen = r.seen[:0]
	})
	least := 1000
	if testing.Short() { // rapid checks a fifth then
		least = 100
	}
	if refused == 0 || launched < least {
		t.Errorf("%d steps were refused, %d launched", refused, launched)
	}
}

// TestNamesAreHeld: new blocks of named sequences are validated like those of others; known ones are not
// read again.
func TestNamesAreHeld(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	c := r.call(batch(t, 0))
	r.must(r.op.Launch(c))
	b := attention.NewBatch(2, 8, 4)
	add := func(name uint64, computed int, blocks ...int32) {
		r.must(b.AddSequence(name, computed, 1, blocks, 4))
	}
	add(1, 4, 7, 1)
	r.must(r.op.Prepare(r.stream, b, 8, 1))
	b.Reset()
	add(1, 8, 7, 1, 9)
	r.refuses("block 2 of its sequence is 9, the cache has 9", r.op.Prepare(r.stream, b, 8, 1))
	b.Reset()
	add(2, 8, 7, 1, 8)
	r.must(r.op.Prepare(r.stream, b, 8, 1))
	b.BlockTable[2], b.Slots[0] = 99, 99*4 // the sequence is known, but not this block
	r.refuses("whose slot is 32 of 36, not 396", r.op.Prepare(r.stream, b, 8, 1))
	b.BlockTable[2], b.Slots[0] = 8, 32
	b.BlockTable[0] = 99 // a known block is neither validated nor copied again
	for range 5 {
		r.must(r.op.Prepare(r.stream, b, 8, 1))
		c.Meta, c.Rows = b, 1
		r.must(r.op.Launch(c))
	}
	r.must(r.stream.Synchronize())
	for _, x := range r.seen[1:] {
		if !slices.Equal(x.table[:3], []int32{7, 1, 8}) {
			t.Errorf("a launch found blocks %v", x.table)
		}
	}
	b.Reset()
	add(3, 6, 4, 5)
	add(4, 6, 4, 6)
	r.must(r.op.Prepare(r.stream, b, 8, 2))
	b.Slots[1]++
	r.refuses("row 1 is at position 6, whose slot is 26 of 36, not 27", r.op.Prepare(r.stream, b, 8, 2))
	b.Slots[1]--
	b.BlockTable[0], b.BlockTable[4] = 9999, -1 // the same for block 4, which is in two sequences
	r.must(r.op.Prepare(r.stream, b, 8, 2))
	b.Reset()
	add(5, 8, 1, 2, 3)
	b.Sequences = append(b.Sequences, 5)
	r.refuses("2 entries in Sequences for 1 requests", r.op.Prepare(r.stream, b, 8, 1))
	nameless := func(blocks ...[]int32) error {
		b.Reset()
		for _, list := range blocks {
			r.must(b.Add(4*len(list)-1, 1, list, 4))
			b.Sequences = append(b.Sequences, 0)
		}
		return r.op.Prepare(r.stream, b, 8, int64(b.Rows()))
	}
	r.must(nameless([]int32{1, 2}, []int32{3, 4})) // sequences without names are not known to later steps
	r.refuses("block 0 of its sequence is 99, the cache has 9", nameless([]int32{99, 2}))
	r.refuses("request 0 reads block 5, which request 1 appends to", nameless([]int32{1, 5}, []int32{3, 5}))
	b.Reset()
	r.refuses("request 0 has name 0", b.AddSequence(0, 0, 1, []int32{1}, 4))
	r.must(b.Add(0, 1, []int32{1}, 4))
	r.refuses("and 0 of the requests before it have names", b.AddSequence(2, 0, 1, []int32{1}, 4))
	r.must(r.stream.Synchronize())
}
