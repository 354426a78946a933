// Package src has the CUDA C that kernels share, in files by topic.
//
// A file is a sequence of snippets. The line before a snippet has its name and the snippets that it needs:
//
//	//@ gemm_tiled needs shared_address, cp_async
//
// A kernel uses snippets by name. Its source has these snippets and all that they need, in the order of
// the files. Comments before the first snippet of a file are not part of sources.
package src

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Snippet is a part of CUDA C sources.
type Snippet struct {
	Name  string
	Needs []string // the names of snippets that must come before it
	Text  string
}

//go:embed *.cu
var files embed.FS

// order is the files in the order in which their snippets appear in a source. It is never
// written.
var order = []string{
	"elements", "pdl", "index", "math", "integers", "philox", "reduce", "scan",
	"no_pdl", "evict_first", "mma", "gemv", "cluster", "split_k", "cp_async", "attention", "attention_mma",
	"gemm_tiled", "gemm_simt", "gemm_warp_pipeline", "gemm_block_pipeline", beforeGenerated, "gemm_grouped", "row_cluster",
}

// beforeGenerated is the first file whose snippets need generated snippets. A source has the generated
// ones before those of this file.
const beforeGenerated = "gemm_wgmma"

// library has the snippets of all files: those before the generated ones and those after them.
type library struct{ before, behind []Snippet }

var load = sync.OnceValues(func() (*library, error) {
	l := &library{}
	to := &l.before
	for _, name := range order {
		text, err := files.ReadFile(name + ".cu")
		if err != nil {
			return nil, fmt.Errorf("compile/cuda: %w", err)
		}
		list, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("compile/cuda: src/%s.cu: %w", name, err)
		}
		if name == beforeGenerated {
			to = &l.behind
		}
		*to = append(*to, list...)
	}
	return l, nil
})

// mark begins the line before a snippet.
const mark = "//@ "

// parse reads the snippets of a file.
func parse(text string) ([]Snippet, error) {
	var out []Snippet
	parts := strings.Split("\n"+text, "\n"+mark)
	for _, part := range parts[1:] {
		head, body, _ := strings.Cut(part, "\n")
		name, needs, _ := strings.Cut(head, " needs ")
		s := Snippet{Name: name, Text: strings.TrimRight(body, "\n") + "\n"}
		if needs != "" {
			s.Needs = strings.Split(needs, ", ")
		}
		if body = strings.TrimSpace(body); name == "" || strings.Contains(name, " ") || body == "" {
			return nil, fmt.Errorf("line %q: want %q or %q, and CUDA C after it", mark+head, mark+"NAME", mark+"NAME needs NAME, NAME")
		}
		out = append(out, s)
	}
	return out, nil
}

// Text returns the snippets that are used and those that they need, each once, and each followed
// by an empty line. Several generated snippets may have the same name, for kernels of a source that
// need different versions; equal ones appear once. Text fails if a used name is that of no snippet.
func Text(used map[string]bool, generated []Snippet) (string, error) {
	l, err := load()
	if err != nil {
		return "", err
	}
	var distinct []Snippet
	for _, g := range generated {
		if !slices.ContainsFunc(distinct, func(d Snippet) bool { return d.Text == g.Text }) {
			distinct = append(distinct, g)
		}
	}
	all := slices.Concat(l.before, distinct, l.behind)
	used = maps.Clone(used)
	for _, s := range slices.Backward(all) { // needs come first in the list
		if used[s.Name] {
			for _, n := range s.Needs {
				used[n] = true
			}
		}
	}
	if names := missing(used, all); len(names) > 0 {
		return "", fmt.Errorf("compile/cuda: a kernel uses snippets that are not in src: %q", names)
	}
	var b strings.Builder
	for _, s := range all {
		if used[s.Name] {
			b.WriteString(s.Text)
			b.WriteByte('\n')
		}
	}
	return b.String(), nil
}

// missing returns the names that no snippet has.
func missing(used map[string]bool, all []Snippet) []string {
	names := maps.Clone(used)
	for _, s := range all {
		delete(names, s.Name)
	}
	return slices.Sorted(maps.Keys(names))
}
