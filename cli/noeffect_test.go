package cli_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"pwc/cli"
)

// TestFlagsWithoutEffect: a flag that has no effect in a call is a usage error.
func TestFlagsWithoutEffect(t *testing.T) {
	root, err := filepath.Abs("../testdata")
	if err != nil {
		t.Fatal(err)
	}
	module, llama, mixtral, bytesOnly := filepath.Join(root, "nineteen.ir"), filepath.Join(root, "hf/llama"), filepath.Join(root, "hf/mixtral"), filepath.Join(root, "tokenizers/bytes")
	t.Chdir(t.TempDir())
	t.Setenv("PWC_CACHE", "off")
	for _, c := range []struct{ args, want string }{
		{"split " + mixtral + " --expert-parallel", "--expert-parallel has no effect on one device: --tp N"},
		{"split " + mixtral + " --expert-parallel --tp 1", "--expert-parallel has no effect on one device"},
		{"split " + mixtral + " --expert-parallel --tp 2", ""},
		{"split " + module + " --max N=8", "--max bounds dynamic dimensions of an exported program; " + module + " is a module"},
		{"split " + llama + " --max N=8", "is a checkpoint"},
		{"grad " + llama + " --max N=8", "is a checkpoint"},
		{"import " + llama + " --max N=8", "is a checkpoint"},
		{"train " + module + " --data d --steps 1 --max N=8", "is a module"},
		{"verify " + module + " --rows 2 --dir case", "--dir has no effect without --bisect"},
		{"verify " + module + " --rows 2 --allow-unmapped", "--allow-unmapped has no effect without --trace"},
		{"verify --write-script --rows 2 --json", "--json and --rows have no effect with --write-script"},
		{"verify --write-script " + module, "takes no arguments, got 1"},
		{"split " + module + " --long --dot", "--long has no effect with --dot"},
		{"split " + module + " --dot --mode full --json", "--mode and --json have no effect with --dot"},
		{"split " + module + " --long --json", "--long has no effect with --json"},
		{"tokenize " + bytesOnly + " --ids 72 --bare", "--bare has no effect with --ids"},
		{"tokenize " + bytesOnly + " --text a --control", "--control has no effect without --ids"},
		{"tokenize " + bytesOnly + " --control", "--control has no effect without --ids"},
		{"tokenize " + bytesOnly + " --ids 72 --control", ""},
		{"run " + module + " --rows 2 --mode trees --capture-sizes 2 --ranges 4", "--capture-sizes and --ranges have no effect with --mode trees"},
		{"run " + module + " --rows 2 --mode trees --compile-sizes 2", "--compile-sizes has no effect with --mode trees"},
		{"run " + module + " --rows 2 --mode trees --split-on add", "--split-on has no effect with --mode trees"},
		{"run " + module + " --rows 2 --mode trees --padded-slots x", "--padded-slots has no effect with --mode trees"},
		{"run " + module + " --rows 2 --mode trees --jobs 2", "--jobs has no effect with --mode trees"},
		{"run " + module + " --rows 2 --mode trees --copy-weights", "--copy-weights has no effect with --mode trees"},
		{"run " + module + " --rows 2 --mode trees --trace-out t.json", "--trace-out has no effect with --mode trees"},
		{"run " + llama + " --rows 2 --rendezvous-token secret", "--rendezvous-token has no effect without --rank and --rendezvous"},
		{"run " + llama + " --rows 2 --local-rank 1", "--local-rank has no effect without --rank and --rendezvous"},
		{"inspect " + module + " --json --force", "--force has no effect without -o FILE"},
		{"inspect " + module + " --force -o -", "--force has no effect without -o FILE"},
		{"inspect " + module + " --json -o r.html", "--output has no effect with --json"},
		{"inspect " + module + " --json --peak 9", "--peak has no effect without --profile"},
		{"inspect " + module + " --json --dump-passes d", "--dump-passes has no effect"},
		{"example --force", "--force has no effect without -o FILE"},
		{"import " + llama + " --force", "--force has no effect without -o FILE"},
		{"import " + llama + " --force -o -", "--force has no effect without -o FILE"},
		{"grad " + module + " --force", "--force has no effect without -o FILE"},
		{"generate " + llama + " --ids 5 --memory 1GiB --memory-fraction 0.5", "--memory-fraction has no effect with --memory"},
		{"serve " + llama + " --memory 1GiB --memory-fraction 0.5", "--memory-fraction has no effect with --memory"},
		{"bench-serve " + llama + " --memory 1GiB --memory-fraction 0.5", "--memory-fraction has no effect with --memory"},
		{"bench " + llama + " --format csv --json", "--format has no effect with --json"},
		{"bench " + llama + " --train --batch 1 --repeats 2", "--batch and --repeats have no effect with --train"},
		{"bench " + llama + " --train --bucket 1MiB", "--bucket has no effect on one device: --dp N"},
		{"train " + module + " --data d --steps 1 --momentum 0.9", "--momentum has no effect with --optimizer adamw"},
		{"train " + module + " --data d --steps 1 --optimizer sgd --eps 1", "--eps has no effect with --optimizer sgd"},
		{"train " + module + " --data d --steps 1 --bucket 1MiB", "--bucket has no effect on one device: --dp N"},
		{"tune " + llama + " --frozen", "--frozen excludes tune"},
		{"run " + module + " --rows 2 --weights dummy", "--weights has no effect: " + module + " has no weights"},
		{"bench " + module + " --batch 2 --weights d", "--weights has no effect: " + module + " has no weights"},
		{"bench " + module + " --batch 2 --repeats 1 --capture-sizes none", ""}, // bench makes weights up by default
	} {
		var out, messages bytes.Buffer
		code := cli.Run(t.Context(), strings.Fields(c.args), strings.NewReader(""), &out, &messages)
		if want := map[bool]int{true: 0, false: 2}[c.want == ""]; code != want || !strings.Contains(messages.String(), c.want) {
			t.Errorf("pwc %s: exit code %d, want %d and %q:\n%s", c.args, code, want, c.want, &messages)
		}
	}
	t.Setenv("PWC_JOBS", "2") // a variable is for all calls, and is no error
	t.Setenv("PWC_RENDEZVOUS_TOKEN", "secret")
	var messages bytes.Buffer
	if code := cli.Run(t.Context(), []string{"run", module, "--rows", "2", "--mode", "trees"}, strings.NewReader(""), &bytes.Buffer{}, &messages); code != 0 {
		t.Errorf("with PWC_JOBS: exit code %d:\n%s", code, &messages)
	}
}

