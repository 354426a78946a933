package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// sizeList is the value of a flag that takes sizes with commas between them. A
// flag that is given again adds to it.
type sizeList []int64

// String returns the value as the flag takes it.
func (l *sizeList) String() string {
	out := make([]string, len(*l))
	for i, n := range *l {
		out[i] = strconv.FormatInt(n, 10)
	}
	return strings.Join(out, ",")
}

// Type names the kind of value in the help.
func (l *sizeList) Type() string { return "sizes" }

// Set adds what one occurrence of the flag gives.
func (l *sizeList) Set(text string) error {
	for s := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no size", s)
		}
		*l = append(*l, n)
	}
	return nil
}

// assignments is the value of a flag that gives symbols values: "N=64,M=64".
type assignments map[string]int64

// String returns the value as the flag takes it.
func (a *assignments) String() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(*a)) {
		out = append(out, fmt.Sprintf("%s=%d", name, (*a)[name]))
	}
	return strings.Join(out, ",")
}

// Type names the kind of value in the help.
func (a *assignments) Type() string { return "assignments" }

// Set adds what one occurrence of the flag gives.
func (a *assignments) Set(text string) error {
	for s := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(s, "=")
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if !ok || err != nil || strings.TrimSpace(name) == "" {
			return fmt.Errorf("%q is not SYMBOL=VALUE", s)
		}
		if *a == nil {
			*a = assignments{}
		}
		(*a)[strings.TrimSpace(name)] = n
	}
	return nil
}
