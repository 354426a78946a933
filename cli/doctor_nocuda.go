//go:build nocuda

package cli

import "context"

// checkGPUs reports that a build with -tags nocuda has no CUDA support.
func (a *app) checkGPUs(context.Context) ([]doctorCheck, *doctorTopology) {
	return []doctorCheck{{Name: "cuda", State: "missing", Detail: "this pwc is built without it (-tags nocuda)", Advice: "models compile and run on the host"}}, nil
}
