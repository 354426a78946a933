package cli

import (
	"errors"
	"testing"
)

// A field with a value of the wrong type is an error with the type that the field takes.
func TestExplainRequest(t *testing.T) {
	for line, want := range map[string]string{
		`{"ids": [1.5]}`:                                "ids takes whole numbers of 32 bits, not number 1.5",
		`{"ids": [1], "stop": ["2"]}`:                   "stop takes whole numbers of 32 bits, not string",
		`{"ids": [1], "allowed": 2}`:                    "allowed takes whole numbers of 32 bits, not number",
		`{"ids": [1], "min_new": 0.5}`:                  "min_new takes a whole number in its range, not number 0.5",
		`{"ids": [1], "priority": "high"}`:              "priority takes a whole number in its range, not string",
		`{"ids": [1], "min_p": "much"}`:                 "min_p takes a number, not string",
		`{"ids": [1], "repetition_penalty": [1]}`:       "repetition_penalty takes a number, not array",
		`{"ids": [1], "frequency_penalty": true}`:       "frequency_penalty takes a number, not bool",
		`{"ids": [1], "presence_penalty": "1"}`:         "presence_penalty takes a number, not string",
		`{"ids": [1], "logit_bias": 2}`:                 "logit_bias takes an object of numbers by id, not number",
		`{"ids": [1], "logit_bias": {"x": 2}}`:          "logit_bias takes an object of numbers by id, not number x",
		`{"ids": [1], "logit_bias": {"7": "2"}}`:        "logit_bias takes an object of numbers by id, not string",
		`{"ids": [1], "logit_bias": {"9999999999": 2}}`: "logit_bias takes an object of numbers by id, not number 9999999999",
	} {
		_, err := parseRequest([]byte(line), namedRequest{}, 0)
		if err == nil {
			t.Errorf("%s: no error, want %q", line, want)
			continue
		}
		if _, got := explainRequest(err); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// Zeros that package runner takes for unset fields are refused.
func TestZerosAreRefused(t *testing.T) {
	for line, want := range map[string]error{
		`{"ids": [1], "top_p": 0}`:                errTopP,
		`{"ids": [1], "repetition_penalty": 0}`:   errRepetition,
		`{"ids": [1], "repetition_penalty": 0.5}`: nil,
	} {
		if q, err := parseRequest([]byte(line), namedRequest{}, 0); err != nil || !errors.Is(q.refused, want) || want == nil && q.refused != nil {
			t.Errorf("%s: refused with %v, %v, want %v", line, q.refused, err, want)
		}
	}
}
