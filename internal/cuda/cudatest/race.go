//go:build race

package cudatest

const raceDetector = true
