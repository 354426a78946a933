package tokenizer

import "slices"

// template adds the tokens around a sequence.
type template interface{ around(ids []int32) []int32 }

// templates run in order.
type templates []template

func (ts templates) around(ids []int32) []int32 {
	for _, t := range ts {
		ids = t.around(ids)
	}
	return ids
}

// surround is a template of fixed tokens.
type surround struct{ before, after []int32 }

func (s surround) around(ids []int32) []int32 { return slices.Concat(s.before, ids, s.after) }
