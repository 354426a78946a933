// Package gpuarch has limits of NVIDIA's architectures, by compute capability.
package gpuarch

// SharedBytes returns the largest shared memory of a block, in bytes, of an architecture: 90 is
// compute capability 9.0. The numbers are those of the CUDA C++ Programming Guide ("Technical
// Specifications per Compute Capability"). An architecture that is not in the list below gets
// 99 KiB, the smallest number from compute capability 8.0 on.
func SharedBytes(arch int) int {
	switch arch {
	case 80, 87:
		return 163 << 10
	case 90, 100, 101, 103, 110:
		return 227 << 10
	}
	return 99 << 10
}
