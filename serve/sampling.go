package serve

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"

	"pwc/runner"
)

// Limits of one request.
const (
	maxChoices = 128  // n
	maxStops   = 16   // stop strings
	maxStop    = 1024 // bytes of a stop string
)

// sampling has the fields that both APIs share. A nil pointer means that the field is absent or null.
type sampling struct {
	Model         string          `json:"model"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	TopK          *int            `json:"top_k"` // of vLLM, not of OpenAI; -1 and 0: all
	N             *int            `json:"n"`
	Stream        bool            `json:"stream"`
	StreamOptions *streamOptions  `json:"stream_options"`
	Stop          json.RawMessage `json:"stop"`
	StopIDs       []int32         `json:"stop_token_ids"` // of vLLM
	IgnoreEOS     bool            `json:"ignore_eos"`     // of vLLM
	Seed          *int64          `json:"seed"`
	User          string          `json:"user"` // accepted, without effect

	PresencePenalty   float64           `json:"presence_penalty"`
	FrequencyPenalty  float64           `json:"frequency_penalty"`
	LogitBias         map[int32]float64 `json:"logit_bias"`
	MinP              float64           `json:"min_p"` // of vLLM, as the following fields
	RepetitionPenalty *float64          `json:"repetition_penalty"`
	MinTokens         int               `json:"min_tokens"`
	AllowedIDs        []int32           `json:"allowed_token_ids"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// unsupported returns an error that names the given options, which are unsupported, and stream_options
// without stream; nil if there are none. Each option begins with the name of its field.
func (s *sampling) unsupported(more ...string) *Error {
	names := more
	if s.StreamOptions != nil && !s.Stream {
		names = append(names, "stream_options without stream")
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	field, _, _ := strings.Cut(names[0], " ")
	return badRequest(field, "unsupported: %s", strings.Join(names, ", "))
}

// stops returns the stop strings: text, or a list of texts.
func (s *sampling) stops() ([]string, *Error) {
	if len(s.Stop) == 0 || string(s.Stop) == "null" {
		return nil, nil
	}
	var one string
	var list []string
	if json.Unmarshal(s.Stop, &one) == nil {
		list = []string{one}
	} else if json.Unmarshal(s.Stop, &list) != nil {
		return nil, badRequest("stop", "stop: want a string, or a list of strings")
	}
	if len(list) > maxStops {
		return nil, badRequest("stop", "stop: %d strings, at most %d", len(list), maxStops)
	}
	for _, text := range list {
		if text == "" || len(text) > maxStop {
			return nil, badRequest("stop", "stop: a string of %d bytes, want 1 to %d", len(text), maxStop)
		}
	}
	return list, nil
}

// choices returns n.
func (s *sampling) choices() (int, *Error) {
	n := 1
	if s.N != nil {
		n = *s.N
	}
	if n < 1 || n > maxChoices {
		return 0, badRequest("n", "n: %d, want 1 to %d", n, maxChoices)
	}
	return n, nil
}

// request maps the fields of the API to a runner.Request for the first choice of a prompt. Its seed is
// random if the client gives none. The function choice gives the other choices their seeds.
func (s *sampling) request(prompt []int32, maxNew int, eos []int32) (runner.Request, *Error) {
	q := runner.Request{Prompt: prompt, MaxNew: maxNew, Stop: slices.Clone(s.StopIDs), Sampling: runner.Sampling{Temperature: 1, TopP: 1}}
	if !s.IgnoreEOS {
		q.Stop = append(q.Stop, eos...)
	}
	if s.Temperature != nil {
		if q.Sampling.Temperature = *s.Temperature; !(*s.Temperature >= 0 && *s.Temperature <= 2) {
			return q, badRequest("temperature", "temperature: %g, want 0 to 2", *s.Temperature)
		}
	}
	if s.TopP != nil {
		if q.Sampling.TopP = *s.TopP; !(*s.TopP > 0 && *s.TopP <= 1) {
			return q, badRequest("top_p", "top_p: %g, want above 0, at most 1", *s.TopP)
		}
	}
	if s.TopK != nil {
		if q.Sampling.TopK = max(*s.TopK, 0); *s.TopK < -1 {
			return q, badRequest("top_k", "top_k: %d, want -1 or 0 for all, or a number of tokens", *s.TopK)
		}
	}
	if e := s.adjust(&q); e != nil {
		return q, e
	}
	q.Sampling.Seed = rand.Uint64()
	if s.Seed != nil {
		q.Sampling.Seed = uint64(*s.Seed)
	}
	return q, nil
}

// adjust sets the options that change logits. It checks OpenAI's bounds, and refuses a
// repetition_penalty of 0; the runner checks the other values of options that OpenAI's API does not have.
func (s *sampling) adjust(q *runner.Request) *Error {
	for name, v := range map[string]float64{"presence_penalty": s.PresencePenalty, "frequency_penalty": s.FrequencyPenalty} {
		if !(v >= -2 && v <= 2) {
			return badRequest(name, "%s: %g, want -2 to 2", name, v)
		}
	}
	for id, v := range s.LogitBias {
		if !(v >= -100 && v <= 100) {
			return badRequest("logit_bias", "logit_bias: %g of token %d, want -100 to 100", v, id)
		}
	}
	q.MinNew = s.MinTokens
	p := &q.Sampling
	if r := s.RepetitionPenalty; r != nil {
		if p.RepetitionPenalty = *r; *r == 0 { // the runner takes 0 as no penalty; vLLM refuses it
			return badRequest("repetition_penalty", "repetition_penalty 0 is not in [0.01, 100]; 1 changes no logit")
		}
	}
	p.PresencePenalty, p.FrequencyPenalty = s.PresencePenalty, s.FrequencyPenalty
	p.MinP, p.LogitBias, p.Allowed = s.MinP, s.LogitBias, s.AllowedIDs
	return nil
}

// choice returns the request of the i-th choice.
func choice(q runner.Request, i int) runner.Request {
	q.Sampling.Seed += uint64(i) * 0x9e3779b97f4a7c15 // the golden ratio keeps the seeds of choices far apart
	return q
}

// finishReason returns the API's word for the end of a choice without an error. If a stop string
// ends in the last allowed token, the reason is the stop string.
func finishReason(r runner.Reason, stopped bool) string {
	if stopped || r == runner.Stopped {
		return "stop"
	}
	return "length"
}
