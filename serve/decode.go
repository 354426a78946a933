package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
)

// decode reads the body of a request into a struct. It refuses unknown fields, all of them in one
// error, and duplicate keys, also of nested objects: a client must not believe that an ignored option
// has an effect. It does not check the keys in values that the struct keeps as JSON.
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
	if text := bytes.TrimLeft(body, " \t\r\n"); text[0] != '{' {
		return badRequest("", "the body is not a JSON object")
	}
	typ := reflect.TypeOf(v).Elem()
	if e := checkKeys(body, typ, ""); e != nil {
		return e
	}
	if err := json.Unmarshal(body, v); err != nil {
		var t *json.UnmarshalTypeError
		if errors.As(err, &t) {
			field := t.Field
			if first, rest, nested := strings.Cut(field, "."); nested && fields(typ)[first] == nil {
				field = rest // first is the name of an embedded struct
			}
			return badRequest(param(field), "%s: %s", field, explain(err))
		}
		return badRequest("", "%v", err)
	}
	return noNulls(body)
}

// noNulls refuses a null in a list of ids or of prompts, also in a prompt that is itself a list of ids.
// json.Unmarshal would read it as 0 or "".
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
		at := nullAt(fields[name])
		if name == "prompt" && strings.Count(at, "[") == 1 {
			want = "text, an id or a list of ids"
		}
		if at != "" {
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

// checkKeys refuses keys that valid JSON has twice in an object, and keys that a type does not have. The JSON is at a
// path in the body, such as messages[0].content; "" is the body.
func checkKeys(text []byte, t reflect.Type, at string) *Error {
	var unknown []string
	if e := walkKeys(text, t, at, &unknown); e != nil || unknown == nil {
		return e
	}
	slices.Sort(unknown)
	return badRequest(param(at), "unknown or unsupported: %s", strings.Join(unknown, ", "))
}

// walkKeys appends to unknown the paths of the keys of objects in valid JSON that the type t lacks. The JSON is at the
// path in the argument at. Values of another kind than t are left to json.Unmarshal.
func walkKeys(text []byte, t reflect.Type, at string, unknown *[]string) *Error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch text = bytes.TrimSpace(text); {
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct && text[0] == '[':
		var items []json.RawMessage
		if err := json.Unmarshal(text, &items); err != nil {
			return badRequest(at, "%v", err)
		}
		for i, item := range items {
			if e := walkKeys(item, t.Elem(), fmt.Sprintf("%s[%d]", at, i), unknown); e != nil {
				return e
			}
		}
	case (t.Kind() == reflect.Struct || t.Kind() == reflect.Map) && text[0] == '{':
		names, values, e := object(text, at)
		if e != nil || t.Kind() == reflect.Map {
			return e
		}
		known := fields(t)
		for _, name := range names {
			path := join(at, name)
			if known[name] == nil {
				*unknown = append(*unknown, fmt.Sprintf("%q", path))
			} else if e := walkKeys(values[name], known[name], path, unknown); e != nil {
				return e
			}
		}
	}
	return nil
}

// join returns the path of a key in the object at a path; "" is the body.
func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// param returns the part of a path up to the first dot, for the param of an error.
func param(path string) string {
	name, _, _ := strings.Cut(path, ".")
	return name
}

// object returns the keys of the JSON object in text, in order, and its values. A duplicate key is an error.
func object(text []byte, at string) ([]string, map[string]json.RawMessage, *Error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, nil, badRequest(at, "%s: want an object", at)
	}
	var names []string
	values := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, nil, badRequest(at, "%v", err)
		}
		name := t.(string)
		if _, twice := values[name]; twice {
			return nil, nil, badRequest(param(join(at, name)), "%s occurs twice", join(at, name))
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, nil, badRequest(param(join(at, name)), "%v", err)
		}
		names, values[name] = append(names, name), v
	}
	return names, values, nil
}

// fields returns the types of a struct's fields by their JSON names, fields of embedded structs included.
func fields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			maps.Copy(out, fields(f.Type))
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out[name] = f.Type
	}
	return out
}
