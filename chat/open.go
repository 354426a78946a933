package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"pwc/internal/openfile"
)

// ErrNone: the checkpoint has no chat template, so it was not trained on conversations.
var ErrNone = errors.New("chat: the checkpoint has no chat template")

// maxConfig bounds the bytes of tokenizer_config.json.
const maxConfig = 64 << 20

// Open reads the chat template of a checkpoint directory, and the special tokens that it names.
// The template is chat_template.jinja, otherwise chat_template of tokenizer_config.json. Of
// several templates Open takes the one with the given name, or "default" if name is empty. The
// path of a .jinja file is a template without special tokens. Errors match [ErrNone] or
// [ErrTemplate].
func Open(path, name string) (*Template, error) {
	if strings.HasSuffix(path, ".jinja") {
		source, err := openfile.Read(path, MaxSource)
		if err != nil {
			return nil, err
		}
		return parseFile(path, source, nil)
	}
	file := filepath.Join(path, "tokenizer_config.json")
	text, err := openfile.Read(file, maxConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var c config
	if text != nil {
		if err := json.Unmarshal(text, &c); err != nil {
			return nil, fmt.Errorf("chat: %s: %w", file, err)
		}
	}
	own := filepath.Join(path, "chat_template.jinja")
	if name != "" && name != defaultName {
		own = filepath.Join(path, "additional_chat_templates", filepath.Base(name)+".jinja")
	}
	switch source, err := openfile.Read(own, MaxSource); {
	case err == nil:
		return parseFile(own, source, c.tokens())
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	source, err := c.template(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, path)
	}
	return parseFile(file, []byte(source), c.tokens())
}

func parseFile(file string, source []byte, tokens map[string]string) (*Template, error) {
	t, err := Parse(string(source), tokens)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

// defaultName is the name of the template that Open takes if name is empty.
const defaultName = "default"

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
	if err := json.Unmarshal(text, &object); err != nil {
		return err
	}
	*t = token(object.Content)
	return nil
}

// tokens are the names of special tokens in templates. Tokens that the checkpoint lacks are
// undefined.
func (c *config) tokens() map[string]string {
	out := map[string]string{}
	for name, t := range map[string]token{"bos_token": c.Bos, "eos_token": c.Eos, "unk_token": c.Unk, "sep_token": c.Sep, "pad_token": c.Pad, "cls_token": c.Cls, "mask_token": c.Mask} {
		if t != "" {
			out[name] = string(t)
		}
	}
	return out
}

func (c *config) template(name string) (string, error) {
	if len(c.Template) == 0 || string(c.Template) == "null" {
		return "", ErrNone
	}
	var source string
	if json.Unmarshal(c.Template, &source) == nil {
		if name != "" && name != defaultName {
			return "", fmt.Errorf("%w of the name %q: it has one, without a name", ErrNone, name)
		}
		return source, nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(c.Template, &list); err != nil {
		return "", fmt.Errorf("%w: chat_template is neither text nor a list of templates", ErrTemplate)
	}
	var names []string
	for _, t := range list {
		if t.Name == name || name == "" && t.Name == defaultName {
			return t.Template, nil
		}
		names = append(names, t.Name)
	}
	slices.Sort(names)
	return "", fmt.Errorf("%w of the name %q: it has %s", ErrNone, name, strings.Join(names, ", "))
}
