//go:build !linux || !(amd64 || arm64)

package driver

import "pwc/runtime/cuda/internal/dl"

// Open fails: the CUDA driver is opened on linux/amd64 and linux/arm64.
func Open(path string) (Driver, error) {
	if path == "" {
		path = "libcuda.so.1"
	}
	_, err := dl.Open("the CUDA driver (libcuda.so.1)", "", []string{path})
	return nil, err
}
