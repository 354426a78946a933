package tokenizer

import (
	"os"
	"path/filepath"
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
		`{`:  "no tokenizer.json",
		`{}`: "it has no model",
		`{"model": {"type": "Other", "vocab": {}}}`:                                                                                                          `model of type "Other" is not supported; supported types: BPE`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}`:                                                                                   "model.merges[0]",
		`{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}`:                                                                                       `token "a" has id -1`,
		`{"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "b"}}`:                                                                              "model.unk_token",
		`{"model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 5}}`:                                                                                   "model.unk_id",
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": {"type": "Magic"}}`:                                                       `normalizer of type "Magic"`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}}`: "pattern",
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [{"id": 99999999, "content": "x"}]}`:                                    `added token "x" has id 99999999`,
	} {
		if _, err := ParseJSON([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "has no tokenizer") {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := ParseSentencePiece([]byte("x")); err == nil {
		t.Error("no error for what is no model")
	}
	if _, err := ParseTiktoken([]byte("YQ== 0\n"), Llama3Pattern, nil); err == nil || !strings.Contains(err.Error(), "has no rank") {
		t.Errorf("ranks without all bytes: %v", err)
	}
}

// A long word takes time n·log n: this one has a million characters of one kind.
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

// Whatever a text is, it can be encoded, and the text of its ids is UTF-8.
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
