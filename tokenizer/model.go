package tokenizer

import (
	"container/heap"
	"fmt"
	"math"
	"unicode/utf8"
)

// model splits a word into tokens.
type model interface {
	// encode appends the ids of a non-empty word.
	encode(ids []int32, word string) []int32
}

// pair is two adjacent tokens.
type pair struct{ left, right int32 }

// merge is the result of a pair and its rank.
type merge struct {
	rank  int32
	token int32
}

// bpe merges pairs of tokens, the earliest learned first (Sennrich et al., arXiv:1508.07909).
type bpe struct {
	ids    map[string]int32
	merges map[pair]merge
	bytes  [256]int32 // tokens <0x00> to <0xFF>, -1: missing

	unknown      int32 // -1: characters without a token are dropped
	fuseUnknown  bool  // consecutive unknown characters are one token
	byteFallback bool
	whole        bool   // a word that is a token needs no merges
	prefix       string // of every part of a word except the first
	suffix       string // of the last part
}

// symbol is a token in a word, in a list.
type symbol struct {
	id         int32
	prev, next int // indices; -1: none
	gone       bool
}

// pairMerge is a pair of adjacent tokens and the token that replaces them.
type pairMerge struct {
	pair
	token int32
}

func (m *bpe) encode(ids []int32, word string) []int32 {
	if m.whole {
		if id, ok := m.ids[word]; ok {
			return append(ids, id)
		}
	}
	symbols := m.symbols(word)
	if len(symbols) == 0 {
		return ids
	}
	m.mergeAll(symbols)
	for i := 0; i >= 0; i = symbols[i].next {
		ids = append(ids, symbols[i].id)
	}
	return ids
}

// symbols returns the tokens of the characters of a word, linked.
func (m *bpe) symbols(word string) []symbol {
	var out []symbol
	add := func(id int32) { out = append(out, symbol{id: id}) }
	pending := false // an unknown character that the next one may join
	for i, r := range word {
		size := max(1, utf8.RuneLen(r))
		text := word[i : i+size]
		if i > 0 {
			text = m.prefix + text
		}
		if i+size == len(word) {
			text += m.suffix
		}
		if id, ok := m.ids[text]; ok {
			if pending {
				add(m.unknown)
				pending = false
			}
			add(id)
			continue
		}
		if m.byteFallback && m.hasBytes(text) {
			for _, b := range []byte(text) { // also those of the prefix and the suffix, as in the library
				add(m.bytes[b])
			}
			continue
		}
		if m.unknown < 0 {
			continue
		}
		if pending && !m.fuseUnknown {
			add(m.unknown)
		}
		pending = true
	}
	if pending {
		add(m.unknown)
	}
	for i := range out {
		out[i].prev, out[i].next = i-1, i+1
	}
	if len(out) > 0 {
		out[len(out)-1].next = -1
	}
	return out
}

func (m *bpe) hasBytes(text string) bool {
	for _, b := range []byte(text) {
		if m.bytes[b] < 0 {
			return false
		}
	}
	return true
}

// mergeAll merges pairs by rank, the leftmost of equal ones first.
func (m *bpe) mergeAll(symbols []symbol) {
	var queue mergeQueue[pairMerge]
	add := func(i int) {
		if i < 0 || symbols[i].next < 0 {
			return
		}
		both := pair{symbols[i].id, symbols[symbols[i].next].id}
		if found, ok := m.merges[both]; ok {
			heap.Push(&queue, queuedMerge[pairMerge]{float64(found.rank), i, pairMerge{both, found.token}})
		}
	}
	for i := range symbols {
		add(i)
	}
	for queue.Len() > 0 {
		q := heap.Pop(&queue).(queuedMerge[pairMerge])
		left := &symbols[q.at]
		if left.gone || left.next < 0 || q.merge.pair != (pair{left.id, symbols[left.next].id}) {
			continue // stale: a symbol of the pair was merged
		}
		right := &symbols[left.next]
		right.gone = true
		left.id, left.next = q.merge.token, right.next
		if left.next >= 0 {
			symbols[left.next].prev = q.at
		}
		add(left.prev)
		add(q.at)
	}
}

// wordPiece matches the longest token at each place (Wu et al., arXiv:1609.08144).
type wordPiece struct {
	ids     map[string]int32
	unknown int32
	prefix  string // of every part of a word except the first: "##"
	longest int    // characters of a word; a longer one is unknown
}

