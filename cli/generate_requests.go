package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"pwc/internal/openfile"
	"pwc/internal/termsafe"
	"pwc/runner"
)

// idList is the value of a flag that takes comma-separated ids.
type idList []int32

// String returns the value as the flag takes it.
func (l *idList) String() string { return strings.ReplaceAll(idText(*l), " ", ",") }

// Type names the kind of value in the help.
func (l *idList) Type() string { return "ids" }

// Set adds what one occurrence of the flag gives.
func (l *idList) Set(text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for s := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 32)
		if err != nil || n < 0 {
			return fmt.Errorf("%q is not an id", s)
		}
		*l = append(*l, int32(n))
	}
	return nil
}

// biasFlag is the value of --logit-bias: biases by id. An empty text adds no bias.
type biasFlag map[int32]float64

// String returns the value as the flag takes it.
func (b *biasFlag) String() string {
	var list []string
	for _, id := range slices.Sorted(maps.Keys(*b)) {
		list = append(list, fmt.Sprintf("%d=%g", id, (*b)[id]))
	}
	return strings.Join(list, ",")
}

// Type names the kind of value in the help.
func (b *biasFlag) Type() string { return "biases" }

// Set adds what one occurrence of the flag gives.
func (b *biasFlag) Set(text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for s := range strings.SplitSeq(text, ",") {
		id, bias, ok := strings.Cut(strings.TrimSpace(s), "=")
		n, err := strconv.ParseInt(id, 10, 32)
		if !ok || err != nil || n < 0 {
			return fmt.Errorf("%q is not ID=BIAS", s)
		}
		v, err := strconv.ParseFloat(bias, 64)
		if err != nil {
			return fmt.Errorf("%q is not ID=BIAS: %q is not a number", s, bias)
		}
		if *b == nil {
			*b = biasFlag{}
		}
		(*b)[int32(n)] = v
	}
	return nil
}

// maxLine bounds a line of --ids-file, in bytes; a million ids are about 7 MB.
const maxLine = 64 << 20

// requests returns a request for each line of --ids-file; without --ids-file, the one request of the flags.
func (g *generateFlags) requests(stdin io.Reader) ([]namedRequest, error) {
	base := namedRequest{Request: runner.Request{Prompt: g.ids, MaxNew: g.maxNew, MinNew: g.minNew, Stop: g.stop, Sampling: g.sampling}, name: json.RawMessage("0"), ignoreEOS: g.noEOS}
	base.Sampling.LogitBias = g.bias
	if g.file == "" {
		return []namedRequest{base}, nil
	}
	in, file := stdin, "<standard input>"
	if g.file != "-" {
		f, _, err := openfile.Stream(g.file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in, file = f, g.file
	}
	var out []namedRequest
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	n := 1
	for ; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		q, err := parseRequest(line, base, len(out))
		if err != nil {
			col, what := explainRequest(err)
			return nil, fmt.Errorf("%s:%d:%d: %s", file, n, bytes.Index(lines.Bytes(), line)+col, what)
		}
		out = append(out, q)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d:1: a line of more than %s", file, n, byteCount(maxLine))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(out) == 0 {
		return nil, usagef("%s has no request", file)
	}
	return out, nil
}

// requestLine is a line of --ids-file. The flags set the values of fields that are nil, except request, ids and priority.
type requestLine struct {
	Request     json.RawMessage `json:"request"`
	IDs         jsonIDs         `json:"ids"`
	MaxNew      *int            `json:"max_new"`
	Stop        jsonIDs         `json:"stop"`
	IgnoreEOS   *bool           `json:"ignore_eos"`
	Temperature *float64        `json:"temperature"`
	TopK        *int            `json:"top_k"`
	TopP        *float64        `json:"top_p"`
	Seed        *uint64         `json:"seed"`

	MinNew            *int              `json:"min_new"`
	MinP              *float64          `json:"min_p"`
	RepetitionPenalty *float64          `json:"repetition_penalty"`
	FrequencyPenalty  *float64          `json:"frequency_penalty"`
	PresencePenalty   *float64          `json:"presence_penalty"`
	LogitBias         map[int32]float64 `json:"logit_bias"`
	Allowed           jsonIDs           `json:"allowed"`
	Priority          *int              `json:"priority"`
}

// jsonIDs is a list of ids in JSON. encoding/json reads a null as a nil pointer, which values refuses.
type jsonIDs []*int32

// values returns the ids, nil for an absent list. An empty list is not nil: it overrides the flag.
func (l jsonIDs) values(field string) ([]int32, error) {
	if l == nil {
		return nil, nil
	}
	ids := make([]int32, len(l))
	for i, id := range l {
		if id == nil {
			return nil, fmt.Errorf("%s: id %d is null", field, i)
		}
		ids[i] = *id
	}
	return ids, nil
}

