package tokenizer

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The texts were worked out by hand from Unicode 16, section 3.9, table 3-8 and the tables next to it.
func TestInvalidUTF8(t *testing.T) {
	for in, want := range map[string]string{
		"a":                                      "a",
		"\xff":                                   "�",
		"a\xc3":                                  "a�",
		"\xc0\xaf":                               "��",    // overlong: never valid
		"\xe0\x9f\x80":                           "���",   // the second byte is too small
		"\xed\xa0\x80":                           "���",   // a surrogate
		"\xf4\x91\x92\x93":                       "����",  // above U+10FFFF
		"\xf0\x90\x8d":                           "�",     // truncated: one for the longest valid prefix
		"\xe1\x80\xe2\xf0\x91\x92\xf1\xbfA":      "����A", // table 3-11
		"\xc3\xa9\x80":                           "é�",
		"x\xe2\x82":                              "x�",
		"\xe2\x82\xacok\xf0\x9f\x98\x80\xf0\x9f": "€ok😀�",
	} {
		if got := validUTF8(in); got != want {
			t.Errorf("%x is %q, want %q", in, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{`:  "not a tokenizer.json",
		`{}`: "it has no model",
		`{"Model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}`:                                                                                                             `key "Model"; it must be "model"`,
		`{"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}}`:                                                                                                     `key "a" twice`,
		`{"model": {"type": "Other", "vocab": {}}}`:                                                                                                                               `model of type "Other" is not supported; supported types: BPE`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}`:                                                                                                        "model.merges[0]",
		`{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}`:                                                                                                            `token "a" has id -1`,
		`{"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "b"}}`:                                                                                                   "model.unk_token",
		`{"model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 5}}`:                                                                                                        "model.unk_id",
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": {"type": "Magic"}}`:                                                                            `normalizer of type "Magic"`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}}`:                      "pattern",
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "Metaspace"}}`:                                                                     `a Metaspace has the replacement ""`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}}`:                       `prepend_scheme "last", which is not one of always, first, never`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "Never"}}`:                            `prepend_scheme "Never", which is not one of always, first, never`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false}}`: `prepend_scheme "first", which add_prefix_space false excludes`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": {"type": "Strip", "start": 9000000000000000000}}`:                                                 `a Strip has the content ""`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [{"id": 99999999, "content": "x"}]}`:                                                         `added token "x" has id 99999999`,
	} {
		if _, err := ParseJSON([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "has no tokenizer") {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := ParseSentencePiece([]byte("x")); err == nil {
		t.Error("ParseSentencePiece accepts the byte x")
	}
	fallback := []byte{0x0a, 7, 0x0a, 1, 'a', 0x18, pieceUnknown, 0x18, pieceUnknown, 0x12, 3, 0x98, 2, 1} // one piece, and field 35 of the second message
	if _, err := ParseSentencePiece(fallback); err == nil || !strings.Contains(err.Error(), "the piece <0x00> is missing") {
		t.Errorf("byte_fallback without pieces of bytes: %v", err)
	}
	if _, err := ParseTiktoken([]byte("YQ== 0\n"), Llama3Pattern, nil); err == nil || !strings.Contains(err.Error(), "has no rank") {
		t.Errorf("ranks without all bytes: %v", err)
	}
}

// Characters of words are those of \w in Rust's regex.
func TestIsWord(t *testing.T) {
	for text, want := range map[string]bool{"aé中ǅʰ": true, "7٣": true, "Ⅷ": true, "Ⓐ": true, "\u0301": true, "_‿": true, "\u200d": true, "²½①": false, "-€ ": false} {
		for _, r := range text {
			if isWord(r) != want {
				t.Errorf("%q: %v, want %v", r, !want, want)
			}
		}
	}
}

// The visible character is a space, except in the first token, if one was added there.
func TestMetaspaceDecoder(t *testing.T) {
	for added, want := range map[bool]string{true: "ab c", false: "  a b c"} {
		if got := strings.Join(metaspaceDecoder{"▁", added}.decode([]string{"▁▁a▁b", "▁c"}), ""); got != want {
			t.Errorf("added %v: %q, want %q", added, got, want)
		}
	}
}

// A WordPiece decoder joins tokens that begin with its prefix. An empty prefix joins all tokens.
func TestWordPiecePrefix(t *testing.T) {
	for field, want := range map[string]string{``: "ab c", `, "prefix": "c"`: "a ##b", `, "prefix": ""`: "a##bc"} {
		tk, err := ParseJSON([]byte(`{"model": {"type": "WordLevel", "vocab": {"a": 0, "##b": 1, "c": 2}}, "decoder": {"type": "WordPiece"` + field + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := tk.Decode([]int32{0, 1, 2}, false); got != want {
			t.Errorf("with the field %q: %q, want %q", field, got, want)
		}
	}
}

// Of several tokens with one id, Decode gives the added one, else the first in alphabetical order.
func TestTokensWithOneID(t *testing.T) {
	for range 20 { // the order of a map is random
		tk, err := ParseJSON([]byte(`{"model": {"type": "WordLevel", "vocab": {"a": 0, "z": 0, "c": 1, "b": 1}}, "added_tokens": [{"id": 0, "content": "x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := tk.Decode([]int32{0, 1}, true); got != "x b" {
			t.Fatalf("%q, want x b", got)
		}
	}
}

// A word of 200,000 equal characters is encoded. In time n² the test would take minutes.
func TestLongWord(t *testing.T) {
	for _, name := range []string{"llama2", "sp_bpe", "tiktoken"} {
		tk, err := Open(filepath.Join(goldens, name))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Repeat(" ", 200_000)
		if got := tk.Decode(tk.Encode(text, false), false); !strings.HasPrefix(text, got) || len(got) < len(text)-1 {
			t.Errorf("%s: %d spaces come back as %d", name, len(text), len(got))
		}
	}
}

// A charsmap that replaces the first byte of é leaves valid UTF-8.
func TestCharsmapCutsCharacter(t *testing.T) {
	data := make([]byte, 4+4*256+1)
	binary.LittleEndian.PutUint32(data, 4*256)
	binary.LittleEndian.PutUint32(data[4+4*0xc3:], 0xc3|1<<8|1<<10) // the replacement of this byte is at unit 0xc3 ^ 1: text 0, ""
	n, err := parseCharsmap(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := n.normalize("aéb"); got != "a\ufffdb" {
		t.Errorf("%q, want U+FFFD for the rest of the character", got)
	}
}

// A user-defined piece has the score -0.1, so a unigram model prefers it to its characters.
func TestUserDefinedPieces(t *testing.T) {
	m := spModel{kind: modelUnigram, pieces: []spPiece{
		{"<unk>", 0, pieceUnknown}, {"a", -1, pieceNormal}, {"b", -1, pieceNormal}, {"aabb", 0, pieceUser},
	}}
	tk, err := m.tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]int32{"aabb": {3}, "baabba": {2, 3, 1}, "ab": {1, 2}} {
		if got := tk.Encode(text, false); !slices.Equal(got, want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, name := range []string{"gpt2", "llama2", "bert", "t5"} {
		text, err := os.ReadFile(filepath.Join(goldens, name, jsonFile))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if tk, err := ParseJSON(text); err == nil {
			tk.Decode(tk.Encode("Hello, wörld 123\n", true), true)
		}
	})
}

func FuzzParseSentencePiece(f *testing.F) {
	for _, name := range []string{"sp_bpe", "sp_unigram"} {
		data, err := os.ReadFile(filepath.Join(goldens, name, sentencePieceFile))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if tk, err := ParseSentencePiece(data); err == nil {
			tk.Decode(tk.Encode("Hello, wörld 123\n", true), true)
		}
	})
}

// A byte-level tokenizer encodes any text. Decoding gives the text back, with U+FFFD for bytes that are
// not UTF-8.
func FuzzEncode(f *testing.F) {
	tk, err := Open(filepath.Join(goldens, "llama3"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a\xc3 \U0001F600")
	f.Fuzz(func(t *testing.T, text string) {
		ids := tk.Encode(text, false)
		if got := tk.Decode(ids, true); got != validUTF8(text) || !utf8.ValidString(got) {
			t.Fatalf("%q comes back as %q", text, got)
		}
	})
}

// BERT's cleaning removes control, format and private-use characters, and keeps unassigned ones.
func TestBertCleans(t *testing.T) {
	n := bertNormalizer{clean: true}
	for in, want := range map[string]string{
		"a\x01b\u200bc\ue000d\u0378e\U000e0fffz": "abcd\u0378e\U000e0fffz",
		"a\tb\u2003c\u0301é1.+":                  "a b c\u0301é1.+",
	} {
		if got := n.normalize(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}

// The ids were worked out by hand from huggingface/tokenizers (models/bpe/model.rs and models/unigram/model.rs).
func TestRareModels(t *testing.T) {
	for _, c := range []struct {
		name, model, text string
		want              []int32
	}{
		{"a merge that occurs twice has its last rank", `{"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}, "merges": ["a b", "b c", "a b"]}`, "abc", []int32{0, 4}},
		{"the suffix has bytes", `{"type": "BPE", "byte_fallback": true, "end_of_word_suffix": "/", "vocab": {"a": 0, "<0xC3>": 1, "<0xA9>": 2, "<0x2F>": 3}, "merges": []}`, "aé", []int32{0, 1, 2, 3}},
		{"the text of the unknown token", `{"type": "Unigram", "byte_fallback": true, "unk_id": 0, "vocab": [["<>", 0], ["<0x3C>", 0], ["<0x3E>", 0]]}`, "<>", []int32{0}},
		{"and a further character", `{"type": "Unigram", "byte_fallback": true, "unk_id": 0, "vocab": [["<>", 0], ["<0x3C>", 0], ["<0x3E>", 0]]}`, "<>>", []int32{1, 2, 2}},
	} {
		tk, err := ParseJSON([]byte(`{"model": ` + c.model + `}`))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := tk.Encode(c.text, false); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
