package inspect

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser opens a headless browser, and collects what its console says. Without a browser the test
// is skipped, unless PWC_REQUIRE_BROWSER=1.
func browser(t *testing.T) (context.Context, *console) {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	said := &console{}
	if err := chromedp.Listen(ctx, said.hear); err != nil {
		if os.Getenv("PWC_REQUIRE_BROWSER") == "1" {
			t.Fatal(err)
		}
		t.Skipf("no browser: %v", err)
	}
	_, err := chromedp.Run(ctx, func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, log.Enable, cdp.Empty{})
		return chromedp.Void{}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return ctx, said
}

// console collects the messages of a page's console.
type console struct {
	mu    sync.Mutex
	lines []string
}

func (c *console) hear(event any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		for _, a := range e.Args {
			c.lines = append(c.lines, string(a.Value))
		}
	case *runtime.EventExceptionThrown:
		c.lines = append(c.lines, e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		c.lines = append(c.lines, e.Entry.Text)
	}
}

func (c *console) text() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}

// evaluate returns the value of an expression in the page.
func evaluate[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// The page draws a node for each piece, shows a piece after a click on it, and writes nothing to the
// console: no error, no violation of its policy. A hostile name does not run as a script.
func TestInBrowser(t *testing.T) {
	ctx, said := browser(t)
	r := report(t)
	var page bytes.Buffer
	if err := WriteHTML(&page, r); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.Navigate("file://"+path), chromedp.WaitReady(chromedp.CSS("body[data-drawn]"))); err != nil {
		t.Fatal(err)
	}
	count := func(selector string) int {
		return evaluate[int](t, ctx, `document.querySelectorAll("`+selector+`").length`)
	}
	if nodes, calls := count(".node.piece"), count(".node.call"); nodes != len(r.Pieces) || calls != 1 {
		t.Errorf("%d nodes of pieces and %d of ops, want %d and 1", nodes, calls, len(r.Pieces))
	}
	if blocks, passes := count(".memory .block"), count(".pass"); blocks == 0 || passes == 0 {
		t.Errorf("%d blocks of memory, %d passes with differences, want some of each", blocks, passes)
	}
	last := r.Pieces[len(r.Pieces)-1]
	text := evaluate[string](t, ctx, `[...document.querySelectorAll(".node.piece")].at(-1).dispatchEvent(new MouseEvent("click", {bubbles: true})); document.querySelector(".ir").textContent`)
	if title := evaluate[string](t, ctx, `document.querySelector("#detail h2").textContent`); text != last.Text || title != "Piece "+last.Hash {
		t.Errorf("a click on the last piece shows %q and\n%s", title, text)
	}
	before := evaluate[string](t, ctx, `document.querySelector("#detail p").textContent`)
	after := evaluate[string](t, ctx, `const s = document.getElementById("size"); s.value = "0"; s.dispatchEvent(new Event("change")); document.querySelector("#detail p").textContent`)
	if before == after {
		t.Errorf("another number of rows shows the same: %s", after)
	}
	if title := evaluate[string](t, ctx, "document.title"); !strings.HasPrefix(title, hostile) {
		t.Errorf("the title is %q: a name ran", title)
	}
	// What the page said until here comes before this.
	evaluate[bool](t, ctx, `console.log("end"); true`)
	for range 100 {
		if lines := said.text(); slices.Contains(lines, `"end"`) {
			if len(lines) > 1 {
				t.Errorf("the console says %q", lines)
			}
			return
		}
		evaluate[bool](t, ctx, "true")
	}
	t.Error("nothing of the console is heard")
}
