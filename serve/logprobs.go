package serve

import (
	"math"
	"strings"
	"unicode/utf8"

	"pwc/runner"
)

// leastLogprob replaces lower log probabilities, as in vLLM: JSON cannot represent -Inf.
const leastLogprob = -9999

// completionLogprobs are the log probabilities of a choice of /v1/completions, each list with an
// element for each token.
type completionLogprobs struct {
	Tokens  []string             `json:"tokens"`
	Own     []*float64           `json:"token_logprobs"` // nil: the first token of a prompt
	Top     []map[string]float64 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"` // runes of the texts of the tokens before it; the choice's text has fewer if a character has several tokens
}

// chatLogprobs are the log probabilities of a choice, or of an event, of /v1/chat/completions.
type chatLogprobs struct {
	Content []chatToken `json:"content"`
}

type chatToken struct {
	tokenLogprob
	Top []tokenLogprob `json:"top_logprobs"`
}

type tokenLogprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"` // nil, written as null: the text has U+FFFD, as that of a part of a character
}

func number(x float32) float64 { return max(float64(x), leastLogprob) }

// tokenText returns the text of one token. A part of a character is U+FFFD.
func (s *Server) tokenText(id int32) string { return s.o.Tokenizer.Decode([]int32{id}, false) }

func (s *Server) tokenLogprob(l runner.Logprob) tokenLogprob {
	t := tokenLogprob{Token: s.tokenText(l.ID), Logprob: number(l.Logprob)}
	if !strings.ContainsRune(t.Token, utf8.RuneError) {
		t.Bytes = make([]int, len(t.Token))
		for i := range t.Bytes {
			t.Bytes[i] = int(t.Token[i])
		}
	}
	return t
}

// chatLogprobs returns the log probabilities of tokens; nil without tokens.
func (s *Server) chatLogprobs(tokens []runner.TokenLogprobs) *chatLogprobs {
	if len(tokens) == 0 {
		return nil
	}
	out := &chatLogprobs{}
	for _, l := range tokens {
		t := chatToken{tokenLogprob: s.tokenLogprob(l.Logprob), Top: []tokenLogprob{}}
		for _, other := range l.Top {
			t.Top = append(t.Top, s.tokenLogprob(other))
		}
		out.Content = append(out.Content, t)
	}
	return out
}

// completionLogprobs returns the log probabilities of tokens; nil without tokens. The argument at is
// the offset of tokens[0]. If first is set, tokens[0] is the first token of a prompt, which has no log probability.
func (s *Server) completionLogprobs(tokens []runner.TokenLogprobs, at int, first bool) *completionLogprobs {
	if len(tokens) == 0 {
		return nil
	}
	out := &completionLogprobs{}
	for i, l := range tokens {
		text := s.tokenText(l.ID)
		out.Tokens, out.Offsets = append(out.Tokens, text), append(out.Offsets, at)
		at += utf8.RuneCountInString(text)
		if first && i == 0 {
			out.Own, out.Top = append(out.Own, nil), append(out.Top, nil)
			continue
		}
		own := number(l.Logprob.Logprob)
		top := map[string]float64{}
		for _, other := range l.Top { // of tokens with the same text, the most probable wins
			if text := s.tokenText(other.ID); math.IsInf(float64(other.Logprob), -1) {
				continue
			} else if _, ok := top[text]; !ok {
				top[text] = number(other.Logprob)
			}
		}
		out.Own, out.Top = append(out.Own, &own), append(out.Top, top)
	}
	return out
}

// logprobs returns the runner's options for the request.
func logprobs(field string, top int) (runner.Logprobs, *Error) {
	if top < 0 || top > runner.MaxLogprobs {
		return runner.Logprobs{}, badRequest(field, "%s: %d, want 0 to %d", field, top, runner.MaxLogprobs)
	}
	return runner.Logprobs{Answer: true, Top: top}, nil
}
