package inspect

import "strings"

// diffLimit bounds the product of line counts for the longest common subsequence. Beyond it, all
// lines between the common prefix and suffix count as replaced.
const diffLimit = 4 << 20

// diff returns the marked lines of two texts. It keeps a longest common subsequence, within diffLimit.
func diff(before, after string) []Line {
	a, b := lines(before), lines(after)
	var out []Line
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		out = append(out, Line{" ", a[head]})
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	out = append(out, middle(a[head:len(a)-tail], b[head:len(b)-tail])...)
	for _, text := range a[len(a)-tail:] {
		out = append(out, Line{" ", text})
	}
	return out
}

// middle compares the lines between the common prefix and suffix.
func middle(a, b []string) []Line {
	var out []Line
	if len(a)*len(b) > diffLimit {
		for _, text := range a {
			out = append(out, Line{"-", text})
		}
		for _, text := range b {
			out = append(out, Line{"+", text})
		}
		return out
	}
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int32, len(a)+1)
	for i := range common {
		common[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, Line{" ", a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			out = append(out, Line{"-", a[i]})
			i++
		default:
			out = append(out, Line{"+", b[j]})
			j++
		}
	}
	return out
}

// lines splits a text. A final newline does not start another line.
func lines(text string) []string {
	text = strings.TrimSuffix(text, "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
