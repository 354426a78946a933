package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "write the manual pages of all commands",
		Long: `Write a manual page for each command into a directory, and create the directory: pwc.1,
pwc-run.1, pwc-cache-ls.1, …. man -M finds the pages only in a directory of the name man1.`,
		Example: `  pwc man share/man/man1
  man -M share/man pwc-run`,
		Args: exactly(1, "one directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: "pwc " + version().Version, Manual: "pwc"} // doc takes the date from SOURCE_DATE_EPOCH
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return err
			}
			pages, err := filepath.Glob(filepath.Join(args[0], "pwc*.1"))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"dir": args[0], "pages": len(pages)})
			}
			fmt.Fprintf(a.out, "wrote %s to %s\n", plural(int64(len(pages)), "page"), args[0])
			return nil
		},
	}
}
