package cli

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"pwc/tokenizer"
)

func (a *app) tokenizeCommand() *cobra.Command {
	var ids idList
	var text string
	var bare, control bool
	cmd := &cobra.Command{
		Use:   "tokenize TOKENIZER",
		Short: "convert text to ids, or ids to text",
		Long: `Convert text to the ids of a tokenizer: a checkpoint directory, a tokenizer.json, a
SentencePiece model (tokenizer.model), or the ranks of tiktoken (.tiktoken). The text is
--text, else standard input. --ids converts ids to text.

Special tokens, such as the one that begins a sequence, are added unless --bare is
given. Control tokens have no text unless --control is given.`,
		Example: `  pwc tokenize models/llama --text "Hello, world"
  pwc tokenize tokenizer.json --ids 72,101,108
  pwc tokenize models/llama --bare --json < prompt.txt`,
		Args: exactly(1, "one tokenizer: a file or a checkpoint directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			toText := cmd.Flags().Changed("ids")
			if toText && cmd.Flags().Changed("text") {
				return usagef("--ids and --text exclude each other")
			}
			if err := refuse(cmd, noEffect{toText, "bare", " with --ids: it is for text that becomes ids"},
				noEffect{!toText, "control", " without --ids: it is for ids that become text"}); err != nil {
				return err
			}
			t, err := openTokenizer(args[0])
			if err != nil {
				return err
			}
			if toText {
				return a.printText(t, ids, control)
			}
			if !cmd.Flags().Changed("text") {
				data, err := io.ReadAll(io.LimitReader(a.in, maxText+1))
				if err != nil {
					return fmt.Errorf("<standard input>: %w", err)
				}
				if len(data) > maxText {
					return fmt.Errorf("<standard input>: a text of more than %s", byteCount(maxText))
				}
				text = string(data)
			}
			return a.printTokens(t, t.Encode(text, !bare))
		},
	}
	cmd.Flags().StringVar(&text, "text", "", "`TEXT` to convert to ids (default: standard input)")
	cmd.Flags().Var(&ids, "ids", "`ID`s to convert to text")
	cmd.Flags().BoolVar(&bare, "bare", false, "do not add special tokens, such as the one that begins a sequence")
	cmd.Flags().BoolVar(&control, "control", false, "print control tokens as the vocabulary spells them")
	return cmd
}

// maxText bounds a text on standard input, in bytes.
const maxText = 256 << 20

// openTokenizer opens a tokenizer: a file, a directory with one, or a file of a checkpoint whose directory has one.
func openTokenizer(path string) (*tokenizer.Tokenizer, error) {
	switch filepath.Ext(path) {
	case ".ir", ".safetensors", ".pt2":
		path = filepath.Dir(path)
	case ".json":
		if filepath.Base(path) == "config.json" {
			path = filepath.Dir(path)
		}
	}
	return tokenizer.Open(path)
}

type tokenizeReport struct {
	IDs    []int32  `json:"ids"`
	Tokens []string `json:"tokens"` // as the vocabulary spells them
}

func (a *app) printTokens(t *tokenizer.Tokenizer, ids []int32) error {
	r := tokenizeReport{IDs: append([]int32{}, ids...), Tokens: []string{}}
	for _, id := range ids {
		r.Tokens = append(r.Tokens, t.Token(id))
	}
	if a.json {
		return a.printJSON(r)
	}
	_, err := fmt.Fprintln(a.out, idText(ids))
	return err
}

func (a *app) printText(t *tokenizer.Tokenizer, ids []int32, control bool) error {
	text := t.Decode(ids, control)
	if a.json {
		return a.printJSON(map[string]string{"text": text})
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}
