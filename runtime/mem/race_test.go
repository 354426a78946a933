//go:build race

package mem

const raceDetector = true
