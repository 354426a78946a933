package cgen

import (
	"fmt"
	"strings"

	"pwc/compile/cuda/src"
)

// failf records an error; the first one is kept.
func (e *Emitter) failf(format string, args ...any) {
	if e.Err == nil {
		e.Err = fmt.Errorf(format, args...)
	}
}

// Line writes one line of the kernel's body.
func (e *Emitter) Line(format string, args ...any) {
	e.body.WriteString(strings.Repeat("  ", e.depth))
	fmt.Fprintf(&e.body, format, args...)
	e.body.WriteByte('\n')
}

// Open writes a line that opens a block.
func (e *Emitter) Open(format string, args ...any) {
	e.Line(strings.TrimSpace(format+" {"), args...)
	e.depth++
}

// Close ends the block.
func (e *Emitter) Close() {
	e.depth--
	e.Line("}")
}

// CloseLambda ends the body of a function that a variable holds.
func (e *Emitter) CloseLambda() {
	e.depth--
	e.Line("};")
}

// Use marks a snippet as used and returns its name.
func (e *Emitter) Use(name string) string {
	e.used[name] = true
	return name
}

// Generate adds a snippet for this kernel alone, and marks it as used.
func (e *Emitter) Generate(s src.Snippet) {
	e.generated = append(e.generated, s)
	e.Use(s.Name)
}
