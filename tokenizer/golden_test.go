package tokenizer

import (
	"compress/gzip"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const goldens = "../testdata/tokenizers"

// read decodes a compressed JSON file of the goldens.
func read(t *testing.T, path string, into any) {
	t.Helper()
	f, err := os.Open(filepath.Join(goldens, path))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(into); err != nil {
		t.Fatal(err)
	}
}

func texts(t *testing.T) []string {
	t.Helper()
	var out []string
	if read(t, "strings.json.gz", &out); len(out) != 2000 {
		t.Fatalf("%d texts, want 2000", len(out))
	}
	return out
}

// row has the results of the tokenizers library for a text.
type row struct {
	bare, ids  []int32
	text, full string
}

// UnmarshalJSON reads the four columns.
func (r *row) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, &[]any{&r.bare, &r.ids, &r.text, &r.full}); err != nil {
		return err
	}
	if r.ids == nil {
		r.ids = r.bare
	}
	return nil
}

// Each tokenizer.json of the list gives the ids and the texts of the tokenizers library. Of a unigram
// model, up to 5 of the 2000 texts may be cut in another way of the same likelihood.
func TestTokenizers(t *testing.T) {
	all := texts(t)
	for _, name := range []string{"gpt2", "gpt2_prefix", "llama3", "qwen2", "o200k", "neox", "starcoder2", "falcon", "deepseek", "llama2", "mistral", "gemma", "phi3", "bert", "bert_cased", "t5", "albert"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tk, err := Open(filepath.Join(goldens, name))
			if err != nil {
				t.Fatal(err)
			}
			var rows []row
			if read(t, name+"/expected.json.gz", &rows); len(rows) != len(all) {
				t.Fatalf("%d rows", len(rows))
			}
			ties := 0
			for i, r := range rows {
				if got := tk.Encode(all[i], false); !slices.Equal(got, r.bare) {
					if equallyLikely(tk, got, r.bare) {
						ties++
						continue
					}
					t.Fatalf("%q is %v, want %v", all[i], got, r.bare)
				}
				if got := tk.Encode(all[i], true); !slices.Equal(got, r.ids) {
					t.Fatalf("%q, surrounded, is %v, want %v", all[i], got, r.ids)
				}
				if got := tk.Decode(r.ids, false); got != r.text {
					t.Fatalf("%v is %q, want %q", r.ids, got, r.text)
				}
				if got := tk.Decode(r.ids, true); got != r.full {
					t.Fatalf("%v with control is %q, want %q", r.ids, got, r.full)
				}
			}
			if ties > 5 {
				t.Errorf("%d texts are cut in another way of the same likelihood, want at most 5", ties)
			}
		})
	}
}

// equallyLikely reports whether two cuts of a unigram model have the same likelihood: which one
// wins then depends on how scores were read and added, to the last bit.
func equallyLikely(t *Tokenizer, a, b []int32) bool {
	m, ok := t.model.(*unigram)
	if !ok {
		return false
	}
	sum := func(ids []int32) (s float64) {
		for _, id := range ids {
			s += m.scores[t.tokens[id]].score
		}
		return s
	}
	return math.Abs(sum(a)-sum(b)) < 1e-9
}

// The SentencePiece models give the ids and the texts of SentencePiece, for texts without NUL.
func TestSentencePiece(t *testing.T) {
	all := texts(t)
	for _, name := range []string{"sp_bpe", "sp_unigram"} {
		tk, err := Open(filepath.Join(goldens, name))
		if err != nil {
			t.Fatal(err)
		}
		var rows []spRow
		read(t, name+"/expected.json.gz", &rows)
		for i, r := range rows {
			text := strings.ReplaceAll(all[i], "\x00", "")
			if got := tk.Encode(text, false); !slices.Equal(got, r.ids) {
				t.Fatalf("%s: %q is %v, want %v", name, text, got, r.ids)
			}
			if got := tk.Decode(r.ids, false); got != r.text {
				t.Fatalf("%s: %v is %q, want %q", name, r.ids, got, r.text)
			}
		}
	}
}

// spRow has the results of SentencePiece for a text.
type spRow struct {
	ids  []int32
	text string
}

// UnmarshalJSON reads the two columns.
func (r *spRow) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&r.ids, &r.text})
}

