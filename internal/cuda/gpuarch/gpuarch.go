// Package gpuarch holds what NVIDIA's architectures have, by compute capability.
package gpuarch

// SharedBytes is the most shared memory of a block, in bytes, of an architecture: 90 is compute
// capability 9.0. It is what the CUDA C++ Programming Guide lists ("Technical Specifications per
// Compute Capability"); an architecture that is not listed has the least of all.
func SharedBytes(arch int) int {
	switch arch {
	case 80, 87:
		return 163 << 10
	case 90, 100, 101, 103, 110:
		return 227 << 10
	}
	return 99 << 10
}
