package attention_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"pwc/attention"
)

// mixed returns a batch of a prefill of 5 tokens, a decode at position 6, and a chunk of 3 tokens after
// 2, in blocks of 4.
func mixed(t *testing.T) *attention.Batch {
	t.Helper()
	b := attention.NewBatch(3, 9, 2)
	for _, r := range []struct {
		computed, tokens int
		blocks           []int32
	}{{0, 5, []int32{3, 1}}, {6, 1, []int32{0, 7}}, {2, 3, []int32{5, 2, 6}}} {
		if err := b.Add(r.computed, r.tokens, r.blocks, 4); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func TestBatchAdd(t *testing.T) {
	want := &attention.Batch{
		QueryStart: []int32{0, 5, 6, 9},
		SeqLens:    []int32{5, 7, 5},
		BlockTable: []int32{3, 1, 0, 7, 5, 2},
		Stride:     2,
		Slots:      []int32{12, 13, 14, 15, 4, 30, 22, 23, 8},
		MaxQuery:   5,
		MaxSeq:     7,
	}
	b := mixed(t)
	if d := cmp.Diff(want, b, cmpopts.IgnoreUnexported(attention.Batch{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if err := b.Validate(9, 8, 4); err != nil {
		t.Error(err)
	}
	if b.Rows() != 9 || b.Requests() != 3 || b.Uniform() {
		t.Errorf("rows %d, requests %d, uniform %v", b.Rows(), b.Requests(), b.Uniform())
	}
	for row, want := range []int{0, 0, 0, 0, 0, 1, 2, 2, 2} {
		if got := b.Request(row); got != want {
			t.Errorf("row %d is of request %d, want %d", row, got, want)
		}
	}
}

func TestBatchAddErrors(t *testing.T) {
	b := attention.NewBatch(1, 8, 2)
	for want, err := range map[string]error{
		"do not hold a sequence of 5":       b.Add(0, 5, []int32{1}, 4),
		"room for 2":                        b.Add(0, 9, []int32{1, 2, 3}, 4),
		"-1 tokens after 0":                 b.Add(0, -1, nil, 4),
		"1 tokens after -1":                 b.Add(-1, 1, nil, 4),
		"in blocks of 0":                    b.Add(0, 1, []int32{1}, 0),
		"1 tokens after 1073741824, in blo": b.Add(1<<30, 1, []int32{1}, 4),
		fmt.Sprint("after ", math.MaxInt):   b.Add(math.MaxInt, 1, []int32{1}, 4),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	if b.Requests() != 0 || b.Rows() != 0 {
		t.Error("a request that was refused is in the batch")
	}
}

// TestAdvance: a batch that was advanced equals one that is built from the same requests, also if
// another batch was used for steps between, and only requests that need a new block are asked for
// their blocks.
func TestAdvance(t *testing.T) {
	const size, requests = 4, 3
	rng := rand.New(rand.NewPCG(3, 1))
	type sequence struct {
		name   uint64
		tokens int
		blocks []int32
	}
	var live []sequence
	names, next := uint64(0), int32(0)
	join := func() {
		names++
		live = append(live, sequence{name: names, tokens: rng.IntN(9)})
	}
	grow := func(r, tokens int) []int32 {
		q := &live[r]
		for len(q.blocks)*size < tokens {
			next++
			q.blocks = append(q.blocks, next)
		}
		return q.blocks
	}
	build := func(b *attention.Batch, rows int) {
		t.Helper()
		for r := range live {
			q := &live[r]
			if err := b.AddSequence(q.name, q.tokens, rows, grow(r, q.tokens+rows), size); err != nil {
				t.Fatal(err)
			}
		}
	}
	batches, last, advanced := []*attention.Batch{attention.NewBatch(requests, 64, 16), attention.NewBatch(requests, 64, 16)}, []int{-1, -1}, 0
	for turn := range 3000 {
		b, before := batches[turn%2], last[turn%2]
		rows := 1
		if turn == 0 || rng.IntN(12) == 0 || live[0].tokens > 30 {
			live = live[:0]
			for range 1 + rng.IntN(requests) {
				join()
			}
			last = []int{-1, -1}
			before = -1
			rows = 1 + rng.IntN(2)*rng.IntN(2)
			if rng.IntN(2) == 0 {
				batches[0].Stride, batches[1].Stride = 12+rng.IntN(5), 12+rng.IntN(5)
			}
		}
		var asked, lacking []int
		for r := range live {
			if n := live[r].tokens + 1; before >= 0 && (n+size-1)/size > (n-turn+before+size-1)/size {
				lacking = append(lacking, r)
			}
		}
		more := func(r int) []int32 {
			asked = append(asked, r)
			return grow(r, live[r].tokens+1)
		}
		if before >= 0 && b.Advance(turn-before, size, more) {
			advanced++
			if !slices.Equal(asked, lacking) {
				t.Fatalf("requests %v were asked for blocks, %v need them", asked, lacking)
			}
		} else {
			b.Reset()
			build(b, rows)
		}
		want := attention.NewBatch(requests, 64, b.Stride)
		build(want, rows)
		if !slices.Equal(b.QueryStart, want.QueryStart) || !slices.Equal(b.SeqLens, want.SeqLens) || !slices.Equal(b.Slots, want.Slots) || !slices.Equal(b.Sequences, want.Sequences) ||
			b.MaxQuery != want.MaxQuery || b.MaxSeq != want.MaxSeq {
			t.Fatalf("%+v, want %+v", b, want)
		}
		for r := range live {
			q := &live[r]
			q.tokens += rows
			used := (q.tokens + size - 1) / size
			if got := b.BlockTable[r*b.Stride:][:used]; !slices.Equal(got, q.blocks[:used]) {
				t.Fatalf("the table has %v, the sequence %v", got, q.blocks)
			}
		}
		if rows == 1 {
			last[turn%2] = turn
		}
	}
	if advanced < 1500 {
		t.Errorf("only %d of 3000 steps advanced a batch", advanced)
	}
}

// TestAdvanceRefuses: Advance returns false for batches other than named decodes, for batches whose fields do not
// fit each other, for arguments out of range, and if the table has no room or the request too few blocks.
func TestAdvanceRefuses(t *testing.T) {
	const size = 4
	decodes := func() *attention.Batch {
		b := attention.NewBatch(2, 8, 3)
		for name := range uint64(2) {
			if err := b.AddSequence(name+1, 6, 1, []int32{4, 5}, size); err != nil {
				t.Fatal(err)
			}
		}
		return b
	}
	asked := 0
	more := func(int) []int32 { asked++; return []int32{4, 5, 6} }
	if b := decodes(); !b.Advance(1, size, more) || asked != 0 || !slices.Equal(b.Slots, []int32{23, 23}) {
		t.Errorf("the last places of block 5 are %v, more was asked %d times", b.Slots, asked)
	}
	if b := decodes(); !b.Advance(2, size, more) || asked != 2 || !slices.Equal(b.Slots, []int32{24, 24}) {
		t.Errorf("the first places of block 6 are %v, more was asked %d times", b.Slots, asked)
	}
	with := func(change func(b *attention.Batch)) *attention.Batch {
		b := decodes()
		change(b)
		return b
	}
	plain := attention.NewBatch(1, 1, 3)
	if err := plain.Add(6, 1, []int32{4, 5}, size); err != nil {
		t.Fatal(err)
	}
	nameless := attention.NewBatch(1, 1, 3)
	if err := nameless.Add(6, 1, []int32{4, 5}, size); err != nil {
		t.Fatal(err)
	}
	nameless.Sequences = []uint64{0}
	for name, did := range map[string]bool{
		"a name of 0":          nameless.Advance(1, size, more),
		"no requests":          attention.NewBatch(1, 1, 3).Advance(1, size, more),
		"no names":             plain.Advance(1, size, more),
		"backwards":            decodes().Advance(-1, size, more),
		"too far":              decodes().Advance(1<<30-6, size, more),
		"blocks of 0":          decodes().Advance(1, 0, more),
		"no room in the table": decodes().Advance(6, size, func(int) []int32 { return []int32{4, 5, 6, 7} }),
		"too few blocks":       decodes().Advance(2, size, func(int) []int32 { return []int32{4, 5} }),
		"another name":         with(func(b *attention.Batch) { b.Sequences[1] = 9 }).Advance(1, size, more),
		"another table":        with(func(b *attention.Batch) { b.Stride = 2 }).Advance(1, size, more),
		"several rows": with(func(b *attention.Batch) {
			if err := b.AddSequence(3, 6, 2, []int32{4, 5}, size); err != nil {
				t.Fatal(err)
			}
		}).Advance(0, size, more),
		"a request without rows": with(func(b *attention.Batch) {
			if err := b.AddSequence(3, 6, 0, []int32{4, 5}, size); err != nil {
				t.Fatal(err)
			}
		}).Advance(0, size, more),
		"as many rows as requests": with(func(b *attention.Batch) {
			b.Reset()
			if err := errors.Join(b.AddSequence(1, 5, 2, []int32{4, 5}, size), b.AddSequence(2, 7, 0, []int32{4, 5}, size)); err != nil {
				t.Fatal(err)
			}
		}).Advance(0, size, more),
		"a table that was cut":      with(func(b *attention.Batch) { b.BlockTable = b.BlockTable[:3] }).Advance(2, size, more),
		"a length that was changed": with(func(b *attention.Batch) { b.SeqLens[0] = 1 }).Advance(1, size, more),
	} {
		if did {
			t.Errorf("%s: advanced", name)
		}
	}
}

// TestBatchAllocations: building a batch like the previous one, advancing it and validating it do not allocate.
func TestBatchAllocations(t *testing.T) {
	b := attention.NewBatch(4, 16, 4)
	blocks := []int32{2, 0, 1, 3}
	if n := testing.AllocsPerRun(10, func() {
		b.Reset()
		for name := range uint64(4) {
			if err := b.AddSequence(name+1, 9, 4, blocks, 4); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations with names", n)
	}
	tokens := 0
	more := func(int) []int32 { return blocks }
	b.Reset()
	for name := range uint64(4) {
		if err := b.AddSequence(name+1, 0, 1, blocks, 4); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		tokens++
		if !b.Advance(1, 4, more) {
			t.Fatalf("%d tokens are too many", tokens)
		}
	}); n != 0 {
		t.Errorf("%v allocations in Advance", n)
	}
	if n := testing.AllocsPerRun(10, func() {
		b.Reset()
		for r := range 4 {
			if err := b.Add(3*r, 1+r, blocks, 4); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Validate(10, 4, 4); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

func TestUniform(t *testing.T) {
	b := attention.NewBatch(2, 4, 1)
	for range 2 {
		if err := b.Add(1, 2, []int32{0}, 4); err != nil {
			t.Fatal(err)
		}
	}
	if !b.Uniform() {
		t.Error("two requests of two rows are not uniform")
	}
}

func TestValidate(t *testing.T) {
	for want, break_ := range map[string]func(b *attention.Batch){
		"2 entries in QueryStart for 3 requests": func(b *attention.Batch) { b.QueryStart = b.QueryStart[:2] },
		"5 entries in BlockTable":                func(b *attention.Batch) { b.BlockTable = b.BlockTable[:5] },
		"with stride -1":                         func(b *attention.Batch) { b.Stride = -1 },
		"for 4 requests with stride": func(b *attention.Batch) { // four times the stride overflows to 0
			b.Stride, b.QueryStart, b.SeqLens = math.MaxInt/2+1, append(b.QueryStart, 9), append(b.SeqLens, 0)
		},
		"QueryStart begins with 1":                               func(b *attention.Batch) { b.QueryStart[0] = 1 },
		"describes 8 rows, the step has 9":                       func(b *attention.Batch) { b.QueryStart[3] = 8 },
		"8 entries in Slots":                                     func(b *attention.Batch) { b.Slots = b.Slots[:8] },
		"request 1: rows 5 to 4":                                 func(b *attention.Batch) { b.QueryStart[2] = 4 },
		"request 0: rows 0 to 100":                               func(b *attention.Batch) { b.QueryStart[1] = 100 },
		"request 0: a sequence of 4 tokens with 5":               func(b *attention.Batch) { b.SeqLens[0] = 4 },
		"request 2: a sequence of -1":                            func(b *attention.Batch) { b.SeqLens[2] = -1 },
		"request 0: 5 rows, MaxQuery is 4":                       func(b *attention.Batch) { b.MaxQuery = 4 },
		"request 1: a sequence of 7 tokens, MaxSeq is 6":         func(b *attention.Batch) { b.MaxSeq = 6 },
		"needs 3 blocks, the table has room for 2":               func(b *attention.Batch) { b.SeqLens[1], b.MaxSeq = 9, 9 },
		"block 1 of its sequence is 8, the cache has 8":          func(b *attention.Batch) { b.BlockTable[3] = 8 },
		"block 0 of its sequence is -1":                          func(b *attention.Batch) { b.BlockTable[4] = -1 },
		"row 6 is at position 2, whose slot is 22 of 32, not 21": func(b *attention.Batch) { b.Slots[6] = 21 },
		"row 0 is at position 0, whose slot is 12 of 32, not -2": func(b *attention.Batch) { b.Slots[0] = -2 },
		"row 5 has slot 30 and the request has no length":        func(b *attention.Batch) { b.SeqLens[1] = 0 },
	} {
		b := mixed(t)
		break_(b)
		if err := b.Validate(9, 8, 4); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	b := mixed(t)
	if err := b.Validate(9, 8, 0); err == nil || !strings.Contains(err.Error(), "blocks of 0 tokens") {
		t.Errorf("blocks of 0: %v", err)
	}
	b.Slots[2], b.Slots[5], b.SeqLens[1] = attention.PaddedSlot, attention.PaddedSlot, 0
	if err := b.Validate(9, 8, 4); err != nil {
		t.Errorf("padded rows and a padded request: %v", err)
	}
}

// TestValidateNew: known blocks are not read again from the table. The last known block is refused if the cache does
// not have it, and a slot that is not that of the row's position is refused.
func TestValidateNew(t *testing.T) {
	b := attention.NewBatch(1, 1, 3)
	if err := b.AddSequence(1, 6, 1, []int32{4, 8}, 4); err != nil {
		t.Fatal(err)
	}
	known := []attention.Known{{Name: 1, Blocks: 2, Last: 8}}
	if fresh, err := b.ValidateNew(1, 9, 4, known, nil); err != nil || len(fresh) != 0 {
		t.Errorf("fresh are %v, %v", fresh, err)
	}
	b.BlockTable[0], b.BlockTable[1] = 99, 99
	if fresh, err := b.ValidateNew(1, 9, 4, known, nil); err != nil || len(fresh) != 0 {
		t.Errorf("known blocks were read again: fresh are %v, %v", fresh, err)
	}
	if _, err := b.ValidateNew(1, 8, 4, known, nil); err == nil || !strings.Contains(err.Error(), "row 0 is at position 6, in block 8, the cache has 8") {
		t.Errorf("block 8 of 8: %v", err)
	}
	b.Slots[0]++
	if _, err := b.ValidateNew(1, 9, 4, known, nil); err == nil || !strings.Contains(err.Error(), "whose slot is 34 of 36, not 35") {
		t.Errorf("the next slot: %v", err)
	}
}

// TestValidateKeepsInside: in a batch that Validate accepts, all slots and blocks are inside the cache.
func TestValidateKeepsInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.Int32Range(-2, 6)
		list := func(name string) []int32 { return rapid.SliceOfN(small, 0, 5).Draw(t, name) }
		b := &attention.Batch{QueryStart: list("starts"), SeqLens: list("lengths"), BlockTable: list("table"),
			Stride: rapid.IntRange(-1, 3).Draw(t, "stride"), Slots: list("slots"), MaxQuery: small.Draw(t, "query"), MaxSeq: small.Draw(t, "seq")}
		rows, blocks, size := rapid.IntRange(0, 5).Draw(t, "rows"), rapid.IntRange(0, 4).Draw(t, "blocks"), rapid.IntRange(1, 3).Draw(t, "size")
		if b.Validate(rows, blocks, size) != nil {
			return
		}
		for row := range rows {
			r := b.Request(row)
			pos := int(b.SeqLens[r]) - int(b.QueryStart[r+1]) + row
			if slot := int(b.Slots[row]); slot != attention.PaddedSlot && (slot < 0 || slot >= blocks*size || pos < 0) {
				t.Fatalf("row %d: slot %d, position %d", row, slot, pos)
			}
			for p := range int(b.SeqLens[r]) {
				if block := b.BlockTable[r*b.Stride+p/size]; block < 0 || int(block) >= blocks {
					t.Fatalf("position %d in block %d", p, block)
				}
			}
		}
	})
}

type wrapped struct{ batch *attention.Batch }

func (w wrapped) AttentionBatch() *attention.Batch { return w.batch }

func TestBatchOf(t *testing.T) {
	b := attention.NewBatch(1, 1, 1)
	for _, meta := range []any{b, wrapped{b}} {
		if got, err := attention.BatchOf(meta); got != b || err != nil {
			t.Errorf("%T: %v, %v", meta, got, err)
		}
	}
	for _, meta := range []any{nil, 3, wrapped{}, (*attention.Batch)(nil)} {
		if _, err := attention.BatchOf(meta); err == nil || !strings.Contains(err.Error(), "must be a *attention.Batch") {
			t.Errorf("%T: %v", meta, err)
		}
	}
}
