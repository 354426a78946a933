package piecewise

import (
	"fmt"
	"slices"
)

// Mode says what is captured into graphs. The names are vLLM's
// (CUDAGraphMode in vllm/config/compilation.py).
type Mode uint8

const (
	// None captures nothing: every run is eager.
	None Mode = iota
	// Piecewise captures each piece between splitting ops; the splitting ops
	// run eagerly between the graphs.
	Piecewise
	// Full captures a whole function, splitting ops included, into one graph for
	// each size. Every op must be capturable.
	Full
	// FullDecodeOnly captures full graphs as Full does, for the sizes that
	// CaptureOptions.DecodeRows selects, and replays them only for uniform (decode) batches;
	// other batches run eagerly. Every batch of a function without a size symbol is uniform.
	FullDecodeOnly
	// FullAndPiecewise captures the pieces for every size, and full graphs for the sizes that
	// CaptureOptions.DecodeRows selects. Uniform batches of these sizes replay the full graph,
	// other batches up to the largest size the pieces.
	FullAndPiecewise
)

var modeNames = [...]string{"none", "piecewise", "full", "full-decode-only", "full-and-piecewise"}

// String returns the mode's name on the command line.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// Modes returns the names that [ParseMode] takes.
func Modes() []string { return slices.Clone(modeNames[:]) }

// ParseMode returns the mode of a name; the error lists the names.
func ParseMode(name string) (Mode, error) {
	for i, s := range modeNames {
		if s == name {
			return Mode(i), nil
		}
	}
	return None, fmt.Errorf("unknown mode %q: one of %v", name, modeNames)
}

// pieces reports whether the mode captures pieces.
func (m Mode) pieces() bool { return m == Piecewise || m == FullAndPiecewise }

// full reports whether the mode captures full graphs.
func (m Mode) full() bool { return m == Full || m == FullDecodeOnly || m == FullAndPiecewise }

// RunMode is how a run was issued.
type RunMode uint8

const (
	RunEager     RunMode = iota // without graphs: artifacts and calls are launched one by one
	RunPiecewise                // the graphs of the pieces, with the splitting ops launched between them
	RunFull                     // one graph of the function
)

var runModeNames = [...]string{"eager", "piecewise", "full"}

// String returns "eager", "piecewise" or "full".
func (m RunMode) String() string {
	if int(m) < len(runModeNames) {
		return runModeNames[m]
	}
	return fmt.Sprintf("RunMode(%d)", uint8(m))
}

// MarshalText returns the mode's name, for JSON.
func (m RunMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// DefaultCaptureSizes returns vLLM's default list of sizes for a
// max_num_batched_tokens of limit and a max_num_seqs of at least 256
// (VllmConfig._set_cudagraph_sizes in vllm/config/vllm.py): 1, 2, 4, then every 8th below 256, every 16th from 256
// on, up to min(512, limit). The list ends with min(512, limit), which vLLM omits
// if it is off these strides.
func DefaultCaptureSizes(limit int64) []int64 {
	top := min(512, limit)
	var out []int64
	for _, n := range []int64{1, 2, 4} {
		if n <= top {
			out = append(out, n)
		}
	}
	for n := int64(8); n < 256 && n <= top; n += 8 {
		out = append(out, n)
	}
	for n := int64(256); n <= top; n += 16 {
		out = append(out, n)
	}
	if len(out) > 0 && out[len(out)-1] < top {
		out = append(out, top)
	}
	return out
}
