// Package exactjson decodes JSON with exact keys. Package encoding/json matches keys in
// any case, and uses the last of several equal keys. So one text can have different
// meanings for different readers: a tool that checks a manifest reads "digest", the
// program reads "Digest".
package exactjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"pwc/internal/termsafe"
)

// Unmarshal is json.Unmarshal, but returns an error if an object has a key twice, or if a
// key differs from that of a struct's field only in case. It ignores keys for which the
// struct has no field. It cannot decode a struct whose method UnmarshalJSON reads other keys than
// those of its fields: call it in that method.
func Unmarshal(text []byte, v any) error {
	if json.Valid(text) { // otherwise json.Unmarshal returns the syntax error
		w := &walker{text: text, fields: map[reflect.Type]map[string]reflect.Type{}}
		if err := w.value(reflect.TypeOf(v)); err != nil {
			return err
		}
	}
	return json.Unmarshal(text, v)
}

// walker checks the keys of a text that is valid JSON. It stores only the keys of the
// objects that enclose the current value, and the fields of types.
type walker struct {
	text   []byte
	at     int
	fields map[reflect.Type]map[string]reflect.Type
}

// next skips white space, commas and colons, and returns the next byte without skipping
// it.
func (w *walker) next() byte {
	for {
		switch c := w.text[w.at]; c {
		case ' ', '\t', '\n', '\r', ',', ':':
			w.at++
		default:
			return c
		}
	}
}

// str skips a string and returns it with its quotes.
func (w *walker) str() []byte {
	start := w.at
	for w.at++; w.text[w.at] != '"'; w.at++ {
		if w.text[w.at] == '\\' {
			w.at++
		}
	}
	w.at++
	return w.text[start:w.at]
}

// value checks one value that is decoded into type t; nil: any type.
func (w *walker) value(t reflect.Type) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch w.next() {
	case '{':
		return w.object(t)
	case '[':
		var element reflect.Type
		if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
			element = t.Elem()
		}
		for w.at++; w.next() != ']'; {
			if err := w.value(element); err != nil {
				return err
			}
		}
		w.at++
	case '"':
		w.str()
	default: // a number, true, false or null ends before a delimiter
		for w.at < len(w.text) && bytes.IndexByte([]byte(" \t\n\r,]}"), w.text[w.at]) < 0 {
			w.at++
		}
	}
	return nil
}

func (w *walker) object(t reflect.Type) error {
	known := w.fields[t]
	if known == nil {
		known = fields(t)
		w.fields[t] = known
	}
	var seen map[string]bool
	for w.at++; w.next() != '}'; {
		quoted := w.str()
		key := string(quoted[1 : len(quoted)-1])
		if strings.Contains(key, `\`) || !utf8.ValidString(key) {
			if err := json.Unmarshal(quoted, &key); err != nil {
				return err
			}
		}
		if seen[key] {
			return fmt.Errorf("key %q twice", termsafe.Clip(key, 80))
		}
		if seen == nil {
			seen = map[string]bool{}
		}
		seen[key] = true
		value, ok := known[key]
		if !ok {
			for name := range known {
				if strings.EqualFold(name, key) {
					return fmt.Errorf("key %q; it must be %q", termsafe.Clip(key, 80), name)
				}
			}
			if t != nil && t.Kind() == reflect.Map {
				value = t.Elem()
			}
		}
		if err := w.value(value); err != nil {
			return err
		}
	}
	w.at++
	return nil
}

// fields returns the types of a struct's fields, by JSON key.
func fields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	if t == nil || t.Kind() != reflect.Struct {
		return out
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() || f.Anonymous && name == "":
			continue
		case name == "":
			name = f.Name
		}
		out[name] = f.Type
	}
	return out
}
