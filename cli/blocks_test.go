package cli_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pwc/cli"
)

// block is a block of commands that a reader pastes into a shell.
type block struct {
	name  string // "README.md:52", "pwc run"
	model string // "run", "train" or "grad": which module model.ir is, with its tensors (modelOf)
	lines []string
}

// documentBlocks returns the code blocks without a language that contain a command of pwc, of README.md,
// CONTRIBUTING.md and docs/*.md.
func documentBlocks(t *testing.T) (blocks []block) {
	t.Helper()
	paths, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	fence := regexp.MustCompile("(?ms)^```\n(.*?)^```")
	for _, path := range append([]string{"../README.md", "../CONTRIBUTING.md"}, paths...) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range fence.FindAllSubmatchIndex(text, -1) {
			body := string(text[at[2]:at[3]])
			if regexp.MustCompile(`(?m)(^|[(=])(pwc|go run \./cmd/pwc) `).MatchString(body) {
				line := 1 + bytes.Count(text[:at[0]], []byte("\n"))
				name := fmt.Sprintf("%s:%d", strings.TrimPrefix(path, "../"), line)
				blocks = append(blocks, block{name: name, model: modelOf(body), lines: logicalLines(body)})
			}
		}
	}
	return blocks
}

// helpBlocks returns the examples in the help of all commands, except help and the subcommands of completion.
func helpBlocks(t *testing.T) (blocks []block) {
	t.Helper()
	var visit func(args ...string)
	visit = func(args ...string) {
		var help bytes.Buffer
		if code := cli.Run(t.Context(), append(args, "--help"), strings.NewReader(""), &help, io.Discard); code != 0 {
			t.Fatalf("pwc %s --help: exit code %d", strings.Join(args, " "), code)
		}
		if _, examples, ok := strings.Cut(help.String(), "\nExamples:\n"); ok {
			examples, _, _ = strings.Cut(examples, "\n\n")
			name := strings.TrimSpace("pwc " + strings.Join(args, " "))
			blocks = append(blocks, block{name: name, model: modelOf(name), lines: logicalLines(examples)})
		}
		if _, list, ok := strings.Cut(help.String(), "\nAvailable Commands:\n"); ok && !slices.Contains(args, "completion") {
			for line := range strings.Lines(list) {
				name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
				if name == "" {
					break
				}
				if name != "help" {
					visit(append(slices.Clone(args), name)...)
				}
			}
		}
	}
	visit()
	return blocks
}

// logicalLines joins the lines that end with a backslash, drops the indentation, and writes pwc for go run ./cmd/pwc.
func logicalLines(text string) (lines []string) {
	text = strings.ReplaceAll(text, "go run ./cmd/pwc ", "pwc ")
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\\\n", " "), "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// modelOf chooses the module for model.ir in the folder of a block, by the commands in the block.
func modelOf(text string) string {
	for _, command := range []string{"train", "grad"} {
		if strings.Contains(text, "pwc "+command) {
			return command
		}
	}
	return "run"
}

// elsewhere are commands that do not run in this test. Most need a registry, a server, a certificate, another program, a
// path of another machine, or the digest of a push.
var elsewhere = regexp.MustCompile(`registry\.|bench-serve http|tls-cert|sha256:…|…|^(curl|digest=\$|cosign|oras|man|make|python3?|go|\.ci/|PARTS=)|trust remove|trace-out|/opt/pwc`)

// Every block of documentBlocks, and every example of --help, is valid for a shell, and its commands of pwc run, with
// fewer training steps and warm-up runs. pwc serve runs until it serves. A line of elsewhere, or for a GPU if there is
// none, does not run; if it calls pwc, its flags are checked.
func TestCommandBlocks(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	gpu, err := condition("gpu")
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	for _, b := range append(documentBlocks(t), helpBlocks(t)...) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			script := "set -eo pipefail\n"
			for _, line := range b.lines {
				command, away := commandOf(line)
				switch {
				case away, !gpu && strings.Contains(line, "--target cuda"):
					if command != "" {
						script += command + " --help >help.txt\n"
					}
				case strings.HasPrefix(line, "pwc serve "): // it would run until a signal
					script += "rm -f serve.txt\n" + line + " --listen 127.0.0.1:0 >serve.txt &\nserver=$!\nuntil grep -qs serving serve.txt; do kill -0 $server; sleep 0.05; done\nkill $server\nwait $server\n"
				default:
					script += line + "\n"
				}
			}
			if out, err := exec.Command(bash, "-n", "-c", strings.Join(b.lines, "\n")).CombinedOutput(); err != nil {
				t.Fatalf("bash cannot parse the block: %s", out)
			}
			cmd := exec.Command(bash, "-c", shorter(script))
			cmd.Dir = blockFolder(t, b.model)
			cmd.Env = append(cmd.Environ(), "PWC_CACHE=", "PWC_CACHE_DIR="+cache, "PWC_CACHE_PATH=", "PWC_CACHE_REMOTE=", "PWC_CACHE_TRUST="+filepath.Join(cmd.Dir, "trust"))
			if strings.HasPrefix(b.name, "pwc cache") || strings.HasPrefix(b.name, "docs/cache.md") || strings.HasPrefix(b.name, "docs/registries.md") { // these commands pin models and clear the cache
				cmd.Env = append(cmd.Env, "PWC_CACHE_DIR="+filepath.Join(cmd.Dir, "cache"))
				script = "pwc compile models/llama --capture-sizes none >compiled.txt\npwc cache export cache.tar >>compiled.txt\n" + script
				cmd.Args[2] = shorter(script)
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s\n%s", err, script, out)
			}
		})
	}
}

