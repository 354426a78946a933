package chat

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pwc/internal/exactjson"
	"pwc/internal/openfile"
)

// ErrNone: the checkpoint has no chat template, or none of the given name.
var ErrNone = errors.New("chat: the checkpoint has no chat template")

// maxConfig bounds the bytes of tokenizer_config.json.
const maxConfig = 64 << 20

// Open reads a chat template of a checkpoint directory by its name, and the special tokens of
// tokenizer_config.json. An empty name means "default". The file of the template "default" is
// chat_template.jinja, of another NAME additional_chat_templates/NAME.jinja. Without this file, Open reads
// chat_template of tokenizer_config.json: a text, which is "default", or a list of named templates, in
// which the last of a name counts. It is an error if an object of tokenizer_config.json has a key twice, or if a key
// that Open reads is in another letter case.
//
// If path ends in .jinja, it is the file of the template: Open reads no special tokens, and does not use
// name.
//
// Errors match [ErrNone] if there is no such template, [ErrTemplate] if it or tokenizer_config.json cannot
// be parsed. Other errors are those of reading the files, such as [fs.ErrNotExist].
func Open(path, name string) (*Template, error) {
	if strings.HasSuffix(path, ".jinja") {
		source, err := openfile.Read(path, MaxSource)
		if err != nil {
			return nil, err
		}
		return parseFile(path, source, nil)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	name = cmp.Or(name, defaultName)
	configFile := filepath.Join(path, "tokenizer_config.json")
	text, err := openfile.Read(configFile, maxConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var c config
	if text != nil {
		if err := exactjson.Unmarshal(text, &c); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", configFile, ErrTemplate, err)
		}
	}
	if !strings.ContainsAny(name, `/\`) { // no file of additional_chat_templates has such a name
		file := templateFile(path, name)
		switch source, err := openfile.Read(file, MaxSource); {
		case err == nil:
			return parseFile(file, source, c.tokens())
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	templates, err := c.templates()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	source, ok := templates[name]
	if !ok {
		return nil, missing(path, name, templates)
	}
	return parseFile(configFile, []byte(source), c.tokens())
}

// templateFile returns the path of the file of a template.
func templateFile(dir, name string) string {
	if name == defaultName {
		return filepath.Join(dir, "chat_template.jinja")
	}
	return filepath.Join(dir, additional, name+".jinja")
}

// missing returns the error for a name that no template of the directory has. It lists the other names.
func missing(dir, name string, templates map[string]string) error {
	names := slices.Collect(maps.Keys(templates))
	if _, err := os.Stat(templateFile(dir, defaultName)); err == nil {
		names = append(names, defaultName)
	}
	files, _ := os.ReadDir(filepath.Join(dir, additional)) // without it, there are no files to list
	for _, file := range files {
		if name, ok := strings.CutSuffix(file.Name(), ".jinja"); ok {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("%w: %s", ErrNone, dir)
	}
	slices.Sort(names)
	return fmt.Errorf("%w named %q: %s has %q", ErrNone, name, dir, slices.Compact(names))
}

func parseFile(file string, source []byte, tokens map[string]string) (*Template, error) {
	t, err := Parse(string(source), tokens)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

const (
	defaultName = "default"                   // the template if no name is given
	additional  = "additional_chat_templates" // the folder of the others
)

// config has the fields of tokenizer_config.json for conversations.
type config struct {
	Template json.RawMessage `json:"chat_template"` // text, or a list of named ones

	Bos  token `json:"bos_token"`
	Eos  token `json:"eos_token"`
	Unk  token `json:"unk_token"`
	Sep  token `json:"sep_token"`
	Pad  token `json:"pad_token"`
	Cls  token `json:"cls_token"`
	Mask token `json:"mask_token"`
}

// token is a special token: text, or an object with content.
type token string

// UnmarshalJSON reads both forms; null is no token.
func (t *token) UnmarshalJSON(text []byte) error {
	var s *string
	if json.Unmarshal(text, &s) == nil {
		if s != nil {
			*t = token(*s)
		}
		return nil
	}
	var object struct {
		Content string `json:"content"`
	}
	if err := exactjson.Unmarshal(text, &object); err != nil {
		return err
	}
	*t = token(object.Content)
	return nil
}

// tokens returns the texts of the special tokens by their variables in templates, such as bos_token.
// It leaves out tokens that the checkpoint lacks: their variables are undefined.
func (c *config) tokens() map[string]string {
	out := map[string]string{}
	for name, t := range map[string]token{"bos_token": c.Bos, "eos_token": c.Eos, "unk_token": c.Unk, "sep_token": c.Sep, "pad_token": c.Pad, "cls_token": c.Cls, "mask_token": c.Mask} {
		if t != "" {
			out[name] = string(t)
		}
	}
	return out
}

// templates returns the texts of chat_template by name. Of several templates with one name, the last counts,
// as in transformers, which makes a dict of the list.
func (c *config) templates() (map[string]string, error) {
	if len(c.Template) == 0 || string(c.Template) == "null" {
		return nil, nil
	}
	var source string
	if json.Unmarshal(c.Template, &source) == nil {
		return map[string]string{defaultName: source}, nil
	}
	var list []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := exactjson.Unmarshal(c.Template, &list); err != nil {
		return nil, fmt.Errorf("%w: chat_template is neither text nor a list of templates: %w", ErrTemplate, err)
	}
	named := map[string]string{}
	for _, t := range list {
		named[t.Name] = t.Template
	}
	return named, nil
}
