package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/term"

	"pwc/chat"
	"pwc/runner"
	"pwc/tokenizer"
)

// message is a message of a conversation, in the form that chat templates read.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// conversation has the messages so far and the runner that answers.
type conversation struct {
	app      *app
	flags    *generateFlags
	runner   *runner.Runner
	text     *tokenizer.Tokenizer
	template *chat.Template
	ends     []int32 // ids that end an answer
	messages []message
	failed   bool // a message could not be answered
}

// runChat answers the lines of standard input, one after the other.
func (a *app) runChat(ctx context.Context, path string, f *modelFlags, bf *buildFlags, g *generateFlags) (err error) {
	m, err := a.openLanguage(path, f)
	if err != nil {
		return err
	}
	c := &conversation{app: a, flags: g, ends: slices.Clip(g.stop)}
	if !g.noEOS {
		c.ends = append(c.ends, m.module.EOS...)
	}
	if g.system != "" {
		c.messages = []message{{"system", g.system}}
	}
	dir := cmp.Or(m.weights, path)
	if c.text, err = openTokenizer(cmp.Or(g.tokenizer, dir)); err != nil {
		return err
	}
	if c.template, err = openTemplate(g.template, dir); err != nil {
		return err
	}
	weights, t, w, closeAll, err := m.openOn(ctx, f, bf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	o := g.options()
	o.MaxSequences = cmp.Or(o.MaxSequences, 1)
	full, err := o.Resolve(m.module)
	if err != nil {
		return explainOptions(err)
	}
	block := int(cacheBlock(m.module))
	o.MaxBlocks = min(g.mostBlocks(m.module), (full.MaxLength+block-1)/block)
	if c.runner, err = a.openRunner(ctx, m.module, t, w, bf, g, o, &generation{app: a}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.runner.Close()) }()
	if bf.process.follows() {
		return a.runFollower(ctx, c.runner, weights)
	}
	plan := c.runner.Plan()
	if !a.json {
		fmt.Fprintf(a.err, "%s in %s on %s%s\n%s\n", m.path, modelDType(m.module), t.dev.Info().Name, w.text(), plan.String())
	}
	t.bar.capturing(plan.Graphs)
	err = c.runner.Load(ctx, weights)
	t.bar.end()
	if err != nil {
		return err
	}
	return c.talk(ctx)
}

// openTemplate opens the chat template of --template, a file or directory, else the one in the
// directory of a checkpoint, or of a file of the checkpoint.
func openTemplate(asked, checkpoint string) (*chat.Template, error) {
	if asked != "" {
		return chat.Open(asked, "")
	}
	if info, err := os.Stat(checkpoint); err == nil && !info.IsDir() {
		checkpoint = filepath.Dir(checkpoint)
	}
	t, err := chat.Open(checkpoint, "")
	if errors.Is(err, chat.ErrNone) {
		err = fmt.Errorf("%w; --template FILE gives one", err)
	}
	return t, err
}

// talk steps the runner and answers until the input or ctx ends.
func (c *conversation) talk(ctx context.Context) (err error) {
	stepping, end := context.WithCancel(context.WithoutCancel(ctx))
	stepped := make(chan error, 1)
	go func() { stepped <- c.runner.Run(stepping) }()
	defer func() {
		end()
		if stopped := <-stepped; !errors.Is(stopped, context.Canceled) {
			err = errors.Join(err, stopped)
		}
	}()
	lines := c.app.readLines(ctx)
	for {
		c.ask()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case line := <-lines:
			switch {
			case errors.Is(line.err, io.EOF) && c.failed:
				return errReported
			case errors.Is(line.err, io.EOF):
				return nil
			case line.err != nil:
				return line.err
			case strings.TrimSpace(line.text) == "":
			default:
				if err := c.turn(ctx, line.text); err != nil {
					return err
				}
			}
		}
	}
}

// ask prints "> " if standard input is a terminal, and not with --json.
func (c *conversation) ask() {
	if f, ok := c.app.in.(*os.File); ok && term.IsTerminal(int(f.Fd())) && !c.app.json {
		fmt.Fprint(c.app.err, "> ")
	}
}

// inputLine is a line of standard input, or a read error.
type inputLine struct {
	text string
	err  error
}

