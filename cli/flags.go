package cli

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pwc/piecewise"
)

// sizeList is the value of a flag that takes comma-separated sizes. A repeated flag adds to the
// list. An empty text adds no size.
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
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for s := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is not a size, which is a whole number above 0", s)
		}
		*l = append(*l, n)
	}
	return nil
}

// addMode adds --mode.
func addMode(cmd *cobra.Command, mode *string) {
	cmd.Flags().StringVar(mode, "mode", "piecewise", "capture `MODE`: none, piecewise, full, full-decode-only or full-and-piecewise")
}

// addPaddedSlots adds --padded-slots.
func addPaddedSlots(cmd *cobra.Command, names *[]string) {
	cmd.Flags().StringSliceVar(names, "padded-slots", nil, "`PARAM`eters, or FUNCTION.PARAM, that are -1 instead of 0 in padded rows, so that scatter writes nothing for them")
}

// parseMode returns the mode that --mode names.
func parseMode(name string) (piecewise.Mode, error) {
	mode, err := piecewise.ParseMode(name)
	if err != nil {
		return mode, usagef("--mode: %w", err)
	}
	return mode, nil
}

// wholeNumber is the value of a flag that takes a whole number.
type wholeNumber[T int | int64] struct {
	n           *T
	least, most T
}

// String returns the value as the flag takes it.
func (v *wholeNumber[T]) String() string {
	if v.n == nil {
		return "0" // of the zero value: pflag compares it with defaults
	}
	return strconv.FormatInt(int64(*v.n), 10)
}

// Type names the kind of value in the help.
func (v *wholeNumber[T]) Type() string { return "number" }

// Set takes what the flag gives.
func (v *wholeNumber[T]) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, strconv.IntSize)
	if err != nil || n < int64(v.least) || n > int64(v.most) {
		return fmt.Errorf("want a number from %d to %d", v.least, v.most)
	}
	*v.n = T(n)
	return nil
}

// duration is the value of a flag that takes a time, which is never negative.
type duration struct {
	d     *time.Duration
	above bool // 0 is refused
}

// String returns the value as the flag takes it.
func (v *duration) String() string {
	if v.d == nil || *v.d == 0 {
		return "0" // pflag prints no default for this text
	}
	return v.d.String()
}

// Type names the kind of value in the help.
func (v *duration) Type() string { return "duration" }

// Set takes what the flag gives.
func (v *duration) Set(text string) error {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return errors.New("not a duration, such as 200ms, 30s or 10m")
	case v.above && d <= 0:
		return errors.New("want a duration above 0")
	case d < 0:
		return errors.New("want a duration of 0 or more")
	}
	*v.d = d
	return nil
}

// maxNumber bounds flags that count something. An int of 32 bits holds it.
const maxNumber = 1 << 30

// parseBytes reads "123", "10KiB", "1.5GB". Units with an i are powers of 1024, others of 1000; case does not matter.
func parseBytes(s string) (int64, error) {
	text, unit := strings.ToUpper(strings.TrimSpace(s)), 1.0
	text = strings.TrimSuffix(text, "B")
	base := 1000.0
	if rest, ok := strings.CutSuffix(text, "I"); ok && rest != "" && strings.ContainsAny(rest[len(rest)-1:], "KMGT") {
		text, base = rest, 1024
	}
	for i, prefix := range []string{"K", "M", "G", "T"} {
		if rest, ok := strings.CutSuffix(text, prefix); ok {
			text, unit = rest, math.Pow(base, float64(i+1))
			break
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(v >= 0) || v*unit > 1<<62 || strings.ContainsAny(text, "XxPp_") {
		return 0, fmt.Errorf("%q is not a number of bytes, such as 1048576, 500MiB or 1.5GB", s)
	}
	return int64(v * unit), nil
}

// byteFlag is the value of a flag that takes bytes: "123", "10KiB", "1.5GB".
type byteFlag struct {
	n     *int64
	least int64
}

// String returns the value as the flag takes it.
func (v byteFlag) String() string {
	if v.n == nil {
		return "0"
	}
	return strconv.FormatInt(*v.n, 10)
}

// Type names the kind of value in the help.
func (v byteFlag) Type() string { return "bytes" }

// Set takes what the flag gives.
func (v byteFlag) Set(text string) error {
	n, err := parseBytes(text)
	if err == nil && n < v.least {
		err = fmt.Errorf("want at least %s", plural(v.least, "byte"))
	}
	if err == nil {
		*v.n = n
	}
	return err
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
	if strings.TrimSpace(text) == "" {
		return nil
	}
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
