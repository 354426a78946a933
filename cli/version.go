package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"pwc/ir"
	"pwc/program"
)

type versionReport struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // commit of the source, with "+" if Go recorded modified files
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Language int    `json:"language"` // ir.LanguageVersion, of the IR's text
	Program  int    `json:"program"`  // program.FormatVersion, of the encoding of programs
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "print the versions of pwc, of the IR's text and of the program format",
		Example: "  pwc version --json",
		Args:    exactly(0, "no arguments"),
		RunE:    func(*cobra.Command, []string) error { return a.printVersions() },
	}
}

func (a *app) printVersions() error {
	v := version()
	if a.json {
		return a.printJSON(v)
	}
	t := table{head: []string{"pwc", v.Version}}
	if v.Revision != "" {
		t.add("revision", v.Revision)
	}
	t.add("go", v.Go)
	t.add("platform", v.Platform)
	t.add("language", fmt.Sprintf("pwc %d", v.Language))
	t.add("programs", fmt.Sprintf("format %d", v.Program))
	return t.write(a.out, "")
}

// commit is the revision of the source, set by the linker (make build). It is used if Go recorded no revision in the
// binary: with -buildvcs=false, and outside a checkout.
var commit string

func version() versionReport {
	v := versionReport{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Language: ir.LanguageVersion, Program: program.FormatVersion}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Revision = s.Value + v.Revision
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Revision += "+"
		}
	}
	if v.Revision == "" {
		v.Revision = commit
	}
	return v
}