// TestNoLanguageModel: generate and serve say first that a module is no language model, and not that its directory has
// no tokenizer.
func TestNoLanguageModel(t *testing.T) {
	module := filepath.Join("..", "testdata", "nineteen.ir")
	for _, args := range [][]string{{"generate", module, "--prompt", "a"}, {"generate", module, "--chat"}, {"serve", module}} {
		var messages bytes.Buffer
		code := cli.Run(t.Context(), args, strings.NewReader("a\n"), &bytes.Buffer{}, &messages)
		if code != 1 || !strings.Contains(messages.String(), "is not a language model: it needs @forward") {
			t.Errorf("pwc %v: exit code %d:\n%s", args, code, &messages)
		}
	}
}

// TestFewBlocks: a value of --symbol that gives the KV cache too few blocks is a usage error with the value to give. A
// function without attention does not need the blocks.
func TestFewBlocks(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	llama := filepath.Join("..", "testdata", "hf", "llama")
	const few = "--symbol B=2: the KV cache needs 3 blocks of 16 tokens for 40 tokens: give at least B=3, or omit it"
	for _, c := range []struct {
		command, more, want string
	}{
		{"run", "--symbol B=2", few}, {"run", "--symbol B=2 --func forward", few}, {"run", "--symbol B=2 --mode trees", few}, {"verify", "--symbol B=2", few},
		{"run", "--symbol B=2 --func logits", ""}, {"run", "--symbol B=3", ""},
	} {
		var messages bytes.Buffer
		args := append([]string{c.command, llama, "--rows", "40"}, strings.Fields(c.more)...)
		code := cli.Run(t.Context(), args, strings.NewReader(""), &bytes.Buffer{}, &messages)
		if want := map[bool]int{true: 0, false: 2}[c.want == ""]; code != want || !strings.Contains(messages.String(), c.want) {
			t.Errorf("pwc %v: exit code %d, want %d and %q:\n%s", args, code, want, c.want, &messages)
		}
	}
}
