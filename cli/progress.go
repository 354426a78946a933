package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"pwc/internal/termsafe"
	"pwc/piecewise"
)

// progress is a bar on a terminal, with the current work and piece, the part that is done, and the
// elapsed and remaining time. It draws nothing if w is not a terminal. As the observer of a backend it
// counts captures.
type progress struct {
	w     io.Writer
	mu    sync.Mutex
	bar   *progressbar.ProgressBar
	what  string
	total int // graphs to capture
	done  int
}

// set moves the bar.
func (p *progress) set(done, total int, piece string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if drawWidth(p.w) == 0 || total == 0 {
		return
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(p.w), progressbar.OptionSetDescription(p.what),
			progressbar.OptionShowCount(), progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(true),
			progressbar.OptionSetWidth(10), progressbar.OptionThrottle(50*time.Millisecond))
	}
	p.bar.Describe(p.describe(piece))
	// A bar that cannot be drawn is no reason to stop.
	_ = p.bar.Set(done)
}

// describe returns the bar's description: the work and the piece, cut to the room that the bar leaves.
func (p *progress) describe(piece string) string {
	const bar = 48 // columns of percent, bar, count and times
	name := termsafe.Line(p.what+" "+piece, termsafe.MaxLine)
	if room := drawWidth(p.w) - bar; len([]rune(name)) > room {
		name = string([]rune(name)[:max(room, len(p.what))])
	}
	return name
}

// end removes the bar.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Finish()
		p.bar = nil
	}
}

// capturing makes the bar count captured graphs from now on.
func (p *progress) capturing(total int64) { p.what, p.total, p.done = "capturing", int(total), 0 }

// Captured moves the bar.
func (p *progress) Captured(fn string, size int64, graphs int, _ time.Duration) {
	p.done += graphs
	p.set(p.done, p.total, fmt.Sprintf("@%s at %d", fn, size))
}

// Ran does nothing.
func (p *progress) Ran(string, int64, int64, piecewise.RunMode) {}

// statusLine is a line on a terminal with the current work. It draws nothing if w is not a terminal.
type statusLine struct {
	w     io.Writer
	drawn bool
}

// say replaces the text of the line.
func (l *statusLine) say(format string, args ...any) {
	if width := drawWidth(l.w); width > 0 {
		fmt.Fprintf(l.w, "\r\x1b[K%.*s", width-1, fmt.Sprintf(format, args...))
		l.drawn = true
	}
}

// clear removes the line.
func (l *statusLine) clear() {
	if l.drawn {
		fmt.Fprint(l.w, "\r\x1b[K")
		l.drawn = false
	}
}
