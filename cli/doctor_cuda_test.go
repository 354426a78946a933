//go:build !nocuda

package cli

import "testing"

func TestLatestBefore(t *testing.T) {
	archs := []int{52, 75, 80, 89, 90}
	for arch, want := range map[int64]int{100: 90, 90: 89, 87: 80, 80: 0} {
		if got := latestBefore(archs, arch); got != want {
			t.Errorf("before %d: %d, want %d", arch, got, want)
		}
	}
}
