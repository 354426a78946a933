package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pwc/ir"
	"pwc/piecewise"
	"pwc/split"
)

func (a *app) splitCommand() *cobra.Command {
	var f modelFlags
	var on []string
	var fn, mode string
	var long, dot bool
	cmd := &cobra.Command{
		Use:   "split FILE",
		Short: "print the pieces of a model",
		Long: `Cut the functions of a model at its splitting ops and print the pieces in
program order. Consecutive splitting ops share a piece; pieces between them can
be captured into graphs. Pieces with the same hash are compiled once.

Without --split-on the cuts are at the ops that the module declares as split; an
empty list cuts nowhere. ns::op.default matches an op that is declared as ns::op.

The column graph has the graphs that contain a piece in --mode: own (a graph of the piece),
whole (the graph of the whole function), both, or none. If compile and run refuse the mode,
the reason follows.`,
		Example: `  pwc split model.ir
  pwc split models/llama --split-on attention::paged,linear
  pwc split models/llama --func logits --json
  pwc split model.ir --dot > pieces.dot`,
		Args: exactly(1, "one module or checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := refuse(cmd, noEffect{dot, "long mode json", " with --dot, which only prints the graph of the pieces"},
				noEffect{a.json, "long", " with --json"}); err != nil {
				return err
			}
			if !cmd.Flags().Changed("split-on") {
				on = nil
			} else if on == nil {
				on = []string{}
			}
			return a.runSplit(args[0], on, fn, mode, splitOutput{long, dot}, &f)
		},
	}
	f.addImport(cmd, "auto")
	f.addMax(cmd)
	cmd.Flags().StringSliceVar(&on, "split-on", nil, "`OP`s to cut at: ns::op, ns::op.overload, or an op of the table")
	cmd.Flags().StringVar(&fn, "func", "", "restrict to this `FUNCTION`")
	addMode(cmd, &mode)
	cmd.Flags().BoolVar(&dot, "dot", false, "print the pieces as a graph in the DOT language of Graphviz; identical pieces are one node")
	cmd.Flags().BoolVar(&long, "long", false, "print the inputs and results of each piece, and the lifetimes of memory between pieces")
	return cmd
}

// splitOutput has the flags for other outputs than the table.
type splitOutput struct{ long, dot bool }

type splitReport struct {
	Items      []splitItem `json:"items"`
	Pieces     int         `json:"pieces"`
	Capturable int         `json:"capturable"`
	Distinct   int         `json:"distinct"`          // number of different pieces, by hash
	Refused    string      `json:"refused,omitempty"` // why compile and run refuse the mode
}

type splitItem struct {
	Func      string   `json:"func"`
	ID        int      `json:"id"`
	Splitting bool     `json:"splitting"`
	Nodes     []string `json:"nodes"`
	Hashes    []string `json:"hashes,omitempty"` // of its compiled pieces, shortened
	Graph     string   `json:"graph"`            // the graphs that contain it: own, whole, both, none
}

