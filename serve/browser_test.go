package serve

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// The page shows a conversation and the state of the engine, under its own Content-Security-Policy.
func TestPageInBrowser(t *testing.T) {
	s, h := newServer(t, nil)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Navigate(h.URL+"/")); err != nil {
		if os.Getenv("PWC_REQUIRE_BROWSER") != "1" {
			t.Skipf("no browser: %v", err)
		}
		t.Fatal(err)
	}
	text := func(expression string) string {
		t.Helper()
		v, err := chromedp.Run(ctx, chromedp.Evaluate[string](expression))
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		return v
	}
	await(t, "the first state", func() bool { return text(`document.getElementById("model").textContent`) == "tiny" })
	text(`document.getElementById("temperature").value = 0; document.getElementById("tokens").value = 12; document.getElementById("text").value = "hi"; document.getElementById("form").requestSubmit(); ""`)
	await(t, "the answer", func() bool { return text(`document.getElementById("send").disabled ? "" : "done"`) == "done" })
	want := alone(t, s, "user:hi;", 12)
	if got := text(`[...document.querySelectorAll(".turn.assistant")].at(-1).textContent`); got != want {
		t.Errorf("the page shows %q, want %q", got, want)
	}
	await(t, "the count of requests", func() bool { return strings.TrimSpace(text(`document.getElementById("finished").textContent`)) == "2" })
	if rows := text(`document.getElementById("steps").children.length + ""`); rows == "0" {
		t.Error("the page shows no steps")
	}
	if path := os.Getenv("PWC_SCREENSHOT"); path != "" {
		shot, err := chromedp.Run(ctx, chromedp.FullScreenshot(90))
		must(t, err)
		must(t, os.WriteFile(path, shot, 0o644))
	}
}
