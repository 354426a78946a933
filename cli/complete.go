package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/frontend/hf"
	"pwc/piecewise"
)

// completions registers the values that a shell completes, for flags of a command and its subcommands.
func (a *app) completions(cmd *cobra.Command) {
	var passes []string
	for _, p := range compile.Passes() {
		if !p.Required && p.Name != "user" {
			passes = append(passes, p.Name)
		}
	}
	var targets []string
	for _, p := range platforms() {
		targets = append(targets, p.complete...)
	}
	values := map[string][]string{
		"dtype": {"auto", "f32", "f16", "bf16"}, "disable-pass": passes, "mode": piecewise.Modes(), "target": targets, "capture-sizes": {"default", "none"}, "matmul-precision": loop.Precisions(),
		"architecture": hf.Builtin().Architectures(), "weights": {"dummy"},
	}
	for name, list := range values {
		flag := cmd.Flags().Lookup(name)
		if flag == nil {
			continue
		}
		if name == "mode" && strings.Contains(flag.Usage, autoMode+",") {
			list = append([]string{autoMode}, list...)
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		if name == "weights" {
			directive = cobra.ShellCompDirectiveDefault
		}
		complete := func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return lastOfList(list, typed), directive
		}
		_ = cmd.RegisterFlagCompletionFunc(name, complete) // fails only for an unknown flag or a second registration
	}
	for _, c := range cmd.Commands() {
		a.completions(c)
	}
}

// lastOfList completes the last element of a comma-separated list.
func lastOfList(values []string, typed string) (out []cobra.Completion) {
	before := typed[:strings.LastIndexByte(typed, ',')+1]
	given := strings.Split(before, ",")
	for _, v := range values {
		if strings.HasPrefix(before+v, typed) && !slices.Contains(given, v) {
			out = append(out, before+v)
		}
	}
	return out
}

// completeModels completes the names of cached models, for arguments with an index of first and above.
func (a *app) completeModels(first int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		if len(args) < first {
			return nil, cobra.ShellCompDirectiveDefault
		}
		s, err := a.openStore()
		if err != nil || s == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list, err := s.Modules(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, m := range list {
			if !slices.Contains(names, m.Name) {
				names = append(names, m.Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
