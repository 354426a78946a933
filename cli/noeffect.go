package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// noEffect names flags that have no effect in a call.
type noEffect struct {
	when  bool   // whether they have no effect in this call
	flags string // names, separated by spaces
	why   string // the end of the error, after "no effect": a reason, or what gives them an effect
}

// refuse returns a usage error for the first row that applies and has a flag that was given.
func refuse(cmd *cobra.Command, rows ...noEffect) error { return refuseOf(cmd.Flags(), rows...) }

// refuseOf is refuse for the flags of a command.
func refuseOf(flags *pflag.FlagSet, rows ...noEffect) error {
	for _, r := range rows {
		if given := changedOf(flags, strings.Fields(r.flags)); r.when && len(given) > 0 {
			return usagef("--%s %s no effect%s", strings.Join(given, " and --"), have(len(given)), r.why)
		}
	}
	return nil
}

// have returns the verb for n flags.
func have(n int) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

// givenExcept returns the flags that were given, except one, as a row of noEffect has them.
func givenExcept(cmd *cobra.Command, name string) string {
	var given []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != name {
			given = append(given, f.Name)
		}
	})
	return strings.Join(given, " ")
}