// readLines reads standard input in a goroutine. A read of a terminal cannot be canceled, so after
// the end of ctx the goroutine ends only when its read returns. The last element has an error,
// io.EOF at the end of the input.
func (a *app) readLines(ctx context.Context) <-chan inputLine {
	lines := make(chan inputLine)
	go func() {
		in := bufio.NewScanner(a.in)
		in.Buffer(nil, maxMessage)
		send := func(l inputLine) bool {
			select {
			case lines <- l:
				return true
			case <-ctx.Done():
				return false
			}
		}
		for in.Scan() {
			if !send(inputLine{text: in.Text()}) {
				return
			}
		}
		switch err := in.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			send(inputLine{err: fmt.Errorf("<standard input>: a message of more than %s", byteCount(maxMessage))})
		case err != nil:
			send(inputLine{err: fmt.Errorf("<standard input>: %w", err)})
		default:
			send(inputLine{err: io.EOF})
		}
	}()
	return lines
}

// maxMessage bounds a message of a conversation, in bytes.
const maxMessage = 1 << 20

// turn takes a message and prints the answer. A message that cannot be answered is removed from the
// conversation; an interrupted answer is kept as far as it was generated.
func (c *conversation) turn(ctx context.Context, said string) error {
	before := len(c.messages)
	c.messages = append(c.messages, message{"user", said})
	q, err := c.request(ctx)
	if err == nil {
		err = c.answer(ctx, q)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, runner.ErrClosed):
		return err
	}
	c.messages, c.failed = c.messages[:before], true
	fmt.Fprintf(c.app.err, "pwc: %s\n", c.app.message(err))
	return nil
}

// request returns the request for the next answer: its prompt is the whole conversation.
func (c *conversation) request(ctx context.Context) (runner.Request, error) {
	said, err := json.Marshal(c.messages)
	if err != nil {
		return runner.Request{}, err
	}
	prompt, err := c.template.Render(ctx, chat.Conversation{Messages: said, Generate: true})
	if err != nil {
		return runner.Request{}, err
	}
	q := runner.Request{Prompt: c.text.Encode(prompt, false), MaxNew: c.flags.maxNew, MinNew: c.flags.minNew, Stop: c.ends, Sampling: c.flags.sampling}
	q.Sampling.LogitBias = c.flags.bias
	room := c.runner.Plan().MaxLength - len(q.Prompt)
	if room < 1 {
		return q, fmt.Errorf("the conversation has %d tokens with this message, which leaves no room for an answer in a sequence of at most %d: begin another conversation", len(q.Prompt), c.runner.Plan().MaxLength)
	}
	if q.MaxNew > room {
		q.MaxNew = 0 // no limit but the length of the sequence
	}
	return q, nil
}

// answer prints the answer of a request token by token, and adds it to the conversation.
func (c *conversation) answer(ctx context.Context, q runner.Request) error {
	answering, cancel := context.WithCancel(ctx)
	defer cancel()
	defer onInterrupt(ctx, cancel)()
	seq, err := c.runner.Submit(answering, q)
	if err != nil {
		return err
	}
	out := newTextAnswer(c.text, c.flags.stopText, c.ends)
	for id, err := range seq.Tokens(context.WithoutCancel(ctx)) {
		if err != nil {
			break // seq.Reason and seq.Err have the cause
		}
		c.print(out.next(id))
		if out.stopped() {
			seq.Stop()
			break
		}
	}
	<-seq.Done()
	c.print(out.flush())
	reason := seq.Reason()
	if out.stopped() {
		reason = runner.Stopped
	}
	c.messages = append(c.messages, message{"assistant", out.text.String()})
	if err := c.printEnd(len(q.Prompt), out, reason); err != nil {
		return err
	}
	if reason == runner.Failed {
		return seq.Err()
	}
	return context.Cause(ctx)
}

// print prints a part of an answer.
func (c *conversation) print(part string) {
	if !c.app.json {
		fmt.Fprint(c.app.out, part)
	}
}

// printEnd ends the line of an answer, or prints all of it in JSON.
func (c *conversation) printEnd(prompt int, out *textAnswer, reason runner.Reason) error {
	if !c.app.json {
		note := ""
		if reason != runner.Stopped {
			note = fmt.Sprintf(" (incomplete: %s)", reason)
		}
		_, err := fmt.Fprintln(c.app.out, note)
		return err
	}
	line, err := json.Marshal(struct {
		message
		PromptTokens int           `json:"prompt_tokens"`
		Tokens       int           `json:"completion_tokens"`
		FinishReason runner.Reason `json:"finish_reason"`
	}{message{"assistant", out.text.String()}, prompt, out.ids, reason})
	if err == nil {
		_, err = fmt.Fprintf(c.app.out, "%s\n", line)
	}
	return err
}
