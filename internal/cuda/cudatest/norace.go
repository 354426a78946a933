//go:build !race

package cudatest

const raceDetector = false