// commandOf returns the first command of pwc in a line, without the shell's syntax around it, "" without one. away
// reports whether TestCommandBlocks leaves the line out: a line of elsewhere, or one without "pwc ".
func commandOf(line string) (command string, away bool) {
	away = elsewhere.MatchString(line)
	at := strings.Index(line, "pwc ")
	if at < 0 || at > 0 && !strings.Contains("(= ", line[at-1:at]) || strings.HasPrefix(line, "go ") {
		return "", away || at < 0
	}
	command = line[at:]
	for _, end := range []string{" # ", " && ", " | ", " > ", ")"} {
		command, _, _ = strings.Cut(command, end)
	}
	command, _, _ = strings.Cut(command, "  # ")
	return strings.TrimSpace(command), away
}

// shorter makes a block fast enough for a test, with few training steps and one warm-up.
func shorter(script string) string {
	script = regexp.MustCompile(`--steps [0-9]{3,}`).ReplaceAllString(script, "--steps 2")
	script = strings.ReplaceAll(script, "--steps 2 --out run --resume", "--steps 3 --out run --resume")
	return regexp.MustCompile(`--warmup [0-9]+`).ReplaceAllString(script, "--warmup 1")
}

// blockFolder makes a folder with the files that blocks use.
func blockFolder(t *testing.T, model string) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	llama := filepath.Join(root, "testdata/hf/llama")
	links := map[string]string{
		"testdata": filepath.Join(root, "testdata"), "models/mixtral": filepath.Join(root, "testdata/hf/mixtral"), "graphs": filepath.Join(root, "graphs"), "models/toy.ir": filepath.Join(root, "testdata/nineteen.ir"), "DIR": llama,
		"config.json": filepath.Join(llama, "config.json"), "model.pt2": filepath.Join(root, "testdata/pt2/mlp/model.pt2"),
		"inputs.safetensors": filepath.Join(root, "testdata/pt2/mlp/expected.safetensors"), "attention.pt2": filepath.Join(root, "testdata/pt2/toy-attention/model.pt2"),
		"prompt.safetensors": filepath.Join(llama, "expected.safetensors"),
		"trace.safetensors":  filepath.Join(root, "testdata/traces/llama.safetensors"), "ids.safetensors": filepath.Join(root, "testdata/train/repeat/data.safetensors"),
		"model.ir":       filepath.Join(root, "testdata/nineteen.ir"),
		"scenario.txtar": filepath.Join(root, "graphs/scenario/testdata/foo_fee.txtar"),
	}
	tokenizer := filepath.Join(root, "testdata/tokenizers/bytes/tokenizer.json")
	links["tokenizer.json"], links["models/llama/tokenizer.json"] = tokenizer, tokenizer
	links["models/llama/chat_template.jinja"] = filepath.Join(root, "testdata/chat/plain.jinja")
	for _, name := range []string{"config.json", "model.safetensors", "expected.safetensors"} {
		links["models/llama/"+name] = filepath.Join(llama, name)
	}
	if model == "train" {
		for name, file := range map[string]string{"model.ir": "mlp.ir", "data.safetensors": "mlp/data.safetensors", "initial.safetensors": "mlp/initial.safetensors"} {
			links[name] = filepath.Join(root, "testdata/train", file)
		}
	}
	for name, to := range links {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{"prompt.txt": "Hello", "prompts.jsonl": "{\"ids\": [5, 7, 9]}\n[1, 2]\n"}
	if model == "grad" {
		if err := os.Remove(filepath.Join(dir, "model.ir")); err != nil {
			t.Fatal(err)
		}
		files["model.ir"] = "pwc 1\nmodule \"loss\" {\n  weights from \".\"\n  weight @w : f32[2]\n  func @loss(%x: f32[2]) -> (f32[1]) {\n    %y = mul(%x, @w)\n    %z = sum(%y, axes=[0], keepdims=true)\n    return %z\n  }\n}\n"
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	vectors := map[string][]string{"x": {"x:f32=1,2"}, "case": {"x:f32=1,2", "grad_out0:f32=1", "grad_in0:f32=3,5"}}
	if model == "grad" {
		vectors["model"] = []string{"w:f32=3,5"}
	}
	for name, values := range vectors {
		if err := tensors(append([]string{filepath.Join(dir, name+".safetensors")}, values...)); err != nil {
			t.Fatal(err)
		}
	}
	writeKeys(t, dir)
	return dir
}

// writeKeys writes a private key and its public key, under the names that blocks use.
func writeKeys(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{
		"key.pem": {Type: "PRIVATE KEY", Bytes: private}, "key.pub": {Type: "PUBLIC KEY", Bytes: public}, "cosign.pub": {Type: "PUBLIC KEY", Bytes: public},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The Go program in README.md prints the ids that pwc generate prints.
func TestProgramOfREADME(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindSubmatch(text)
	if program == nil {
		t.Fatal("README.md has no program")
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, program[1], 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", file)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	generate := exec.Command("pwc", "generate", "testdata/hf/llama", "--ids", "5,7,9", "--max-new", "24")
	generate.Dir, generate.Env = "..", append(generate.Environ(), "PWC_CACHE=off")
	want, err := generate.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(out)); !slices.Equal(got, strings.Fields(string(want))) || len(got) != 24 {
		t.Errorf("the program prints %v, pwc generate %s", got, want)
	}
}
