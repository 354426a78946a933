package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
)

// decode reads the body of a request into a struct. It refuses unknown fields, all of them in one
// error, and duplicate keys: a client must not believe that an ignored option has an effect. It does
// not check the keys of nested objects.
func decode(w http.ResponseWriter, r *http.Request, limit int64, v any) *Error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return &Error{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Message: fmt.Sprintf("the body is larger than %d bytes", limit)}
	case err != nil:
		return badRequest("", "the body cannot be read: %v", err)
	}
	if !json.Valid(body) {
		return badRequest("", "the body is not JSON")
	}
	names, e := keys(body)
	if e != nil {
		return e
	}
	known := fieldNames(reflect.TypeOf(v).Elem())
	var unknown []string
	for _, name := range names {
		if !slices.Contains(known, name) {
			unknown = append(unknown, fmt.Sprintf("%q", name))
		}
	}
	if unknown != nil {
		slices.Sort(unknown)
		return badRequest("", "unknown or unsupported: %s", strings.Join(unknown, ", "))
	}
	if err := json.Unmarshal(body, v); err != nil {
		var t *json.UnmarshalTypeError
		if errors.As(err, &t) {
			field := t.Field
			if first, rest, nested := strings.Cut(field, "."); nested && !slices.Contains(known, first) {
				field = rest // first is the name of an embedded struct
			}
			return badRequest(field, "%s: %s", field, explain(err))
		}
		return badRequest("", "%v", err)
	}
	return noNulls(body)
}

// noNulls refuses a null in a list of ids or of prompts, which json.Unmarshal would read as 0 or "".
func noNulls(body []byte) *Error {
	if !bytes.Contains(body, []byte("null")) {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return badRequest("", "%v", err)
	}
	for _, name := range []string{"prompt", "tokens", "stop_token_ids", "allowed_token_ids"} {
		want := "an id"
		if name == "prompt" {
			want = "text or an id"
		}
		if at := nullAt(fields[name]); at != "" {
			return badRequest(name, "%s%s is null, want %s", name, at, want)
		}
	}
	return nil
}

// nullAt returns the index of the first null in a list, such as [2], or in a list of lists, such as
// [0][2]; "" if there is no such null.
func nullAt(raw json.RawMessage) string {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return "" // no list
	}
	for i, v := range list {
		if string(v) == "null" {
			return fmt.Sprintf("[%d]", i)
		}
		var ids []json.RawMessage
		if v[0] != '[' || json.Unmarshal(v, &ids) != nil {
			continue
		}
		if j := slices.IndexFunc(ids, func(id json.RawMessage) bool { return string(id) == "null" }); j >= 0 {
			return fmt.Sprintf("[%d][%d]", i, j)
		}
	}
	return ""
}

// explain returns the text of an error of json.Unmarshal, without the names of Go's types.
func explain(err error) string {
	var t *json.UnmarshalTypeError
	if !errors.As(err, &t) {
		return err.Error()
	}
	return fmt.Sprintf("a JSON %s, want %s", t.Value, wanted(t.Type))
}

// wanted describes the JSON values that a type takes.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "a whole number in the field's range"
}

// keys returns the keys of the object in text.
func keys(text []byte) ([]string, *Error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, badRequest("", "the body is not a JSON object")
	}
	var out []string
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, badRequest("", "%v", err)
		}
		name := t.(string)
		if slices.Contains(out, name) {
			return nil, badRequest(name, "%s occurs twice", name)
		}
		out = append(out, name)
		var skip json.RawMessage
		if err := d.Decode(&skip); err != nil {
			return nil, badRequest(name, "%v", err)
		}
	}
	return out, nil
}

// fieldNames returns the JSON names of a struct's fields, embedded structs included.
func fieldNames(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			out = append(out, fieldNames(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}
