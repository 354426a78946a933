package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
)

// outputFile is the output of a command: the flags -o and --force.
type outputFile struct {
	path  string // empty: standard output
	force bool
}

func (o *outputFile) add(cmd *cobra.Command, what string) {
	cmd.Flags().StringVarP(&o.path, "output", "o", "", "`FILE` for "+what+"; - is standard output (default: standard output)")
	cmd.Flags().BoolVar(&o.force, "force", false, "overwrite an existing file")
}

// check returns an error if the directory of the file does not exist, if the file exists without --force, or if
// --force has no effect. Commands call it before they begin to work.
func (o *outputFile) check(cmd *cobra.Command) error {
	if o.path == standardStream {
		o.path = ""
	}
	if o.path == "" {
		return refuse(cmd, noEffect{true, "force", " without -o FILE"})
	}
	if err := canWrite(o.path); err != nil {
		return err
	}
	if _, err := os.Stat(o.path); !o.force && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s already exists; --force overwrites it", o.path)
	}
	return nil
}
