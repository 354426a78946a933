package gpuarch

import "testing"

// TestSharedBytes holds the table to bytes that cuDeviceGetAttribute gives for the shared memory
// of a block with the opt-in: of an A100, RTX A6000, L40, H100, B200 and RTX 5090. An unknown
// architecture (999) has the fewest of them.
func TestSharedBytes(t *testing.T) {
	for arch, want := range map[int]int{80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376, 999: 101376} {
		if got := SharedBytes(arch); got != want {
			t.Errorf("sm_%d: %d bytes, want %d", arch, got, want)
		}
	}
}
