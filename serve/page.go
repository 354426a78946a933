package serve

import (
	_ "embed"
	"net/http"
)

//go:embed page.html
var pageHTML []byte

// page answers GET /: a conversation, and the state of the engine. The page loads nothing from
// other hosts.
func page(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	_, _ = w.Write(pageHTML) // a failed write means that the client has disconnected
}
