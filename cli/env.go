package cli

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// envAnnotation holds the name of the environment variable that a flag follows where it is not given.
const envAnnotation = "env"

// fromEnv has a flag follow an environment variable where it is not given.
func fromEnv(cmd *cobra.Command, flag, variable string) {
	f := cmd.Flags().Lookup(flag)
	f.Annotations = map[string][]string{envAnnotation: {variable}}
	f.Usage += " (environment: " + variable + ")"
}

// readEnv gives the flags that follow the environment their values. They do not count as given: a variable is for all
// models, and a flag that has no effect on one is refused.
func readEnv(cmd *cobra.Command) error {
	var err error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		for _, name := range f.Annotations[envAnnotation] {
			value := os.Getenv(name)
			if value == "" || f.Changed || err != nil {
				continue
			}
			if e := f.Value.Set(value); e != nil {
				err = usagef("%s=%s: %w", name, value, e)
			}
		}
	})
	return err
}
