package cli

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// envAnnotation is the annotation of a flag with the environment variable that sets the flag's default.
const envAnnotation = "env"

// fromEnv makes an environment variable the default of a flag.
func fromEnv(cmd *cobra.Command, flag, variable string) {
	f := cmd.Flags().Lookup(flag)
	f.Annotations = map[string][]string{envAnnotation: {variable}}
	f.Usage += " (environment: " + variable + ")"
}

// readEnv sets the flags of fromEnv that are not given. They do not count as given, because a given flag that does not
// apply to the model is an error, and a variable is for all models.
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
