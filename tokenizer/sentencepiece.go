package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Types of pieces and of models (google/sentencepiece, src/sentencepiece_model.proto).
const (
	pieceNormal  = 1
	pieceUnknown = 2
	pieceControl = 3
	pieceUser    = 4
	pieceUnused  = 5
	pieceByte    = 6

	modelUnigram = 1
	modelBPE     = 2
)

// spaceSymbol is a space in pieces.
const spaceSymbol = "▁"

// unknownSurface is the text of the unknown piece.
const unknownSurface = " ⁇ "

// spModel has the fields of a model file.
type spModel struct {
	pieces []spPiece

	kind         uint64
	byteFallback bool

	charsmap    []byte
	dummyPrefix bool // adds a space before the text
	removeExtra bool // removes spaces at the ends and repeated ones
}

type spPiece struct {
	text  string
	score float64
	kind  uint64
}

// ParseSentencePiece reads a SentencePiece model of type BPE or unigram.
func ParseSentencePiece(data []byte) (*Tokenizer, error) {
	m := spModel{kind: modelUnigram, dummyPrefix: true, removeExtra: true}
	if err := m.parse(data); err != nil {
		return nil, fmt.Errorf("not a SentencePiece model: %w", err)
	}
	return m.tokenizer()
}

// fields calls f for each field of a message.
func fields(data []byte, f func(n protowire.Number, number uint64, bytes []byte) error) error {
	for len(data) > 0 {
		n, typ, size := protowire.ConsumeTag(data)
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
		var number uint64
		var value []byte
		switch typ {
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(data)
		case protowire.Fixed32Type:
			var v uint32
			v, size = protowire.ConsumeFixed32(data)
			number = uint64(v)
		case protowire.BytesType:
			value, size = protowire.ConsumeBytes(data)
		default:
			size = protowire.ConsumeFieldValue(n, typ, data)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[size:]
		if err := f(n, number, value); err != nil {
			return err
		}
	}
	return nil
}

func (m *spModel) parse(data []byte) error {
	err := fields(data, func(n protowire.Number, _ uint64, value []byte) error {
		switch n {
		case 1:
			p := spPiece{kind: pieceNormal}
			if err := fields(value, func(n protowire.Number, number uint64, text []byte) error {
				switch n {
				case 1:
					p.text = string(text)
				case 2:
					p.score = float64(math.Float32frombits(uint32(number)))
				case 3:
					p.kind = number
				}
				return nil
			}); err != nil {
				return err
			}
			m.pieces = append(m.pieces, p)
		case 2:
			return fields(value, func(n protowire.Number, number uint64, _ []byte) error {
				switch n {
				case 3:
					m.kind = number
				case 35:
					m.byteFallback = number != 0
				}
				return nil
			})
		case 3:
			return fields(value, func(n protowire.Number, number uint64, text []byte) error {
				switch n {
				case 2:
					m.charsmap = text
				case 3:
					m.dummyPrefix = number != 0
				case 4:
					m.removeExtra = number != 0
				}
				return nil
			})
		}
		return nil
	})
	if err == nil && (len(m.pieces) == 0 || len(m.pieces) > maxIDs) {
		err = fmt.Errorf("it has %d pieces, want 1 to %d", len(m.pieces), maxIDs)
	}
	return err
}

// tokenizer makes the tokenizer of the model.
func (m *spModel) tokenizer() (*Tokenizer, error) {
	all := map[string]int32{}
	unknown := int32(-1)
	var added []addedToken
	normal := &spNormalizer{dummyPrefix: m.dummyPrefix, removeExtra: m.removeExtra}
	top := 0.0 // max_score_ of src/unigram_model.cc, which begins at the smallest positive float
	for i, p := range m.pieces {
		all[p.text] = int32(i)
		switch p.kind {
		case pieceUnknown:
			unknown = int32(i)
		case pieceControl:
			added = append(added, addedToken{id: int32(i), special: true}) // never matched in a text
		case pieceUser:
			normal.user.add(p.text, addedToken{id: int32(i)})
		case pieceNormal:
			top = max(top, p.score)
		}
	}
	if unknown < 0 {
		return nil, errors.New("the SentencePiece model has no unknown piece")
	}
	if m.byteFallback {
		bytes := byteTokens(all)
		if b := slices.Index(bytes[:], -1); b >= 0 {
			return nil, fmt.Errorf("byte_fallback is set, but the piece <0x%02X> is missing", b)
		}
	}
	if m.charsmap != nil {
		c, err := parseCharsmap(m.charsmap)
		if err != nil {
			return nil, err
		}
		normal.rules, _ = c.(*charsmap)
	}
	t := &Tokenizer{normal: normal, decoder: spDecoder{unknown: m.pieces[unknown].text, trim: m.dummyPrefix || m.removeExtra, all: m.removeExtra}}
	scores := map[string]scored{}
	for i, p := range m.pieces {
		switch p.kind {
		case pieceNormal:
			scores[p.text] = scored{int32(i), p.score}
		case pieceUser:
			// SentencePiece's score of user-defined pieces (src/unigram_model.cc, EncodeOptimized). top is at least 0.
			scores[p.text] = scored{int32(i), float64(len(p.text))*top - 0.1}
		}
	}
	switch m.kind {
	case modelUnigram:
		u := newUnigram(scores, unknown)
		u.byteFallback, u.bytes = m.byteFallback, byteTokens(all)
		t.model = u
	case modelBPE:
		t.model = &spBPE{scores: scores, user: &normal.user, unknown: unknown, byteFallback: m.byteFallback, bytes: byteTokens(all)}
	default:
		return nil, fmt.Errorf("models of type %d are not supported; supported types: unigram (%d), BPE (%d)", m.kind, modelUnigram, modelBPE)
	}
	t.added = newAddedTokens(added, nil)
	return t, t.setVocabulary(all)
}

// spNormalizer is SentencePiece's normalizer (src/normalizer.cc): it applies rules, adds and removes
// spaces, and writes spaces as spaceSymbol.
type spNormalizer struct {
	rules       *charsmap // nil: text is unchanged
	user        matcher   // user-defined pieces, which stay unchanged
	dummyPrefix bool
	removeExtra bool
}

// prefix returns the length in bytes of the next user-defined piece, match of a rule or character of a
// text, and its replacement.
func (n *spNormalizer) prefix(text string) (size int, by string) {
	if len(n.user.tokens) > 0 {
		if _, size, ok := n.user.at(text, 0); ok {
			return size, text[:size]
		}
	}
	if n.rules != nil {
		if size, by := n.rules.longest(text); size > 0 {
			return size, by
		}
	}
	_, size = utf8.DecodeRuneInString(text)
	return size, text[:size]
}

func (n *spNormalizer) normalize(text string) string {
	for n.removeExtra && text != "" {
		size, by := n.prefix(text)
		if by != " " && by != "" {
			break
		}
		text = text[size:]
	}
	if text == "" {
		return ""
	}
	var b strings.Builder
	if n.dummyPrefix {
		b.WriteString(spaceSymbol)
	}
	afterSpace := n.removeExtra
	for text != "" {
		size, by := n.prefix(text)
		text = text[size:]
		for afterSpace && strings.HasPrefix(by, " ") {
			by = by[1:]
		}
		if by != "" {
			b.WriteString(strings.ReplaceAll(by, " ", spaceSymbol))
			afterSpace = n.removeExtra && strings.HasSuffix(by, " ")
		}
	}
	out := b.String()
	for n.removeExtra && strings.HasSuffix(out, spaceSymbol) {
		out = strings.TrimSuffix(out, spaceSymbol)
	}
	return out
}

// spBPE merges by the score of a pair's result (src/bpe_model.cc).
type spBPE struct {
	scores       map[string]scored
	user         *matcher
	unknown      int32
	bytes        [256]int32
	byteFallback bool
}

func (m *spBPE) encode(ids []int32, word string) []int32 {
	var parts []textPart
	for i := 0; i < len(word); {
		_, size := utf8.DecodeRuneInString(word[i:])
		frozen := false
		if len(m.user.tokens) > 0 {
			if _, n, ok := m.user.at(word, i); ok {
				size, frozen = n, true
			}
		}
		parts = append(parts, textPart{start: i, end: i + size, frozen: frozen})
		i += size
	}
	merged := mergeText(word, parts, func(text string) (float64, bool) {
		s, ok := m.scores[text]
		return -s.score, ok
	})
	unknown := false // the part before was unknown
	for _, p := range merged {
		text := word[p.start:p.end]
		if s, ok := m.scores[text]; ok {
			ids, unknown = append(ids, s.id), false
			continue
		}
		if m.byteFallback {
			for _, b := range []byte(text) {
				ids = append(ids, m.bytes[b])
			}
			continue
		}
		if !unknown {
			ids = append(ids, m.unknown)
		}
		unknown = true
	}
	return ids
}

// spDecoder is SentencePiece's decoder (src/sentencepiece_processor.cc, Decode).
type spDecoder struct {
	unknown string
	trim    bool // remove a space at the beginning
	all     bool // remove all spaces at the beginning
}

func (d spDecoder) decode(tokens []string) []string {
	var b strings.Builder
	var raw []byte
	flush := func() {
		for len(raw) > 0 {
			r, n := utf8.DecodeRune(raw)
			b.WriteRune(r)
			raw = raw[n:]
		}
	}
	begin := true
	for _, t := range tokens {
		if c, ok := byteOf(t); ok {
			raw = append(raw, c)
			begin = false
			continue
		}
		flush()
		if t == d.unknown {
			b.WriteString(unknownSurface)
			begin = false
			continue
		}
		stays := false
		if begin && d.trim {
			rest, cut := strings.CutPrefix(t, spaceSymbol)
			t, stays = rest, cut && d.all && rest == ""
		}
		b.WriteString(strings.ReplaceAll(t, spaceSymbol, " "))
		begin = begin && stays
	}
	flush()
	return []string{b.String()}
}
