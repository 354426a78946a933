package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder turns tokens, in the vocabulary's form, into text.
type decoder interface {
	decode(tokens []string) []string
}

// decoders run in order.
type decoders []decoder

func (ds decoders) decode(tokens []string) []string {
	for _, d := range ds {
		tokens = d.decode(tokens)
	}
	return tokens
}

// byteLevelDecoder turns visible characters into bytes. A token with any other character stays.
type byteLevelDecoder struct{ bytes map[rune]byte }

func newByteLevelDecoder() byteLevelDecoder {
	d := byteLevelDecoder{map[rune]byte{}}
	for b, r := range byteRunes() {
		d.bytes[r] = byte(b)
	}
	return d
}

// raw returns the bytes of a token.
func (d byteLevelDecoder) raw(token string) string {
	var b strings.Builder
	for _, r := range token {
		c, ok := d.bytes[r]
		if !ok {
			return token
		}
		b.WriteByte(c)
	}
	return b.String()
}

func (d byteLevelDecoder) decode(tokens []string) []string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString(d.raw(t))
	}
	return []string{validUTF8(b.String())}
}

// replaceDecoder replaces text in each token.
type replaceDecoder struct{ by normalizer }

func (d replaceDecoder) decode(tokens []string) []string {
	for i, t := range tokens {
		tokens[i] = d.by.normalize(t)
	}
	return tokens
}

// byteFallbackDecoder turns consecutive tokens <0x00> to <0xFF> into text. If they are not UTF-8,
// each becomes U+FFFD, or with partly each that is in no character.
type byteFallbackDecoder struct{ partly bool }

// streaming returns d, or a decoder that differs from d only in runs of byte tokens that are not UTF-8. It keeps
// their characters, because a stream gave them to its caller before later tokens made the run invalid.
func streaming(d decoder) decoder {
	switch d := d.(type) {
	case byteFallbackDecoder:
		return byteFallbackDecoder{partly: true}
	case decoders:
		out := make(decoders, len(d))
		for i := range d {
			out[i] = streaming(d[i])
		}
		return out
	}
	return d
}

func (d byteFallbackDecoder) decode(tokens []string) []string {
	var out []string
	var bytes []byte
	flush := func() {
		switch {
		case len(bytes) == 0:
		case utf8.Valid(bytes):
			out = append(out, string(bytes))
		case d.partly:
			out = append(out, string([]rune(string(bytes)))) // a conversion to runes makes each byte in no character U+FFFD
		default:
			for range bytes {
				out = append(out, string(utf8.RuneError))
			}
		}
		bytes = bytes[:0]
	}
	for _, t := range tokens {
		if b, ok := byteOf(t); ok {
			bytes = append(bytes, b)
			continue
		}
		flush()
		out = append(out, t)
	}
	flush()
	return out
}

// byteOf returns the byte of a token such as <0x0A>.
func byteOf(token string) (byte, bool) {
	if len(token) != 6 || !strings.HasPrefix(token, "<0x") || token[5] != '>' {
		return 0, false
	}
	n, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(n), err == nil
}

// fuse joins all tokens.
type fuse struct{}

func (fuse) decode(tokens []string) []string { return []string{strings.Join(tokens, "")} }

// stripDecoder removes a character from the ends of each token, up to a number of times.
type stripDecoder struct {
	content     string
	start, stop int
}

func (d stripDecoder) decode(tokens []string) []string {
	for i, t := range tokens {
		for n := 0; n < d.start && strings.HasPrefix(t, d.content); n++ {
			t = t[len(d.content):]
		}
		for n := 0; n < d.stop && strings.HasSuffix(t, d.content); n++ {
			t = t[:len(t)-len(d.content)]
		}
		tokens[i] = t
	}
	return tokens
}

// metaspaceDecoder turns each visible character into a space. If one was added at the beginning, it instead removes
// each of them from the first token, as the reference does (huggingface/tokenizers, pre_tokenizers/metaspace.rs).
type metaspaceDecoder struct {
	replacement string
	added       bool
}

func (d metaspaceDecoder) decode(tokens []string) []string {
	for i, t := range tokens {
		by := " "
		if i == 0 && d.added {
			by = ""
		}
		tokens[i] = strings.ReplaceAll(t, d.replacement, by)
	}
	return tokens
}

// wordPieceDecoder joins the parts of words and puts spaces between words.
type wordPieceDecoder struct {
	prefix string
	clean  bool // removes spaces before punctuation and in contractions
}

func (d wordPieceDecoder) decode(tokens []string) []string {
	for i, t := range tokens {
		if i > 0 {
			if part, ok := strings.CutPrefix(t, d.prefix); ok {
				t = part
			} else {
				t = " " + t
			}
		}
		if d.clean {
			t = cleanUp(t)
		}
		tokens[i] = t
	}
	return tokens
}

// cleanUp removes spaces that splitting English at punctuation adds, and shortens "do not". It applies
// the rules of huggingface/tokenizers (decoders/wordpiece.rs, cleanup) one after the other.
func cleanUp(text string) string {
	for _, r := range [][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}} {
		text = strings.ReplaceAll(text, r[0], r[1])
	}
	return text
}

// bpeDecoder turns the suffix of words into spaces, and removes it from the last token.
type bpeDecoder struct{ suffix string }

func (d bpeDecoder) decode(tokens []string) []string {
	for i, t := range tokens {
		by := " "
		if i == len(tokens)-1 {
			by = ""
		}
		tokens[i] = strings.ReplaceAll(t, d.suffix, by)
	}
	return tokens
}
