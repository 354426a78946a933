//go:build nocuda

package cli

import (
	"errors"

	"pwc/ir"
)

// gpus returns nil: the program was built with -tags nocuda.
func gpus() []platform { return nil }

// openNVTX returns an error: a program built with -tags nocuda opens no libraries.
func openNVTX() (marker, error) { return nil, errors.New("this pwc was built with -tags nocuda") }

// gpuTargets returns no targets and no driver.
func gpuTargets() (targets []string, driver string) { return nil, "" }

// collectiveKernels returns nil: only GPUs need kernels.
func collectiveKernels(*ir.Module) []Kernel { return nil }