func parseRequest(line []byte, base namedRequest, number int) (namedRequest, error) {
	q := base
	q.name = json.RawMessage(strconv.Itoa(number))
	var r requestLine
	var dst any = &r
	if line[0] == '[' {
		dst = &r.IDs
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(dst); err != nil {
		return q, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return q, errors.New("a line holds one request")
	}
	if line[0] == '{' {
		if err := exactKeys(line); err != nil {
			return q, err
		}
	}
	if r.Request != nil {
		if !strings.ContainsRune(`"-0123456789`, rune(r.Request[0])) {
			return q, fmt.Errorf("request must be a string or a number, is %s", termsafe.Quote(string(r.Request)))
		}
		q.name = r.Request
	}
	set(&q.MaxNew, r.MaxNew)
	set(&q.ignoreEOS, r.IgnoreEOS)
	set(&q.Sampling.Temperature, r.Temperature)
	set(&q.Sampling.TopK, r.TopK)
	set(&q.Sampling.TopP, r.TopP)
	if r.TopP != nil && !(*r.TopP > 0 && *r.TopP <= 1) {
		q.refused = fmt.Errorf("top_p %g: %w", *r.TopP, errTopP)
	}
	set(&q.Sampling.Seed, r.Seed)
	set(&q.MinNew, r.MinNew)
	set(&q.Sampling.MinP, r.MinP)
	set(&q.Sampling.RepetitionPenalty, r.RepetitionPenalty)
	if p := r.RepetitionPenalty; p != nil && !(*p > 0) {
		q.refused = fmt.Errorf("repetition_penalty %g: %w", *p, errRepetition)
	}
	set(&q.Sampling.FrequencyPenalty, r.FrequencyPenalty)
	set(&q.Sampling.PresencePenalty, r.PresencePenalty)
	set(&q.Priority, r.Priority)
	if r.LogitBias != nil {
		q.Sampling.LogitBias = r.LogitBias
	}
	ids, err := r.IDs.values("ids")
	stop, errStop := r.Stop.values("stop")
	allowed, errAllowed := r.Allowed.values("allowed")
	if err := cmp.Or(err, errStop, errAllowed); err != nil {
		return q, err
	}
	q.Prompt = ids
	if stop != nil {
		q.Stop = stop
	}
	if allowed != nil {
		q.Sampling.Allowed = allowed
	}
	switch {
	case len(q.Prompt) == 0:
		return q, errors.New("a request needs ids")
	case q.MaxNew > maxNumber:
		return q, fmt.Errorf("max_new is %d, more than %d", q.MaxNew, maxNumber)
	}
	return q, nil
}

// keyError is an error about a key of a request, with its column.
type keyError struct {
	col  int // from 1
	what string
}

// Error returns the problem with the key.
func (e *keyError) Error() string { return e.what }

// exactKeys refuses keys that encoding/json would accept although their case differs, and duplicate
// keys, of which encoding/json would take the last. The line is an object.
func exactKeys(line []byte) error {
	known := map[string]bool{}
	for f := range reflect.TypeFor[requestLine]().Fields() {
		known[f.Tag.Get("json")] = true
	}
	seen := map[string]bool{}
	d := json.NewDecoder(bytes.NewReader(line))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key := t.(string)                          // the only tokens between the values of an object are keys
		col := int(d.InputOffset()) - len(key) - 1 // of the opening quote, if the key has no escapes
		switch {
		case !known[key]:
			return &keyError{col, fmt.Sprintf("unknown field %s", termsafe.Quote(key))}
		case seen[key]:
			return &keyError{col, fmt.Sprintf("duplicate field %s", termsafe.Quote(key))}
		}
		seen[key] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
	}
	return nil
}

// explainRequest returns the column and the text of an error about a request, without the names of
// Go's types.
func explainRequest(err error) (col int, what string) {
	var syntax *json.SyntaxError
	var value *json.UnmarshalTypeError
	var key *keyError
	switch {
	case errors.As(err, &syntax):
		return max(1, int(syntax.Offset)), "not JSON: " + err.Error()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return 1, "not JSON: the line ends within the request"
	case errors.As(err, &key):
		return key.col, key.what
	case !errors.As(err, &value):
		return 1, strings.TrimPrefix(err.Error(), "json: ")
	}
	col = max(1, int(value.Offset))
	field, _, _ := strings.Cut(value.Field, ".")
	switch field {
	case "temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty":
		return col, fmt.Sprintf("%s takes a number, not %s", field, value.Value)
	case "ignore_eos":
		return col, fmt.Sprintf("%s takes true or false, not %s", field, value.Value)
	case "max_new", "top_k", "seed", "min_new", "priority":
		return col, fmt.Sprintf("%s takes a whole number in its range, not %s", field, value.Value)
	case "logit_bias":
		return col, fmt.Sprintf("%s takes an object of numbers by id, not %s", field, value.Value)
	case "":
		if value.Type.Kind() == reflect.Struct {
			return col, fmt.Sprintf("a request is a list of ids or an object, not %s", value.Value)
		}
		field = "ids"
	}
	return col, fmt.Sprintf("%s takes whole numbers of 32 bits, not %s", field, value.Value)
}

func set[T any](dst *T, v *T) {
	if v != nil {
		*dst = *v
	}
}