func (a *app) runSplit(path string, on []string, name, modeName string, show splitOutput, f *modelFlags) error {
	mode, err := parseMode(modeName)
	if err != nil {
		return err
	}
	m, funcs, err := a.openFuncs(path, name, f)
	if err != nil {
		return err
	}
	r := splitReport{Items: []splitItem{}}
	graphs, refused := a.graphsOf(m.module, on, mode)
	if refused != nil {
		r.Refused = refused.Error()
	}
	distinct := map[string]bool{}
	var text strings.Builder
	for i, fn := range funcs {
		p, err := split.Split(m.module, fn, on)
		if err != nil {
			return explainOptions(err)
		}
		c := p.Counts()
		r.Pieces += c.Piecewise
		r.Capturable += c.Capturable
		here := map[string]bool{}
		t := table{head: []string{"id", "kind", "graph", ">nodes", "hash", "ops"}, width: terminalWidth(a.out)}
		for _, s := range p.Summary() {
			graph := graphs[fn.Name].of(s.Splitting)
			r.Items = append(r.Items, splitItem{Func: fn.Name, ID: s.ID, Splitting: s.Splitting, Nodes: s.Nodes, Hashes: s.Hashes, Graph: graph})
			for _, h := range s.Hashes {
				distinct[h], here[h] = true, true
			}
			kind := "piece"
			if s.Splitting {
				kind = "splitting"
			}
			t.add(fmt.Sprint(s.ID), kind, graph, fmt.Sprint(len(s.Nodes)), strings.Join(s.Hashes, " "), runs(s.Nodes))
		}
		if i > 0 {
			text.WriteByte('\n')
		}
		if show.dot {
			writeDOT(&text, p)
			continue
		}
		if show.long {
			text.WriteString(p.String())
			continue
		}
		fmt.Fprintf(&text, "@%s: %s, %d capturable, %d distinct\n", fn.Name, plural(int64(c.Piecewise), "piece"), c.Capturable, len(here))
		if err := t.write(&text, "  "); err != nil {
			return err
		}
	}
	r.Distinct = len(distinct)
	if a.json {
		return a.printJSON(r)
	}
	if refused != nil && !show.dot { // the text after a graph would not be DOT
		fmt.Fprintf(&text, "\nmode %s is refused: %s\n", mode, r.Refused)
	}
	_, err = fmt.Fprint(a.out, text.String())
	return err
}

// writeDOT writes the pieces of a function as a graph. Identical pieces are one node, with their
// number; an edge has the number of times that one piece follows another.
func writeDOT(w *strings.Builder, p *split.Plan) {
	id := func(u *split.Unit) string {
		if u.Piece == nil {
			return strconv.Quote(p.Func.Nodes[u.Call].Name())
		}
		return strconv.Quote(fmt.Sprintf("%x", u.Piece.Hash)[:12])
	}
	count, follows := map[string]int{}, map[[2]string]int{}
	var nodes []string
	var edges [][2]string
	for i, u := range p.Units {
		name := id(u)
		if count[name]++; count[name] == 1 {
			nodes = append(nodes, name)
		}
		if i > 0 {
			e := [2]string{id(p.Units[i-1]), name}
			if follows[e]++; follows[e] == 1 {
				edges = append(edges, e)
			}
		}
	}
	fmt.Fprintf(w, "digraph %s {\n  node [shape=box];\n", strconv.Quote("@"+p.Func.Name))
	for _, name := range nodes {
		fmt.Fprintf(w, "  %s [xlabel=\"×%d\"];\n", name, count[name])
	}
	for _, e := range edges {
		fmt.Fprintf(w, "  %s -> %s [label=\"×%d\"];\n", e[0], e[1], follows[e])
	}
	w.WriteString("}\n")
}

// heldBy has the graphs that are captured of a function: of its pieces, of the whole.
type heldBy struct{ pieces, whole bool }

// of returns the graphs that contain an item, as in splitItem.Graph.
func (h heldBy) of(splitting bool) string {
	switch own := h.pieces && !splitting; {
	case own && h.whole:
		return "both"
	case own:
		return "own"
	case h.whole:
		return "whole"
	}
	return "none"
}

// graphsOf returns the graphs that piecewise.New would capture of each function in a mode, and its
// error if it refuses the mode.
func (a *app) graphsOf(m *ir.Module, on []string, mode piecewise.Mode) (map[string]heldBy, error) {
	reports, err := a.checkModule(m, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode}, Compile: piecewise.CompileOptions{SplitOn: on}})
	out := map[string]heldBy{}
	for _, r := range reports {
		out[r.Name] = heldBy{r.Pieces, r.Full > 0}
	}
	return out, err
}

// runs joins names, and counts repetitions: "add ×3, mul".
func runs(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		j := i
		for j < len(names) && names[j] == names[i] {
			j++
		}
		if j-i > 1 {
			out = append(out, fmt.Sprintf("%s ×%d", names[i], j-i))
		} else {
			out = append(out, names[i])
		}
		i = j
	}
	return strings.Join(out, ", ")
}