// The ranks give the ids of tiktoken, with and without special tokens.
func TestTiktoken(t *testing.T) {
	all := texts(t)
	data, err := os.ReadFile(filepath.Join(goldens, "tiktoken", tiktokenFile))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := ParseTiktoken(data, Llama3Pattern, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := int32(plain.Size())
	special, err := ParseTiktoken(data, Llama3Pattern, map[string]int32{"<|endoftext|>": n, "<|im_start|>": n + 1})
	if err != nil {
		t.Fatal(err)
	}
	var rows [][2][]int32
	read(t, "tiktoken/expected.json.gz", &rows)
	for i, r := range rows {
		if got := special.Encode(all[i], false); !slices.Equal(got, r[0]) {
			t.Fatalf("%q is %v, want %v", all[i], got, r[0])
		}
		if got := plain.Encode(all[i], false); !slices.Equal(got, r[1]) {
			t.Fatalf("%q without special tokens is %v, want %v", all[i], got, r[1])
		}
		if got := plain.Decode(r[1], true); got != all[i] {
			t.Fatalf("%v is %q, want %q", r[1], got, all[i])
		}
	}
}

// A stream returns the text of Decode in parts, and no part ends within a character.
func TestStream(t *testing.T) {
	all := texts(t)
	for _, name := range []string{"llama3", "llama2", "mistral", "gemma", "bert", "t5", "sp_bpe"} {
		tk, err := Open(filepath.Join(goldens, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range all[:400] {
			ids := tk.Encode(text, true)
			if got, want := streamed(t, tk, ids), tk.Decode(ids, false); got != want {
				t.Fatalf("%s: %v streams as %q, want %q", name, ids, got, want)
			}
		}
	}
}

// streamed returns the text of a stream of ids, whose parts must be whole characters.
func streamed(t *testing.T, tk *Tokenizer, ids []int32) string {
	t.Helper()
	s := tk.Stream(false)
	var b strings.Builder
	for _, id := range ids {
		part := s.Next(id)
		if strings.HasSuffix(part, "\ufffd") || !utf8.ValidString(part) {
			t.Fatalf("%v: part %q ends within a character", ids, part)
		}
		b.WriteString(part)
	}
	b.WriteString(s.Flush())
	return b.String()
}

// TestStreamOfAnyIDs: a model may choose ids that are the encoding of no text, such as a byte that ends no
// character. Their stream is the text of Decode, too; only of the decoder ByteFallback a stream keeps the characters of
// invalid runs. The expected text of those is made here from the tokens.
func TestStreamOfAnyIDs(t *testing.T) {
	for name, fallback := range map[string]bool{"llama3": false, "llama2": true, "mistral": true, "gemma": true, "bert": false, "t5": false, "sp_bpe": false} {
		tk, err := Open(filepath.Join(goldens, name))
		if err != nil {
			t.Fatal(err)
		}
		var bytes []int32
		for id, token := range tk.tokens {
			if _, ok := byteOf(token); ok {
				bytes = append(bytes, int32(id))
			}
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			var ids []int32
			for range r.IntN(30) {
				switch {
				case len(bytes) > 0 && r.IntN(2) == 0: // often an invalid byte, or part of a character of two bytes
					ids = append(ids, bytes[0xa0+r.IntN(0x40)])
				default:
					ids = append(ids, int32(r.IntN(len(tk.tokens))))
				}
			}
			want := tk.Decode(ids, false)
			if fallback {
				var raw strings.Builder
				for _, id := range ids {
					if c, ok := byteOf(tk.tokens[id]); ok {
						raw.WriteByte(c)
					} else if !tk.Special(id) {
						raw.WriteString(strings.ReplaceAll(tk.tokens[id], "\u2581", " "))
					}
				}
				want = string([]rune(raw.String())) // each byte in no character becomes U+FFFD
				if name != "gemma" {
					want = strings.TrimPrefix(want, " ")
				}
			}
			if got := streamed(t, tk, ids); got != want {
				t.Fatalf("%s: %v streams as %q, want %q", name, ids, got, want)
			}
		}
	}
}

// TestStreamOfReplacedText: a decoder may change text that a stream gave already. The stream goes on with whole characters.
func TestStreamOfReplacedText(t *testing.T) {
	tk, err := ParseJSON([]byte(`{"model": {"type": "WordLevel", "unk_token": "x", "vocab": {"x": 0, "é": 1, "a": 2, "b": 3}},
		"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "éa"}, "content": "?é"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ids  []int32
		want string
	}{
		{[]int32{1, 2, 3}, "éb"}, // the 2 bytes of é were given: the text goes on within the é of ?éb
		{[]int32{3, 3, 3, 3, 1, 2, 3, 3, 3, 3, 3, 3}, "bbbbé?ébbbbbb"}, // there is a boundary between é and a
	} {
		if got := streamed(t, tk, c.ids); got != c.want {
			t.Errorf("%v streams as %q, want %q", c.ids, got, c.want)
		}
	}
}
