// Package tokenizer turns text into the ids of a language model and back. It reads tokenizer.json
// of Hugging Face, tokenizer.model of SentencePiece, and the rank files of tiktoken. Ids and texts are
// those of these libraries. If a unigram model finds several cuts of a text equally likely, the library
// may choose another one.
//
// Encoding has four steps: it separates added tokens, normalizes the text between them, splits it
// into words, and splits words into tokens by a model. A template adds the special tokens of a
// sequence. Decoding turns ids into text; [Tokenizer.Stream] does so while ids arrive, and
// returns only whole characters.
package tokenizer

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pwc/internal/openfile"
)

// Tokenizer converts between text and ids. It is safe for concurrent use.
type Tokenizer struct {
	added   addedTokens
	normal  normalizer // nil: no normalization
	words   splitter   // nil: the text is one word
	model   model
	post    template // nil: no special tokens around a sequence
	decoder decoder  // nil: tokens with spaces between them

	tokens []string         // by id; "" for an unused id
	ids    map[string]int32 // of tokens
}

// MaxFile bounds the bytes of a tokenizer file.
const MaxFile = 256 << 20

// Files that Open tries in a directory, in this order.
const (
	jsonFile          = "tokenizer.json"
	sentencePieceFile = "tokenizer.model"
	tiktokenFile      = "tokenizer.tiktoken"
)

// Open reads a tokenizer file: a SentencePiece model (.model), ranks of tiktoken (.tiktoken) with the
// pattern of Llama 3 and without special tokens, or else a tokenizer.json. Of a checkpoint directory, it
// reads the first that exists of tokenizer.json, tokenizer.model and tokenizer.tiktoken.
func Open(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return openFile(path)
	}
	for _, name := range []string{jsonFile, sentencePieceFile, tiktokenFile} {
		file := filepath.Join(path, name)
		if _, err := os.Stat(file); err == nil {
			return openFile(file)
		}
	}
	return nil, fmt.Errorf("%s has no tokenizer: none of %s, %s, %s: %w", path, jsonFile, sentencePieceFile, tiktokenFile, fs.ErrNotExist)
}

func openFile(path string) (*Tokenizer, error) {
	data, err := openfile.Read(path, MaxFile)
	if err != nil {
		return nil, err
	}
	var t *Tokenizer
	switch filepath.Ext(path) {
	case ".model":
		t, err = ParseSentencePiece(data)
	case ".tiktoken":
		t, err = ParseTiktoken(data, Llama3Pattern, nil)
	default:
		t, err = ParseJSON(data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Size returns the number of ids: the largest plus one.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// ID returns the id of a token in the vocabulary's form.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Token returns the vocabulary's form of an id; "" for an unused id.
func (t *Tokenizer) Token(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}

// Special reports whether an id is a control token, which Decode omits unless it is asked for control tokens.
func (t *Tokenizer) Special(id int32) bool { return t.added.special[id] }

// Encode returns the ids of a text. With surround, it adds the special tokens of a sequence, such
// as that of its beginning. Bytes that are not UTF-8 count as U+FFFD, one for each maximal
// subpart (Unicode 16, section 3.9, "U+FFFD Substitution of Maximal Subparts").
func (t *Tokenizer) Encode(text string, surround bool) []int32 {
	text = validUTF8(text)
	var ids []int32
	for _, part := range t.added.cut(text) {
		if part.id >= 0 {
			ids = append(ids, part.id)
			continue
		}
		t.encodePart(part, &ids)
	}
	if surround && t.post != nil {
		ids = t.post.around(ids)
	}
	return ids
}

// encodePart appends the ids of text between added tokens.
func (t *Tokenizer) encodePart(p span, ids *[]int32) {
	text := p.text
	if t.normal != nil {
		text = t.normal.normalize(text)
	}
	for i, q := range t.added.cutNormalized(text) {
		if q.id >= 0 {
			*ids = append(*ids, q.id)
			continue
		}
		words := []word{{q.text, p.first && i == 0 && q.first}}
		if t.words != nil {
			words = t.words.split(words)
		}
		for _, w := range words {
			if w.text != "" {
				*ids = t.model.encode(*ids, w.text)
			}
		}
	}
}

// Decode returns the text of ids. Without control it omits control tokens. Bytes that are not
// UTF-8 become U+FFFD; ids out of range have no text.
func (t *Tokenizer) Decode(ids []int32, control bool) string {
	return text(t.decoder, t.pieces(ids, control))
}

// pieces returns the tokens of the ids in range; without control it omits control tokens.
func (t *Tokenizer) pieces(ids []int32, control bool) []string {
	pieces := make([]string, 0, len(ids))
	for _, id := range ids {
		if id < 0 || int(id) >= len(t.tokens) || !control && t.added.special[id] {
			continue
		}
		pieces = append(pieces, t.tokens[id])
	}
	return pieces
}

// text returns the text of tokens. Without a decoder there are spaces between them.
func text(d decoder, pieces []string) string {
	if d == nil {
		return strings.Join(pieces, " ")
	}
	return strings.Join(d.decode(slices.Clone(pieces)), "")
}

// setVocabulary fills the tables of tokens and ids. If several tokens have one id, t.tokens has the first in
// alphabetical order that is not empty.
func (t *Tokenizer) setVocabulary(ids map[string]int32) error {
	size := int32(0)
	for token, id := range ids {
		if id < 0 || id >= maxIDs {
			return fmt.Errorf("token %q has id %d, ids are from 0 to %d", token, id, maxIDs-1)
		}
		size = max(size, id+1)
	}
	t.tokens, t.ids = make([]string, size), ids
	for token, id := range ids {
		if old := t.tokens[id]; old == "" || token != "" && token < old {
			t.tokens[id] = token
		}
	}
	return nil
}

// maxIDs bounds a vocabulary: the largest published ones have about 2^18 tokens.
const maxIDs = 1 << 24