func (m *wordPiece) encode(ids []int32, word string) []int32 {
	if utf8.RuneCountInString(word) > m.longest {
		return append(ids, m.unknown)
	}
	from := len(ids)
	for start := 0; start < len(word); {
		end := len(word)
		for ; end > start; end-- {
			if end < len(word) && !utf8.RuneStart(word[end]) {
				continue // within a character
			}
			text := word[start:end]
			if start > 0 {
				text = m.prefix + text
			}
			if id, ok := m.ids[text]; ok {
				ids = append(ids, id)
				break
			}
		}
		if end == start {
			return append(ids[:from], m.unknown)
		}
		start = end
	}
	return ids
}

// wordLevel has a token for each word.
type wordLevel struct {
	ids     map[string]int32
	unknown int32 // -1: other words are dropped
}

func (m *wordLevel) encode(ids []int32, word string) []int32 {
	if id, ok := m.ids[word]; ok {
		return append(ids, id)
	}
	if m.unknown < 0 {
		return ids
	}
	return append(ids, m.unknown)
}

// unigram finds the most probable segmentation (Kudo, arXiv:1804.10959).
type unigram struct {
	scores       map[string]scored
	longest      int // bytes of the longest token
	unknown      int32
	bytes        [256]int32
	byteFallback bool
	penalty      float64 // score of a character without a token
}

// scored is a token and its log probability.
type scored struct {
	id    int32
	score float64
}

// unknownPenalty is subtracted from the least score of a token for an unknown character
// (google/sentencepiece, src/unigram_model.cc, kUnkPenalty).
const unknownPenalty = 10

// newUnigram returns the model of pieces and their scores.
func newUnigram(scores map[string]scored, unknown int32) *unigram {
	m := &unigram{scores: scores, unknown: unknown, penalty: math.Inf(1)}
	for text, s := range scores {
		m.longest = max(m.longest, len(text))
		m.penalty = min(m.penalty, s.score)
	}
	m.penalty -= unknownPenalty
	return m
}

// step is the best path to a place in a word.
type step struct {
	from  int
	id    int32
	score float64
	known bool
}

func (m *unigram) encode(ids []int32, word string) []int32 {
	best := make([]step, len(word)+1)
	best[0].known = true
	for i := 0; i < len(word); {
		_, size := utf8.DecodeRuneInString(word[i:])
		single := false
		for n := 1; n <= min(m.longest, len(word)-i); n++ {
			s, ok := m.scores[word[i:i+n]]
			if !ok {
				continue
			}
			single = single || n == size
			m.reach(&best[i+n], step{i, s.id, best[i].score + s.score, true})
		}
		if !single {
			m.reach(&best[i+size], step{i, m.unknown, best[i].score + m.penalty, true})
		}
		i += size
	}
	return m.collect(ids, word, best)
}

func (m *unigram) reach(at *step, s step) {
	if !at.known || s.score > at.score {
		*at = s
	}
}

// collect appends the ids on the best path. Consecutive unknown characters are one token, or the
// bytes of each.
func (m *unigram) collect(ids []int32, word string, best []step) []int32 {
	var path []match
	for end := len(word); end > 0; end = best[end].from {
		path = append(path, match{best[end].from, end})
	}
	for i := len(path) - 1; i >= 0; i-- {
		id := best[path[i].end].id
		if id != m.unknown {
			ids = append(ids, id)
			continue
		}
		start, end := path[i].start, path[i].end
		for i > 0 && best[path[i-1].end].id == m.unknown {
			i--
			end = path[i].end
		}
		ids = m.fallback(ids, word[start:end])
	}
	return ids
}

// fallback appends the bytes of a text without tokens, or the unknown token. A text that is a token,
// such as that of the unknown token, gives its id.
func (m *unigram) fallback(ids []int32, text string) []int32 {
	if s, ok := m.scores[text]; ok {
		return append(ids, s.id)
	}
	if !m.byteFallback {
		return append(ids, m.unknown)
	}
	for _, b := range []byte(text) {
		if m.bytes[b] < 0 {
			return append(ids, m.unknown)
		}
	}
	for _, b := range []byte(text) {
		ids = append(ids, m.bytes[b])
	}
	return ids
}

// byteTokens returns the ids of <0x00> to <0xFF>; -1 for a missing one.
func byteTokens(ids map[string]int32) (out [256]int32) {
	for b := range out {
		id, ok := ids[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			id = -1
		}
		out[b] = id
	}
	return out
}
