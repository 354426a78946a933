package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"pwc/internal/exactjson"
)

// jsonTokenizer is the file tokenizer.json (huggingface/tokenizers, version 1.0).
type jsonTokenizer struct {
	AddedTokens []struct {
		ID         int32  `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    *jsonPart `json:"normalizer"`
	PreTokenizer  *jsonPart `json:"pre_tokenizer"`
	Model         *jsonPart `json:"model"`
	PostProcessor *jsonPart `json:"post_processor"`
	Decoder       *jsonPart `json:"decoder"`
}

// jsonPart is one component. Its type decides which fields it has.
type jsonPart struct {
	Type string `json:"type"`

	Normalizers   []*jsonPart `json:"normalizers"`
	PreTokenizers []*jsonPart `json:"pretokenizers"`
	Processors    []*jsonPart `json:"processors"`
	Decoders      []*jsonPart `json:"decoders"`

	Prepend     string       `json:"prepend"`
	Pattern     *jsonPattern `json:"pattern"`
	Content     string       `json:"content"`
	Left        *bool        `json:"strip_left"`
	Right       *bool        `json:"strip_right"`
	CleanText   *bool        `json:"clean_text"`
	Chinese     *bool        `json:"handle_chinese_chars"`
	Accents     *bool        `json:"strip_accents"`
	Lowercase   *bool        `json:"lowercase"`
	Charsmap    []byte       `json:"precompiled_charsmap"`
	Behavior    string       `json:"behavior"`
	Invert      bool         `json:"invert"`
	Digits      bool         `json:"individual_digits"`
	Delimiter   string       `json:"delimiter"`
	PrefixSpace *bool        `json:"add_prefix_space"`
	UseRegex    *bool        `json:"use_regex"`
	Replacement string       `json:"replacement"`
	Scheme      string       `json:"prepend_scheme"`
	Split       *bool        `json:"split"`

	Vocab        json.RawMessage `json:"vocab"`
	Merges       json.RawMessage `json:"merges"`
	UnkToken     *string         `json:"unk_token"`
	UnkID        *int32          `json:"unk_id"`
	FuseUnk      bool            `json:"fuse_unk"`
	ByteFallback bool            `json:"byte_fallback"`
	IgnoreMerges bool            `json:"ignore_merges"`
	Prefix       *string         `json:"continuing_subword_prefix"`
	EndOfWord    *string         `json:"end_of_word_suffix"`
	MaxChars     *int            `json:"max_input_chars_per_word"`

	Single  []jsonTemplate `json:"single"`
	Special map[string]struct {
		IDs []int32 `json:"ids"`
	} `json:"special_tokens"`
	Sep *jsonToken `json:"sep"`
	Cls *jsonToken `json:"cls"`

	DecoderPrefix *string `json:"prefix"`
	Cleanup       bool    `json:"cleanup"`
	Suffix        string  `json:"suffix"`
	Start         int     `json:"start"`
	Stop          int     `json:"stop"`
}

type jsonPattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

type jsonTemplate struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

// jsonToken is a pair ["[SEP]", 3].
type jsonToken struct{ id int32 }

// UnmarshalJSON reads the pair.
func (t *jsonToken) UnmarshalJSON(text []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("a token is a pair of text and id, not %d values", len(pair))
	}
	return json.Unmarshal(pair[1], &t.id)
}

// maxDepth bounds the nesting of components.
const maxDepth = 16

// ParseJSON reads a tokenizer.json. An unknown component is an error with its name. An object with a key twice, or with
// a key that differs from a known one only in letter case, is an error too.
func ParseJSON(text []byte) (*Tokenizer, error) {
	var j jsonTokenizer
	if err := exactjson.Unmarshal(text, &j); err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", err)
	}
	if j.Model == nil {
		return nil, errors.New("not a tokenizer.json: it has no model")
	}
	t := &Tokenizer{}
	ids, m, err := parseModel(j.Model)
	if err != nil {
		return nil, err
	}
	if t.normal, err = parseNormalizer(j.Normalizer, maxDepth); err != nil {
		return nil, err
	}
	if t.words, err = parseSplitter(j.PreTokenizer, maxDepth); err != nil {
		return nil, err
	}
	if t.post, err = parseTemplate(j.PostProcessor, maxDepth); err != nil {
		return nil, err
	}
	if t.decoder, err = parseDecoder(j.Decoder, maxDepth); err != nil {
		return nil, err
	}
	t.model = m
	all := map[string]int32{}
	for token, id := range ids {
		all[token] = id
	}
	var added []addedToken
	for _, a := range j.AddedTokens {
		if a.ID < 0 || a.ID >= maxIDs {
			return nil, fmt.Errorf("added token %q has id %d, ids are from 0 to %d", a.Content, a.ID, maxIDs-1)
		}
		all[a.Content] = a.ID
		added = append(added, addedToken{a.ID, a.Content, a.LStrip, a.RStrip, a.SingleWord, a.Normalized, a.Special})
	}
	if err := t.setVocabulary(all); err != nil {
		return nil, err
	}
	for _, a := range added {
		t.tokens[a.id] = a.content // also if model.vocab has another token with this id, as in the library
	}
	t.added = newAddedTokens(added, t.normal)
	return t, nil
}

func parseModel(p *jsonPart) (map[string]int32, model, error) {
	kind := p.Type
	if kind == "" && p.Merges != nil {
		kind = "BPE" // files before version 0.6 have no type
	}
	if kind == "Unigram" {
		return parseUnigram(p)
	}
	var ids map[string]int32
	if err := json.Unmarshal(p.Vocab, &ids); err != nil {
		return nil, nil, fmt.Errorf("model.vocab: %w", err)
	}
	unknown := int32(-1)
	if p.UnkToken != nil {
		if id, ok := ids[*p.UnkToken]; ok {
			unknown = id
		}
	}
	switch kind {
	case "BPE":
		m := &bpe{ids: ids, bytes: byteTokens(ids), unknown: unknown, fuseUnknown: p.FuseUnk, byteFallback: p.ByteFallback, whole: p.IgnoreMerges, prefix: stringOr(p.Prefix, ""), suffix: stringOr(p.EndOfWord, "")}
		err := m.readMerges(p.Merges)
		return ids, m, err
	case "WordPiece":
		if unknown < 0 {
			return nil, nil, fmt.Errorf("model.unk_token is missing or not in model.vocab")
		}
		longest := 100
		if p.MaxChars != nil {
			longest = *p.MaxChars
		}
		return ids, &wordPiece{ids, unknown, stringOr(p.Prefix, "##"), longest}, nil
	case "WordLevel":
		return ids, &wordLevel{ids, unknown}, nil
	}
	return nil, nil, unknownPart("model", kind, "BPE, WordPiece, WordLevel, Unigram")
}

// readMerges reads merges as pairs, or as texts with a space between two tokens. Of equal ones, the last counts.
func (m *bpe) readMerges(text json.RawMessage) error {
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("model.merges: %w", err)
	}
	m.merges = make(map[pair]merge, len(list))
	for i, raw := range list {
		var two []string
		if err := json.Unmarshal(raw, &two); err != nil {
			var one string
			if err := json.Unmarshal(raw, &one); err != nil {
				return fmt.Errorf("model.merges[%d]: %w", i, err)
			}
			left, right, ok := strings.Cut(one, " ")
			if !ok {
				return fmt.Errorf("model.merges[%d] is %q, it must be two tokens with a space between", i, one)
			}
			two = []string{left, right}
		}
		if len(two) != 2 {
			return fmt.Errorf("model.merges[%d] has %d tokens, it must have two", i, len(two))
		}
		left, okLeft := m.ids[two[0]]
		right, okRight := m.ids[two[1]]
		token, ok := m.ids[two[0]+strings.TrimPrefix(two[1], m.prefix)]
		if !okLeft || !okRight || !ok {
			return fmt.Errorf("model.merges[%d] merges %q and %q, which with their result must be tokens", i, two[0], two[1])
		}
		m.merges[pair{left, right}] = merge{int32(i), token}
	}
	return nil
}

func parseUnigram(p *jsonPart) (map[string]int32, model, error) {
	var list [][2]json.RawMessage
	if err := json.Unmarshal(p.Vocab, &list); err != nil {
		return nil, nil, fmt.Errorf("model.vocab: %w", err)
	}
	ids, scores := make(map[string]int32, len(list)), make(map[string]scored, len(list))
	for i, entry := range list {
		var token string
		var score float64
		if err := errors.Join(json.Unmarshal(entry[0], &token), json.Unmarshal(entry[1], &score)); err != nil {
			return nil, nil, fmt.Errorf("model.vocab[%d]: %w", i, err)
		}
		ids[token], scores[token] = int32(i), scored{int32(i), score}
	}
	if p.UnkID == nil || *p.UnkID < 0 || int(*p.UnkID) >= len(list) {
		return nil, nil, fmt.Errorf("model.unk_id is missing or not an id of model.vocab")
	}
	m := newUnigram(scores, *p.UnkID)
	m.byteFallback, m.bytes = p.ByteFallback, byteTokens(ids)
	return ids, m, nil
}

func parseNormalizer(p *jsonPart, depth int) (normalizer, error) {
	if p == nil {
		return nil, nil
	}
	switch p.Type {
	case "Sequence":
		if depth == 0 {
			return nil, errDepth
		}
		var out normalizers
		for _, q := range p.Normalizers {
			n, err := parseNormalizer(q, depth-1)
			if err != nil {
				return nil, err
			}
			if n != nil {
				out = append(out, n)
			}
		}
		return out, nil
	case "NFC":
		return form(norm.NFC), nil
	case "NFD":
		return form(norm.NFD), nil
	case "NFKC":
		return form(norm.NFKC), nil
	case "NFKD":
		return form(norm.NFKD), nil
	case "Lowercase":
		return normalizerFunc(lowercase), nil
	case "StripAccents":
		return withoutMarks(unicode.M), nil
	case "Nmt":
		return normalizerFunc(nmt), nil
	case "Prepend":
		return prepend(p.Prepend), nil
	case "Strip":
		return strip{boolOr(p.Left, true), boolOr(p.Right, true)}, nil
	case "Replace":
		return parseReplace(p)
	case "BertNormalizer":
		lower := boolOr(p.Lowercase, true)
		return bertNormalizer{boolOr(p.CleanText, true), boolOr(p.Chinese, true), boolOr(p.Accents, lower), lower}, nil
	case "ByteLevel":
		return normalizerFunc(visible), nil
	case "Precompiled":
		return parseCharsmap(p.Charsmap)
	}
	return nil, unknownPart("normalizer", p.Type, "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Nmt, Prepend, Strip, Replace, BertNormalizer, ByteLevel, Precompiled")
}

func parseReplace(p *jsonPart) (normalizer, error) {
	switch {
	case p.Pattern == nil:
		return nil, errors.New("a Replace has no pattern")
	case p.Pattern.String != nil:
		return replaceText{*p.Pattern.String, p.Content}, nil
	case p.Pattern.Regex != nil:
		re, err := compilePattern(*p.Pattern.Regex)
		return replacePattern{re, p.Content}, err
	}
	return nil, errors.New("a Replace has a pattern that is neither String nor Regex")
}

func parseSplitter(p *jsonPart, depth int) (splitter, error) {
	if p == nil {
		return nil, nil
	}
	switch p.Type {
	case "Sequence":
		if depth == 0 {
			return nil, errDepth
		}
		var out splitters
		for _, q := range p.PreTokenizers {
			s, err := parseSplitter(q, depth-1)
			if err != nil {
				return nil, err
			}
			if s != nil {
				out = append(out, s)
			}
		}
		return out, nil
	case "ByteLevel":
		s := byteLevel{prefixSpace: boolOr(p.PrefixSpace, true)}
		var err error
		if boolOr(p.UseRegex, true) {
			s.pattern, err = compilePattern(gpt2Pattern)
		}
		return s, err
	case "Metaspace":
		if utf8.RuneCountInString(p.Replacement) != 1 {
			return nil, notOne("Metaspace", "replacement", p.Replacement)
		}
		prepend, err := parsePrepend(p)
		return metaspace{replacement: p.Replacement, prepend: prepend, cut: boolOr(p.Split, true)}, err
	case "Split":
		return parseSplit(p)
	case "Digits":
		b := contiguous
		if p.Digits {
			b = isolated
		}
		return runeSplit{unicode.IsNumber, b}, nil
	case "Punctuation":
		b, err := parseBehavior(stringOrText(p.Behavior, "Isolated"))
		return runeSplit{isPunctuation, b}, err
	case "Whitespace":
		return splitterFunc(whitespace), nil
	case "WhitespaceSplit":
		return runeSplit{unicode.IsSpace, removed}, nil
	case "BertPreTokenizer":
		return bertSplit(), nil
	case "CharDelimiterSplit":
		d, n := utf8.DecodeRuneInString(p.Delimiter)
		if n == 0 || n != len(p.Delimiter) {
			return nil, notOne("CharDelimiterSplit", "delimiter", p.Delimiter)
		}
		return runeSplit{func(r rune) bool { return r == d }, removed}, nil
	}
	return nil, unknownPart("pre_tokenizer", p.Type, "Sequence, ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit")
}

func parseSplit(p *jsonPart) (splitter, error) {
	b, err := parseBehavior(p.Behavior)
	if err != nil {
		return nil, err
	}
	switch {
	case p.Pattern == nil:
		return nil, errors.New("a Split has no pattern")
	case p.Pattern.String != nil:
		return patternSplit{literalPattern(*p.Pattern.String), b, p.Invert}, nil
	case p.Pattern.Regex != nil:
		re, err := compilePattern(*p.Pattern.Regex)
		return patternSplit{re, b, p.Invert}, err
	}
	return nil, errors.New("a Split has a pattern that is neither String nor Regex")
}

// parsePrepend reads prepend_scheme of a Metaspace. Older files have add_prefix_space instead.
func parsePrepend(p *jsonPart) (prependScheme, error) {
	scheme, known := map[string]prependScheme{"": prependAlways, "always": prependAlways, "first": prependFirst, "never": prependNever}[p.Scheme]
	switch {
	case !known:
		return 0, fmt.Errorf("a Metaspace has the prepend_scheme %q, which is not one of always, first, never", p.Scheme)
	case scheme == prependNever || boolOr(p.PrefixSpace, true):
		return scheme, nil
	case p.Scheme == "":
		return prependNever, nil
	}
	return 0, fmt.Errorf("a Metaspace has the prepend_scheme %q, which add_prefix_space false excludes", p.Scheme)
}

func parseBehavior(name string) (behavior, error) {
	for b, n := range []string{isolated: "Isolated", removed: "Removed", mergedWithPrevious: "MergedWithPrevious", mergedWithNext: "MergedWithNext", contiguous: "Contiguous"} {
		if n == name {
			return behavior(b), nil
		}
	}
	return 0, fmt.Errorf("behavior %q is not one of Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous", name)
}

func parseTemplate(p *jsonPart, depth int) (template, error) {
	if p == nil {
		return nil, nil
	}
	switch p.Type {
	case "Sequence":
		if depth == 0 {
			return nil, errDepth
		}
		var out templates
		for _, q := range p.Processors {
			t, err := parseTemplate(q, depth-1)
			if err != nil {
				return nil, err
			}
			if t != nil {
				out = append(out, t)
			}
		}
		return out, nil
	case "ByteLevel":
		return nil, nil // it changes only offsets in the text, which Encode does not return
	case "BertProcessing", "RobertaProcessing":
		if p.Sep == nil || p.Cls == nil {
			return nil, fmt.Errorf("a %s needs sep and cls", p.Type)
		}
		return surround{[]int32{p.Cls.id}, []int32{p.Sep.id}}, nil
	case "TemplateProcessing":
		return p.template()
	}
	return nil, unknownPart("post_processor", p.Type, "Sequence, ByteLevel, BertProcessing, RobertaProcessing, TemplateProcessing")
}

// template reads the template of one sequence.
func (p *jsonPart) template() (template, error) {
	var s surround
	seen := false
	for _, piece := range p.Single {
		switch {
		case piece.Sequence != nil:
			seen = true
		case piece.SpecialToken != nil:
			ids, ok := p.Special[piece.SpecialToken.ID]
			if !ok {
				return nil, fmt.Errorf("the template names %q, which special_tokens lacks", piece.SpecialToken.ID)
			}
			if seen {
				s.after = append(s.after, ids.IDs...)
			} else {
				s.before = append(s.before, ids.IDs...)
			}
		}
	}
	if !seen {
		return nil, errors.New("the template of one sequence has no sequence")
	}
	return s, nil
}

func parseDecoder(p *jsonPart, depth int) (decoder, error) {
	if p == nil {
		return nil, nil
	}
	switch p.Type {
	case "Sequence":
		if depth == 0 {
			return nil, errDepth
		}
		var out decoders
		for _, q := range p.Decoders {
			d, err := parseDecoder(q, depth-1)
			if err != nil {
				return nil, err
			}
			if d != nil {
				out = append(out, d)
			}
		}
		return out, nil
	case "ByteLevel":
		return newByteLevelDecoder(), nil
	case "Metaspace":
		if utf8.RuneCountInString(p.Replacement) != 1 {
			return nil, notOne("Metaspace", "replacement", p.Replacement)
		}
		prepend, err := parsePrepend(p)
		return metaspaceDecoder{p.Replacement, prepend != prependNever}, err
	case "WordPiece":
		return wordPieceDecoder{stringOr(p.DecoderPrefix, "##"), p.Cleanup}, nil
	case "Replace":
		by, err := parseReplace(p)
		return replaceDecoder{by}, err
	case "ByteFallback":
		return byteFallbackDecoder{}, nil
	case "Fuse":
		return fuse{}, nil
	case "Strip":
		if utf8.RuneCountInString(p.Content) != 1 {
			return nil, notOne("Strip", "content", p.Content)
		}
		return stripDecoder{p.Content, p.Start, p.Stop}, nil
	case "BPEDecoder":
		return bpeDecoder{p.Suffix}, nil
	}
	return nil, unknownPart("decoder", p.Type, "Sequence, ByteLevel, Metaspace, WordPiece, Replace, ByteFallback, Fuse, Strip, BPEDecoder")
}

var errDepth = fmt.Errorf("components are nested deeper than %d", maxDepth)

func unknownPart(what, name, known string) error {
	return fmt.Errorf("%s of type %q is not supported; supported types: %s", what, name, known)
}

// notOne returns the error for a field that must be one character.
func notOne(kind, field, text string) error {
	return fmt.Errorf("a %s has the %s %q, it must be one character", kind, field, text)
}

func boolOr(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}

func stringOr(s *string, otherwise string) string {
	if s == nil {
		return otherwise
	}
	return *s
}

func stringOrText(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
