package train_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/optim"
	"pwc/safetensors"
	"pwc/train"
)

// numbered returns an i32 tensor of rows whose elements count from 0.
func numbered(rows, size int) safetensors.Tensor {
	var data []byte
	for i := range rows * size {
		data = binary.LittleEndian.AppendUint32(data, uint32(i))
	}
	return safetensors.Tensor{DType: dtype.I32, Shape: []int64{int64(rows), int64(size)}, Data: data}
}

// shuffled returns the rows of each batch of passes over 7 rows, which hold 3 batches.
func shuffled(t *testing.T, p *train.Program, src safetensors.Source, seed int64, passes int) [][]byte {
	t.Helper()
	d, err := train.NewData(p, src)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Shuffle(seed); err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for step := range int64(3 * passes) {
		d.Select(step)
		ids, err1 := d.Input(0, 0)
		labels, err2 := d.Input(0, 1)
		mask, err3 := d.Input(0, 2)
		if err1 != nil || err2 != nil || err3 != nil || len(ids) != 24 || len(labels) != 8 || len(mask) != 12 {
			t.Fatal(err1, err2, err3)
		}
		for row := range 2 {
			id, label := ids[12*row], labels[4*row]
			if id != 3*label || ids[12*row+4] != id+1 || ids[12*row+8] != id+2 {
				t.Errorf("step %d: row %v of ids has label %d", step, ids[12*row:12*row+12], label)
			}
		}
		out = append(out, bytes.Clone([]byte{labels[0], labels[4]}))
	}
	return out
}

// Each pass has every row at most once, in an order of its own that the seed determines. Rows of
// all inputs move together.
func TestShuffle(t *testing.T) {
	const text = `pwc 1
module "m" {
  weight @w : f32[]
  func @loss(%ids: i32[2, 3], %labels: i32[2], %mask: f32[3]) -> (f32[]) {
    %i = cast(%ids, dtype=f32)
    %m = mul(%i, %mask)
    %s = sum(%m, axes=[0, 1])
    %l = cast(%labels, dtype=f32)
    %t = sum(%l, axes=[0])
    %u = mul(%s, %t)
    %y = mul(%u, @w)
    return %y
  }
}
`
	p, err := train.Build(testkit.Parse(t, text), train.Options{Optimizer: optim.SGD{}})
	if err != nil {
		t.Fatal(err)
	}
	mask := safetensors.Tensor{DType: dtype.F32, Shape: []int64{3}, Data: make([]byte, 12)}
	src := memory{"ids": numbered(7, 3), "labels": numbered(7, 1), "mask": mask}
	const passes = 40
	got := shuffled(t, p, src, 5, passes)
	left := map[byte]int{}
	orders := map[string]bool{}
	for pass := range passes {
		rows := slices.Concat(got[3*pass : 3*pass+3]...)
		orders[string(rows)] = true
		slices.Sort(rows)
		if len(slices.Compact(slices.Clone(rows))) != 6 || rows[5] > 6 {
			t.Errorf("pass %d has rows %v", pass, rows)
		}
		for row := range byte(7) {
			if !slices.Contains(rows, row) {
				left[row]++
			}
		}
	}
	if len(orders) < passes/2 || len(left) != 7 {
		t.Errorf("%d orders in %d passes, left out are %v", len(orders), passes, left)
	}
	if again := shuffled(t, p, src, 5, passes); !slices.EqualFunc(got, again, bytes.Equal) {
		t.Error("the same seed gives another order")
	}
	if other := shuffled(t, p, src, 6, passes); slices.EqualFunc(got, other, bytes.Equal) {
		t.Error("another seed gives the same order")
	}
	d, err := train.NewData(p, src)
	if err != nil || !d.ReadOnly() {
		t.Fatalf("the tensors are not read in place, %v", err)
	}
	if err := d.Shuffle(5); err != nil || d.ReadOnly() {
		t.Fatalf("the batches are said to stay, %v", err)
	}
	d.Select(3*passes - 1) // as a resumed run begins
	if x, err := d.Input(0, 1); err != nil || x[0] != got[len(got)-1][0] || x[4] != got[len(got)-1][1] {
		t.Errorf("a resumed run has labels %v, want %v, %v", x, got[len(got)-1], err)
	}
	src["labels"] = numbered(6, 1)
	if d, err = train.NewData(p, src); err != nil {
		t.Fatal(err)
	}
	if err := d.Shuffle(5); err == nil || !strings.Contains(err.Error(), "ids has 7 rows in batches of 2, labels has 6") || !d.ReadOnly() {
		t.Errorf("7 and 6 rows: %v", err)
	}
}
