//go:build race

package testkit

// RaceDetector reports whether the test is built with the race detector.
const RaceDetector = true
