//go:build nocuda

package cli

import (
	"pwc/attention"
	"pwc/runtime/device"
)

func openAttentionOnGPU(s *Site) (device.Op, error) { return nil, noImplementation(attention.Name, s) }
