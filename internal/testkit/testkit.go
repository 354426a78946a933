// Package testkit has helpers of the tests of several packages: modules from text, golden
// files, a log that tests read, and runs of a compiled program on a device. Package oracle
// has the expected results.
package testkit

import (
	"testing"

	"pwc/ir"
	"pwc/ir/dim"
)

// Check ends the test if there is an error.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns a function that returns the value of a call, and ends the test if the
// call returned an error.
func Must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		Check(t, err)
		return v
	}
}

// Parse reads a module.
func Parse(t testing.TB, text string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("test.ir", []byte(text))
	Check(t, err)
	return m
}

// Dims parses dimension sizes and strides.
func Dims(t testing.TB, texts ...string) []dim.Dim {
	t.Helper()
	out := make([]dim.Dim, len(texts))
	for i, s := range texts {
		out[i] = Must[dim.Dim](t)(dim.Parse(s))
	}
	return out
}

// Consts returns constant dimension sizes.
func Consts(ns ...int64) []dim.Dim {
	out := make([]dim.Dim, len(ns))
	for i, n := range ns {
		out[i] = dim.Const(n)
	}
	return out
}
