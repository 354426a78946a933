package cli_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pwc/cli"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// evil is a long name with control sequences that clear the screen, set the title, reverse text and
// forge a line, and with invalid UTF-8.
var evil = "x\x1b[2J\x1b]0;t\a\u202e\u009b31m\nforged: line\r\xff" + strings.Repeat("y", 200)

// obeyed returns the first control character of a text, or a forged line.
func obeyed(text string) string {
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "forged") {
			return "line " + strconv.Itoa(i+1) + " is forged"
		}
		for _, r := range line {
			if r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError) {
				return strconv.QuoteRune(r) + " in line " + strconv.Itoa(i+1) + ": " + strconv.Quote(line)
			}
		}
	}
	return ""
}

// TestNothingIsObeyed gives every command names with control sequences: of files, modules,
// functions, tensors, ops, keys, values and flags. Standard output and standard error, as text and
// as JSON, must not contain the sequences.
func TestNothingIsObeyed(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PWC_CACHE", "")
	t.Setenv("PWC_CACHE_DIR", filepath.Join(dir, "cache"))
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	inFile := strings.ReplaceAll(evil, "/", "")[:60]
	q := strconv.Quote(strings.ToValidUTF8(evil, "")) // a string of the IR
	module := "pwc 1\nmodule " + q + " {\n  sym N in [1, 64] batch\n  weight @" + q + " : f32[4]\n  func @" + q + "(%" + q + ": f32[N, 4]) -> (f32[N, 4]) {\n    %" + q + "1 = neg(%" + q + ") loc(" + q + ")\n    return %" + q + "1\n  }\n}\n"
	module = strings.ReplaceAll(module, q+"1", strconv.Quote(strings.ToValidUTF8(evil, "")+"1"))
	good := write(inFile+"good.ir", module)
	raw := write("raw.ir", "pwc 1 // "+evil+"\nmodule \"m\" {\n  // "+evil+"\n  func @f(%x: f32["+evil+"]) -> () {\n  }\n}\n")
	loss := write(inFile+"loss.ir", "pwc 1\nmodule "+q+" {\n  weight @"+q+" : f32[2]\n  func @"+q+"(%"+q+": f32[2]) -> (f32[]) {\n    %"+q+"1 = mul(%"+q+", @"+q+") loc("+q+")\n"+
		"    %"+q+"2 = sum(%"+q+"1, axes=[0])\n    return %"+q+"2\n  }\n}\n")
	text, err := os.ReadFile(loss)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToValidUTF8(evil, "")
	write(inFile+"loss.ir", strings.NewReplacer(q+"1", strconv.Quote(name+"1"), q+"2", strconv.Quote(name+"2")).Replace(string(text)))
	var names bytes.Buffer
	if err := safetensors.Encode(&names, []safetensors.Tensor{{Name: strings.ToValidUTF8(evil, ""), DType: dtype.F32, Shape: []int64{2}, Data: make([]byte, 8)}}, nil); err != nil {
		t.Fatal(err)
	}
	tensors := write("t.safetensors", names.String())
	key, err := json.Marshal(strings.ToValidUTF8(evil, ""))
	if err != nil {
		t.Fatal(err)
	}
	config := write("c/config.json", `{"architectures": [`+string(key)+`], "model_type": `+string(key)+`, `+string(key)+`: `+string(key)+`}`)
	llama := write("l/config.json", `{"architectures": ["LlamaForCausalLM"], "hidden_size": `+string(key)+`, `+string(key)+`: 1}`)
	requests := write("r.jsonl", `{"ids": [1], "request": `+string(key)+`, `+string(key)+`: 1}`+"\n"+evil+"\n")
	missing := filepath.Join(dir, inFile+"missing")
	calls := map[string][][]string{
		"bench-serve": {{"bench-serve", good, "--requests", "1"}, {"bench-serve", missing}, {"bench-serve", config}, {"bench-serve", "http://127.0.0.1:1/" + evil}},
		"bench":       {{"bench", good}, {"bench", missing}, {"bench", config}, {"bench", "--target", evil, good}},
		"cache":       {{"cache", "ls", evil}, {"cache", "explain", good}, {"cache", evil}, {"cache", "pull", evil}, {"cache", "show", evil}, {"cache", "trust", evil}, {"cache", "ls"}, {"cache", "verify"}},
		"check":       {{"check", good}, {"check", raw}, {"check", missing}, {"check", config}, {"check", llama}},
		"compile":     {{"compile", good}, {"compile", raw}, {"compile", good, "--split-on", evil}, {"compile", good, "--symbol", evil}, {"compile", good, "--dump-passes", missing}, {"compile", good, "-v"}},
		"doctor":      {{"doctor", evil}},
		"example":     {{"example", "-o", filepath.Join(missing, evil)}},
		"fmt":         {{"fmt", good}, {"fmt", raw}, {"fmt", "-l", good}, {"fmt", "-d", good}, {"fmt", missing}},
		"generate":    {{"generate", good, "--ids", "1"}, {"generate", "../testdata/hf/llama", "--ids-file", requests}, {"generate", "../testdata/hf/llama", "--ids", evil}, {"generate", "../testdata/hf/llama", "--mode", evil, "--ids", "1"}},
		"grad": {{"grad", good}, {"grad", good, "--func", evil}, {"grad", good, "--wrt", evil}, {"grad", good, "--wrt", strings.ToValidUTF8(evil, "")}, {"grad", raw}, {"grad", missing},
			{"grad", good, "-o", filepath.Join(missing, evil)}, {"grad", good, "-o", filepath.Join(dir, inFile+"grad.ir")}},
		"graphs": {{"graphs", "run", missing}, {"graphs", "run", raw}, {"graphs", evil}},
		"help":   {{"help", evil}, {evil}, {"--" + evil}},
		"import": {{"import", config}, {"import", llama}, {"import", missing}, {"import", good}, {"import", "../testdata/hf/llama", "--architecture", evil}, {"import", llama, "--ignore-key", evil}},
		"run": {{"run", good, "--rows", "2"}, {"run", good, "--rows", "2", "--weights", "dummy", "--check"}, {"run", good, "--in", tensors, "--weights", "dummy"}, {"run", good, "--in", tensors, "--weights", tensors}, {"run", raw, "--rows", "2"},
			{"run", good, "--weights", "dummy", "--rows", "2", "--out", filepath.Join(missing, evil)}, {"run", "../testdata/nineteen.ir", "--in", tensors}, {"run", "../testdata/nineteen.ir", "--in", missing}, {"run", "../testdata/nineteen.ir", "--rows", "2", "--func", evil}},
		"split": {{"split", good}, {"split", raw}, {"split", good, "--split-on", evil}},
		"train": {{"train", loss, "--data", tensors, "--weights", tensors, "--steps", "2", "--out", filepath.Join(dir, inFile+"run")}, {"train", loss, "--data", tensors, "--weights", tensors, "--steps", "3", "--out", filepath.Join(dir, inFile+"run"), "--resume"},
			{"train", good, "--data", tensors, "--steps", "1"}, {"train", raw, "--data", tensors, "--steps", "1"}, {"train", loss, "--data", missing, "--steps", "1"}, {"train", loss, "--data", tensors, "--steps", "1", "--func", evil},
			{"train", loss, "--data", tensors, "--steps", "1", "--optimizer", evil}, {"train", loss, "--data", tensors, "--weights", "../testdata/train/mlp/initial.safetensors", "--steps", "1"},
			{"train", "../testdata/train/mlp.ir", "--data", tensors, "--weights", tensors, "--steps", "1"}},
		"tune":     {{"tune", good}, {"tune", "--target", evil, good}},
		"serve":    {{"serve", missing}, {"serve", raw}},
		"tokenize": {{"tokenize", "../testdata/tokenizers/bytes", "--text", evil}, {"tokenize", missing, "--text", "a"}, {"tokenize", raw, "--text", "a"}},
		"inspect":  {{"inspect", good, "-o", filepath.Join(dir, inFile+"report.html")}, {"inspect", good, "--json"}, {"inspect", raw, "--json"}, {"inspect", good, "-o", filepath.Join(missing, evil)}, {"inspect", good, "--json", "--profile", raw}},
		"verify": {{"verify", good, "--rows", "2", "--weights", "dummy", "--bisect", "--dir", filepath.Join(missing, evil)}, {"verify", good, "--trace", tensors, "--weights", "dummy"}, {"verify", raw, "--rows", "2"}, {"verify", good, "--rows", "2", "--versus", evil},
			{"verify", "../testdata/nineteen.ir", "--trace", tensors}, {"verify", "../testdata/nineteen.ir", "--trace", missing}},
		"version":    {{"version", evil}},
		"completion": {{"completion", evil}, {"completion", "bash", evil}},
		"man":        {{"man", filepath.Join(tensors, evil)}, {"man", filepath.Join(dir, inFile+"man")}},
	}
	var help bytes.Buffer
	if code := cli.Run(t.Context(), []string{"--help"}, strings.NewReader(""), &help, io.Discard); code != 0 {
		t.Fatal(code)
	}
	_, list, _ := strings.Cut(help.String(), "Available Commands:\n")
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" {
			break
		}
		if len(calls[name]) == 0 {
			t.Errorf("no hostile call of command %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) { // in order: a command may use the files of an earlier one
		for _, args := range calls[name] {
			for _, more := range [][]string{nil, {"--json"}} {
				var stdout, stderr bytes.Buffer
				args := append(append([]string{}, args...), more...)
				cli.Run(t.Context(), args, strings.NewReader(evil), &stdout, &stderr)
				for what, text := range map[string]string{"output": stdout.String(), "error": stderr.String()} {
					if bad := obeyed(text); bad != "" {
						t.Errorf("pwc %.200q: standard %s: %s", args, what, bad)
					}
					for line := range strings.Lines(text) {
						if len(line) > 20000 {
							t.Errorf("pwc %.200q: standard %s: a line of %d bytes", args, what, len(line))
						}
					}
				}
			}
		}
	}
}
