//go:build nocuda

package cli

import (
	"errors"

	"pwc/ir"
)

// gpus returns none: the program was built without them.
func gpus() []platform { return nil }

// openNVTX fails: NVTX is opened as the other libraries of CUDA are.
func openNVTX() (marker, error) { return nil, errors.New("this pwc was built with -tags nocuda") }

// gpuTargets returns none.
func gpuTargets() (targets []string, driver string) { return nil, "" }

// collectiveKernels returns none: they are of GPUs.
func collectiveKernels(*ir.Module) []Kernel { return nil }
