package cli

import (
	"embed"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// examples are the modules that pwc example writes.
//
//go:embed examples/*.ir
var examples embed.FS

// exampleTexts has the name and the description of each example. The first is the default.
var exampleTexts = [][2]string{
	{"nineteen", "pointwise pieces around the demonstration op silly::attention: f(x) = 9x + 19"},
	{"layer", "one layer of attention over a paged KV cache, with weights and a state"},
}

func (a *app) exampleCommand() *cobra.Command {
	var out outputFile
	var list strings.Builder
	for _, e := range exampleTexts {
		fmt.Fprintf(&list, "  %-10s %s\n", e[0], e[1])
	}
	cmd := &cobra.Command{
		Use:   "example [NAME]",
		Short: "write a small module to start from",
		Long:  "Write a small module to start from:\n\n" + list.String() + "\nWithout a name it is nineteen.",
		Example: `  pwc example -o toy.ir && pwc run toy.ir --rows 2
  pwc example layer -o layer.ir && pwc run layer.ir --rows 4 --weights dummy --check`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("takes one name, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name := exampleTexts[0][0]
			if len(args) == 1 {
				name = args[0]
			}
			if err := out.check(cmd); err != nil {
				return err
			}
			return a.runExample(name, out.path)
		},
	}
	out.add(cmd, "the module")
	return cmd
}

func (a *app) runExample(name, out string) error {
	text, err := examples.ReadFile("examples/" + name + ".ir")
	if err != nil {
		var names []string
		for _, e := range exampleTexts {
			names = append(names, e[0])
		}
		return usagef("unknown example %q; the examples are %s", name, strings.Join(names, " and "))
	}
	if out == "" {
		if a.json {
			return a.printJSON(map[string]string{"name": name, "text": string(text)})
		}
		_, err := a.out.Write(text)
		return err
	}
	if err := writeFile(out, text); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]string{"name": name, "output": out})
	}
	weights := ""
	if strings.Contains(string(text), "\n  weight ") {
		weights = " --weights dummy"
	}
	fmt.Fprintf(a.out, "wrote %s\n\nNext:\n  pwc check %[1]s\n  pwc split %[1]s\n  pwc compile %[1]s\n  pwc run %[1]s --rows 2%[2]s\n", out, weights)
	return nil
}
