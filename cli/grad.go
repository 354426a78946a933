package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pwc/autodiff"
	"pwc/ir"
)

func (a *app) gradCommand() *cobra.Command {
	var f modelFlags
	var fn string
	var out outputFile
	var wrt []string
	cmd := &cobra.Command{
		Use:   "grad FILE",
		Short: "write the gradient of a function as a module",
		Long: `Differentiate a function and write a module with @F.gradient. It takes the
parameters of @F and a cotangent grad_outK for each float result K of @F, and returns
grad_in0, grad_in1, …: the gradients of the float parameters in their order, or of
the parameters, weights and states that --wrt names.

fmt, check, compile and run accept the module.`,
		Example: `  pwc grad model.ir --func loss -o grad.ir                   # by all float parameters
  pwc grad model.ir --func loss --wrt x,@w -o two.ir         # by parameter x and weight w
  pwc run grad.ir --in case.safetensors --against grad_in0   # compare a gradient with a tensor`,
		Args: exactly(1, "one module or checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(cmd); err != nil {
				return err
			}
			return a.runGrad(args[0], fn, wrt, out.path, &f)
		},
	}
	f.addImport(cmd, "auto")
	f.addMax(cmd)
	cmd.Flags().StringVar(&fn, "func", "", "`FUNCTION` to differentiate (default: the only one)")
	cmd.Flags().StringSliceVar(&wrt, "wrt", nil, "`NAMES` to differentiate by: x or %x, or @w for a weight or state (default: the float parameters)")
	out.add(cmd, "the module")
	return cmd
}

type gradReport struct {
	Function   string      `json:"function"` // of the module that is written
	Nodes      int         `json:"nodes"`
	Parameters []gradValue `json:"parameters"`
	Gradients  []gradValue `json:"gradients"`
	Output     string      `json:"output,omitempty"`
	Text       string      `json:"text,omitempty"` // of the module, without -o
}

type gradValue struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

func (a *app) runGrad(path, fn string, wrt []string, out string, f *modelFlags) error {
	m, funcs, err := a.openFuncs(path, fn, f)
	if err != nil {
		return err
	}
	if len(funcs) != 1 {
		var names []string
		for _, f := range funcs {
			names = append(names, "@"+f.Name)
		}
		return usagef("the module has the functions %s: choose one with --func", strings.Join(names, ", "))
	}
	g, err := autodiff.Joint(m.module, funcs[0].Name, wrt, autodiff.Options{})
	if err != nil {
		return err
	}
	made := *m
	made.module = g
	text := ir.Print(g)
	if m.weights != "" {
		text = moduleText(&made, out)
	}
	if out == "" && !a.json {
		_, err := fmt.Fprint(a.out, text)
		return err
	}
	gf := g.Funcs[0]
	r := gradReport{Function: gf.Name, Nodes: len(gf.Nodes), Output: filepath.ToSlash(out), Gradients: []gradValue{}}
	for _, p := range gf.Params {
		r.Parameters = append(r.Parameters, gradValue{gf.Values[p].Name, gf.Type(p).String()})
	}
	for i, t := range gf.ResultTypes {
		r.Gradients = append(r.Gradients, gradValue{fmt.Sprintf("grad_in%d", i), t.String()})
	}
	if out == "" {
		r.Text = text
	} else if err := writeFile(out, []byte(text)); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.out, "wrote %s: @%s, %s, %s\n", out, gf.Name, plural(int64(r.Nodes), "node"), plural(int64(len(r.Gradients)), "gradient"))
	return nil
}
