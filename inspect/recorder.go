package inspect

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/pieces"
	"pwc/program"
)

// Recorder is a compiler that keeps the text of each piece after each pass, and the sources of
// kernels. It replaces the pipeline for one build without a cache, because a build does not
// compile cached pieces.
type Recorder struct {
	pipeline pieces.Pipeline

	mu      sync.Mutex
	dumps   map[[sha256.Size]byte][]dumped
	sources map[[sha256.Size]byte]string // by machine code
}

// dumped is the text of a piece after a pass.
type dumped struct{ pass, text string }

// NewRecorder returns a recorder for a pipeline. It does not call the pipeline's own Dump.
func NewRecorder(p pieces.Pipeline) *Recorder {
	return &Recorder{pipeline: p, dumps: map[[sha256.Size]byte][]dumped{}, sources: map[[sha256.Size]byte]string{}}
}

// Target implements pieces.Compiler.
func (r *Recorder) Target() string { return r.pipeline.Target() }

// Fingerprint implements pieces.Compiler.
func (r *Recorder) Fingerprint() string { return r.pipeline.Fingerprint() }

// Version implements pieces.Compiler.
func (r *Recorder) Version() string { return r.pipeline.Version() }

// Compile implements pieces.Compiler.
func (r *Recorder) Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error) {
	if piece == nil {
		return nil, ir.ErrNoModule
	}
	p := r.pipeline
	texts := []dumped{{"piece", ir.Print(piece)}}
	p.Options.Dump = func(pass, text string) { texts = append(texts, dumped{pass, text}) }
	out, err := p.Compile(ctx, piece, ranges)
	if err != nil {
		return nil, err
	}
	key, err := keyOf(piece, out)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dumps[key] = texts
	return out, nil
}

// Source records the source of machine code. Wrappers of CUDA C compilers call it.
func (r *Recorder) Source(text string, code []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources[sha256.Sum256(code)] = text
}

// keyOf identifies a program by its bytes and its piece. The same piece for another range, and
// another piece with the same program, have other passes.
func keyOf(piece *ir.Module, p *program.Program) (key [sha256.Size]byte, err error) {
	code, err := p.Encode()
	if err != nil {
		return key, err
	}
	return sha256.Sum256(slices.Concat([]byte(ir.Print(piece)), code)), nil
}

// passes returns the changes of each pass to a piece; an empty list if the piece was not recorded.
func (r *Recorder) passes(piece *ir.Module, p *program.Program) []Pass {
	key, err := keyOf(piece, p)
	if err != nil {
		return []Pass{} // the build would have refused it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	texts := r.dumps[key]
	out := []Pass{}
	for i, t := range texts {
		pass := Pass{Name: t.pass}
		switch {
		case i == 0:
			continue // Piece.Text
		case t.text != texts[i-1].text:
			pass.Changed, pass.Lines = true, diff(texts[i-1].text, t.text)
		}
		out = append(out, pass)
	}
	return out
}

func (r *Recorder) source(code []byte) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sources[sha256.Sum256(code)]
}
