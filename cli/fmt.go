package cli

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"pwc/ir"
)

func (a *app) fmtCommand() *cobra.Command {
	var write, check bool
	cmd := &cobra.Command{
		Use:   "fmt FILE…",
		Short: "format modules, with their comments",
		Long: `Print modules in their canonical form. Comments keep their place. The
file "-" is standard input.`,
		Example: `  pwc fmt model.ir                   # print it formatted
  pwc fmt -w *.ir                    # format files in place
  pwc fmt --check *.ir               # name the files that are not formatted; exit code 1 if there are any`,
		Args: atLeastOne("modules"),
		RunE: func(_ *cobra.Command, args []string) error {
			if write && check {
				return usagef("-w and --check exclude each other")
			}
			return a.runFmt(args, write, check)
		},
	}
	cmd.Flags().BoolVarP(&write, "write", "w", false, "write the files instead of printing them")
	cmd.Flags().BoolVar(&check, "check", false, "only name the files that are not formatted")
	return cmd
}

type fmtReport struct {
	Files []fmtFile `json:"files"`
}

type fmtFile struct {
	File      string `json:"file"`
	Formatted bool   `json:"formatted"`      // the file was formatted before
	Text      string `json:"text,omitempty"` // the formatted text, with neither -w nor --check
	Error     string `json:"error,omitempty"`
}

func (a *app) runFmt(files []string, write, check bool) error {
	if write && slices.Contains(files, standardStream) {
		return usagef("-w: standard input cannot be written in place")
	}
	var r fmtReport
	var failed error
	for _, name := range files {
		text, formatted, err := a.formatFile(name, write)
		e := fmtFile{File: name, Formatted: formatted}
		switch {
		case err != nil:
			e.Error, failed = err.Error(), errReported
			if !a.json {
				a.complain(err)
			}
		case check:
			if !formatted {
				failed = errReported
			}
			if !formatted && !a.json {
				fmt.Fprintln(a.out, name)
			}
		case !write:
			e.Text = string(text)
			if !a.json {
				if _, err := a.out.Write(text); err != nil {
					return err
				}
			}
		}
		r.Files = append(r.Files, e)
	}
	return a.finish(r, failed)
}

// finish ends a command that continues after the error of a file: it prints the report with --json,
// and returns reported, which is errReported or errWrongCall if a file failed.
func (a *app) finish(report any, reported error) error {
	if a.json {
		if err := a.printJSON(report); err != nil {
			return err
		}
	}
	return reported
}

// complain prints the error of a file. The command continues with the next file.
func (a *app) complain(err error) {
	text := err.Error()
	if !startsWithPosition(text) {
		text = "pwc: " + text
	}
	fmt.Fprintln(a.err, text)
}

func (a *app) formatFile(name string, write bool) (text []byte, formatted bool, err error) {
	var src []byte
	if name == standardStream {
		src, err = readText("<standard input>", a.in)
	} else {
		src, err = readModule(name)
	}
	if err != nil {
		return nil, false, err
	}
	shown := name
	if name == standardStream {
		shown = "<standard input>"
	}
	if text, err = ir.Format(shown, src); err != nil {
		return nil, false, err
	}
	formatted = bytes.Equal(text, src)
	if write && !formatted {
		err = writeFile(name, text)
	}
	return text, formatted, err
}
