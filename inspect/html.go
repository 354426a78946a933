package inspect

import (
	"crypto/sha256"
	_ "embed" // the page
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
)

//go:embed page.html
var page string

//go:embed page.css
var style string

//go:embed page.js
var script string

// WriteHTML writes the report as one file for a browser. The file loads nothing: its content
// security policy allows only its own script and style. Names in the report are untrusted, so
// they are data for the script, escaped by html/template, and become text nodes and attributes.
func WriteHTML(w io.Writer, r *Report) error {
	if w == nil || r == nil {
		return errors.New("inspect: WriteHTML needs a writer and a report")
	}
	t, err := template.New("report").Parse(page)
	if err != nil {
		return err
	}
	return t.Execute(w, struct {
		Report *Report
		Style  template.CSS
		Script template.JS
		Policy string
	}{r, template.CSS(style), template.JS(script), policy()})
}

// policy is the content security policy. It allows the page's script and style by their hashes.
func policy() string {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; base-uri 'none'; form-action 'none'", hash(script), hash(style))
}
