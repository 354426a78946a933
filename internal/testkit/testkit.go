// Package testkit has what the tests of several packages need: modules of texts,
// golden files, a log that is read back, and the run of a compiled program on a device.
// What tests expect of numbers is in package oracle.
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

// Must returns the function that gives the value of a call, and ends the test if the
// call gave an error.
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
