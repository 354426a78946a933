package pt2

import (
	"maps"

	"pwc/ir"
)

// An opRule makes the results of an op, in memory of their own. An op of that name with an
// underscore at the end writes the first result to its argument self.
type opRule func(c *call) []ir.Value

// A viewRule makes results that share memory with its argument, or has none.
type viewRule func(c *call) []*tensor

// opRules and viewRules are by the name of an op without its overload: overloads take the
// same arguments by the same names, and those that they lack have defaults.
var (
	opRules   = merged(pointwiseRules, reduceRules, layoutRules, indexRules, accumulateRules, trigonometryRules, lossRules, productRules, convRules, resampleRules, sampleRules, bagRules, recurrentRules, createRules)
	viewRules = aliasRules
)

func merged(tables ...map[string]opRule) map[string]opRule {
	all := map[string]opRule{}
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

func one(v ir.Value) []ir.Value { return []ir.Value{v} }
