package exactjson

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

type inner struct {
	Digest string `json:"digest"`
}

type base struct {
	Version int `json:"version"`
}

type outer struct {
	base
	Layers []inner           `json:"layers"`
	One    *inner            `json:"one"`
	Any    json.RawMessage   `json:"any"`
	Labels map[string]inner  `json:"labels"`
	Kelvin int               `json:"k"`
	Hidden int               `json:"-"`
	Names  map[string]string `json:"names"`
}

func TestUnmarshal(t *testing.T) {
	var got outer
	text := `{"version":1,"layers":[{"digest":"a","Other":{"x":1}},{}],"one":{"digest":"b"},"any":{"Digest":1},"labels":{"Digest":{"digest":"c"}},"Hidden":1,"names":{"a":"1","A":"2"}}`
	if err := Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := outer{base: base{1}, Layers: []inner{{"a"}, {}}, One: &inner{"b"}, Any: json.RawMessage(`{"Digest":1}`), Labels: map[string]inner{"Digest": {"c"}}, Names: map[string]string{"a": "1", "A": "2"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	for text, want := range map[string]string{
		`{"version":1,"version":1}`:                  `key "version" twice`,
		`{"Version":1}`:                              `key "Version"; it must be "version"`,
		`{"layers":[{},{"DIGEST":""}]}`:              `key "DIGEST"; it must be "digest"`,
		`{"one":{"digest":"a","digest":"b"}}`:        `twice`,
		`{"any":{"a":1,"a":2}}`:                      `twice`,
		`{"any":{"a":1,"\u0061":2}}`:                 `twice`,
		`{"labels":{"x":{"diGest":""}}}`:             `it must be "digest"`,
		`{"` + "\u212a" + `":1}`:                     `it must be "k"`, // the Kelvin sign, which encoding/json takes for a k
		`{"` + strings.Repeat("x", 200) + `":1,"a"}`: `invalid character`,
		`{"version":1} {}`:                           `after top-level value`,
		`{"version"`:                                 `unexpected end`,
		``:                                           `unexpected end`,
		`[`:                                          `unexpected end`,
	} {
		if err := Unmarshal([]byte(text), &outer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// FuzzUnmarshal: a text that Unmarshal accepts has the same value for encoding/json.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"version":1,"layers":[{"digest":"a"}],"labels":{"x":{}}}`))
	f.Add([]byte(`[[[{"a":[1.5e3,null,true]}]]]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var got, want outer
		if Unmarshal(text, &got) == nil && (json.Unmarshal(text, &want) != nil || !reflect.DeepEqual(got, want)) {
			t.Fatalf("%s: %+v, want %+v", text, got, want)
		}
	})
}
