package tokenizer

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
)

// Llama3Pattern splits text as Llama 3 does (meta-llama/llama3, llama/tokenizer.py, pat_str).
const Llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// ParseTiktoken reads ranks: each line has a token in base64 and its rank, which is also its id. The
// regular expression splits text into words. special has the ids of special tokens, which are matched
// in the text.
func ParseTiktoken(text []byte, expression string, special map[string]int32) (*Tokenizer, error) {
	words, err := compilePattern(expression)
	if err != nil {
		return nil, err
	}
	m := &ranks{ids: map[string]int32{}}
	all := map[string]int32{}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		encoded, number, ok := bytes.Cut(line, []byte(" "))
		if !ok {
			return nil, fmt.Errorf("line %d: it must be a token in base64, a space, and its rank", i+1)
		}
		token, err := base64.StdEncoding.DecodeString(string(encoded))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		rank, err := strconv.ParseInt(string(bytes.TrimSpace(number)), 10, 32)
		if err != nil || rank < 0 || rank >= maxIDs {
			return nil, fmt.Errorf("line %d: the rank %q is not a number from 0 to %d", i+1, number, maxIDs-1)
		}
		m.ids[string(token)] = int32(rank)
		all[visible(string(token))] = int32(rank)
	}
	for b := range 256 {
		if _, ok := m.ids[string([]byte{byte(b)})]; !ok {
			return nil, fmt.Errorf("the byte %#02x has no rank", b)
		}
	}
	t := &Tokenizer{words: patternSplit{words, isolated, false}, model: m, decoder: newByteLevelDecoder()}
	var added []addedToken
	for token, id := range special {
		all[token] = id
		added = append(added, addedToken{id: id, content: token, special: true})
	}
	t.added = newAddedTokens(added, nil)
	return t, t.setVocabulary(all)
}

// ranks merges the pair of bytes whose result has the least rank (openai/tiktoken, src/lib.rs).
type ranks struct{ ids map[string]int32 }

func (m *ranks) encode(ids []int32, word string) []int32 {
	if id, ok := m.ids[word]; ok {
		return append(ids, id)
	}
	parts := make([]textPart, len(word))
	for i := range parts {
		parts[i].start, parts[i].end = i, i+1
	}
	merged := mergeText(word, parts, func(text string) (float64, bool) {
		id, ok := m.ids[text]
		return float64(id), ok
	})
	for _, p := range merged {
		ids = append(ids, m.ids[word[p.start:p.end]])
	}
	return ids
}
