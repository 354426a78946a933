package pt2

import (
	"slices"
	"strings"
)

// equation is a parsed equation of einsum: "bij,bjk->bik".
type equation struct {
	operands []string // without spaces, and with "." for "..."
	result   string
}

func parseEinsum(text string) *equation {
	text = strings.ReplaceAll(strings.ReplaceAll(text, " ", ""), "...", ".")
	left, right, arrow := strings.Cut(text, "->")
	e := &equation{operands: strings.Split(left, ","), result: right}
	count := map[rune]int{}
	for _, s := range append(slices.Clone(e.operands), right) {
		if strings.Count(s, ".") > 1 {
			return nil
		}
		for _, l := range s {
			if l != '.' && (l < 'a' || l > 'z') && (l < 'A' || l > 'Z') {
				return nil
			}
		}
	}
	for _, s := range e.operands {
		for _, l := range s {
			count[l]++
		}
	}
	if !arrow { // the letters that occur once, in alphabetical order
		var once []rune
		for l, n := range count {
			if n == 1 && l != '.' {
				once = append(once, l)
			}
		}
		slices.Sort(once)
		e.result = string(once)
		if count['.'] > 0 {
			e.result = "." + e.result
		}
	}
	return e
}

// dotLetter is the letter of axis i of an ellipsis, counted from the right.
func dotLetter(i int) rune { return rune(0x100 + i) }

// spelled returns a letter for each axis of an operand of the given rank, and the number of axes that an ellipsis
// covers. It reports false if the rank does not fit.
func (e *equation) spelled(operand, rank int) (letters []rune, dots int, ok bool) {
	s := e.operands[operand]
	dots = rank - len(strings.Replace(s, ".", "", 1))
	if dots < 0 || dots > 0 && !strings.Contains(s, ".") {
		return nil, 0, false
	}
	return spell(s, dots), dots, true
}

func (e *equation) spelledResult(dots int) []rune { return spell(e.result, dots) }

func spell(s string, dots int) []rune {
	var out []rune
	for _, l := range s {
		if l != '.' {
			out = append(out, l)
			continue
		}
		for i := dots - 1; i >= 0; i-- {
			out = append(out, dotLetter(i))
		}
	}
	return out
}
