package cli_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pwc/cli"
)

// talking are the arguments of pwc generate for the Llama of testdata, which has no tokenizer, with a tokenizer of bytes.
var talking = []string{"generate", "../testdata/hf/llama", "--tokenizer", "../testdata/tokenizers/bytes"}

// generated is an answer to --prompt or --chat, in JSON.
type generated struct {
	Text         string  `json:"text"`
	Content      string  `json:"content"`
	IDs          []int32 `json:"ids"`
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       int     `json:"completion_tokens"`
	FinishReason string  `json:"finish_reason"`
}

// generate runs generate with a tokenizer and returns its answers.
func generate(t *testing.T, stdin string, flags ...string) []generated {
	t.Helper()
	t.Setenv("PWC_CACHE", "off")
	var stdout, stderr bytes.Buffer
	args := append(append([]string{}, talking...), append(flags, "--json")...)
	if code := cli.Run(t.Context(), args, strings.NewReader(stdin), &stdout, &stderr); code != 0 {
		t.Fatalf("%q: exit code %d\n%s", flags, code, &stderr)
	}
	var out []generated
	for d := json.NewDecoder(&stdout); ; {
		var g generated
		err := d.Decode(&g)
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, g)
	}
}

// The answer to a message equals the answer to its prompt, which the chat template makes of all
// messages so far.
func TestConversation(t *testing.T) {
	const template = "../testdata/chat/plain.jinja"
	got := generate(t, "hi\n\nand now?\n", "--chat", "--template", template, "--system", "be brief", "--max-new", "12")
	if len(got) != 2 {
		t.Fatalf("%d answers, want 2: an empty line is no message", len(got))
	}
	prompt := "system: be brief\nuser: hi\nassistant: "
	for i, next := range []string{"\nuser: and now?\nassistant: ", ""} {
		want := generate(t, "", "--prompt", prompt, "--max-new", "12")[0]
		if g := got[i]; g.Content != want.Text || g.PromptTokens != want.PromptTokens || g.Tokens != 12 || g.FinishReason != "length" {
			t.Errorf("answer %d is %+v, want that of %q: %+v", i, g, prompt, want)
		}
		prompt += got[i].Content + next
	}
}

// --max-length bounds prompt and answer together, for requests and conversations. A prompt that leaves
// no room for an answer is refused with an error.
func TestMaxLength(t *testing.T) {
	whole := generate(t, "", "--prompt", "abc", "--max-new", "40")[0]
	prompt := whole.PromptTokens
	length := strconv.Itoa(prompt + 5)
	got := generate(t, "", "--prompt", "abc", "--max-new", "0", "--max-length", length)[0]
	if got.FinishReason != "max_position" || !slices.Equal(got.IDs, whole.IDs[:prompt+5]) {
		t.Errorf("%s: %v, want the first %s ids of %v", got.FinishReason, got.IDs, length, whole.IDs)
	}
	said := generate(t, "abc\n", "--chat", "--template", writeTemplate(t), "--max-length", length)[0]
	if said.PromptTokens != prompt || said.Tokens != 5 || said.FinishReason != "max_position" {
		t.Errorf("a conversation says %+v, want 5 tokens after %d", said, prompt)
	}
	for _, c := range []struct{ flags, want []string }{
		{[]string{"--max-new", "6"}, []string{"6 new ones", "--max-length is " + length}},
		{[]string{"--max-new", "0", "--max-length", strconv.Itoa(prompt)}, []string{"no room for an answer", "--max-length is"}},
	} {
		var stdout, stderr bytes.Buffer
		args := append(append(slices.Clone(talking), "--prompt", "abc", "--max-length", length, "--json"), c.flags...)
		code := cli.Run(t.Context(), args, nil, &stdout, &stderr)
		for _, want := range append(c.want, "refused") {
			if code != 1 || !strings.Contains(stdout.String()+stderr.String(), want) {
				t.Errorf("%q: exit code %d, and no %q in\n%s%s", c.flags, code, want, &stdout, &stderr)
			}
		}
	}
}

// An answer ends before a stop string that spans several tokens. Its ids are the first of those without a stop string.
func TestStopText(t *testing.T) {
	whole := generate(t, "", "--prompt", "abc", "--max-new", "40")[0]
	runes := []rune(whole.Text)
	stop := string(runes[10:14])
	before, _, _ := strings.Cut(whole.Text, stop)
	g := generate(t, "", "--prompt", "abc", "--max-new", "40", "--stop-text", "never there", "--stop-text", stop)[0]
	if g.Text != before || g.FinishReason != "stop" || len(g.IDs) >= len(whole.IDs) {
		t.Errorf("%+v, want the text %q", g, before)
	}
	for i, id := range g.IDs {
		if id != whole.IDs[i] {
			t.Fatalf("id %d is %d, want %d", i, id, whole.IDs[i])
		}
	}
	said := generate(t, "abc\n", "--chat", "--template", writeTemplate(t), "--max-new", "40", "--stop-text", stop)[0]
	if said.Content != before || said.FinishReason != "stop" {
		t.Errorf("%+v, want the text %q", said, before)
	}
}

// writeTemplate writes a template whose prompt is only the last message.
func writeTemplate(t *testing.T) string {
	t.Helper()
	file := t.TempDir() + "/bare.jinja"
	if err := os.WriteFile(file, []byte("{{ messages[-1].content }}"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// An interrupt ends the answer, which is printed as incomplete, and not the conversation: two answers are interrupted.
func TestInterruptEndsAnswer(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals to send")
	}
	args := append(append([]string{}, talking...), "--chat", "--template", writeTemplate(t), "--context", "200001", "--ignore-eos", "--max-new", "200000", "--blocks", "12501")
	cmd := exec.Command("pwc", args...)
	cmd.Env = append(cmd.Environ(), "PWC_CACHE=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(pipe)
	for range 2 {
		if _, err := io.WriteString(in, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Peek(8); err != nil {
			t.Fatal(err, &stderr)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		for line := ""; !strings.HasSuffix(line, " (incomplete: canceled)\n"); { // an answer may have lines
			if line, err = out.ReadString('\n'); err != nil {
				t.Fatalf("%v after %q\n%s", err, line, &stderr)
			}
		}
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v, want exit code 0 at the end of the input\n%s", err, &stderr)
	}
}
