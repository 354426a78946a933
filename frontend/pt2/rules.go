package pt2

import (
	"maps"
	"strings"

	"pwc/ir"
)

// An opRule returns the results of an op, in new memory. The rule also serves the in-place variant of the op, whose
// name ends in an underscore: the first result is written to self.
type opRule func(c *call) []ir.Value

// A viewRule returns results that may share memory with the argument.
type viewRule func(c *call) []*tensor

// opRules and viewRules have names of ops without overload as keys. Most overloads have the same names for the same
// arguments, and rules have a default for an argument that an overload lacks.
var (
	opRules   = merged(pointwiseRules, reduceRules, layoutRules, indexRules, accumulateRules, trigonometryRules, lossRules, productRules, convRules, resampleRules, sampleRules, bagRules, recurrentRules, createRules)
	viewRules = aliasRules
)

// synonyms map other names of ops, with the same arguments, to the names in the rules.
var synonyms = map[string]string{
	"aten.absolute": "aten.abs", "aten.negative": "aten.neg", "aten.fix": "aten.trunc", "aten.clip": "aten.clamp",
	"aten.subtract": "aten.sub", "aten.multiply": "aten.mul", "aten.divide": "aten.div", "aten.true_divide": "aten.div",
	"aten.not_equal": "aten.ne", "aten.greater": "aten.gt", "aten.less": "aten.lt", "aten.greater_equal": "aten.ge", "aten.less_equal": "aten.le",
	"aten.arctan": "aten.atan", "aten.arcsin": "aten.asin", "aten.arccos": "aten.acos", "aten.arctan2": "aten.atan2",
	"aten.arcsinh": "aten.asinh", "aten.arccosh": "aten.acosh", "aten.arctanh": "aten.atanh",
	"aten.concat": "aten.cat", "aten.concatenate": "aten.cat", "aten.row_stack": "aten.vstack", "aten.ger": "aten.outer",
	"aten.special_expit": "aten.sigmoid", "aten.special_exp2": "aten.exp2", "aten.special_expm1": "aten.expm1", "aten.special_log1p": "aten.log1p",
	"aten.special_erf": "aten.erf", "aten.special_erfc": "aten.erfc", "aten.special_sinc": "aten.sinc", "aten.special_round": "aten.round",
	"aten.special_xlogy": "aten.xlogy", "aten.special_logit": "aten.logit", "aten.special_logsumexp": "aten.logsumexp",
	"aten.special_softmax": "aten.softmax", "aten.special_log_softmax": "aten.log_softmax",

	// x &= y and its like write x. canonical takes the last underscore of aten.__iand__ as that of an in-place variant.
	"aten.__iand_": "aten.bitwise_and", "aten.__ior_": "aten.bitwise_or", "aten.__ixor_": "aten.bitwise_xor",
}

// canonical returns the name of an op in the rules. An in-place variant keeps its underscore.
func canonical(base string) string {
	name, inPlace := strings.CutSuffix(base, "_")
	s, ok := synonyms[name]
	switch {
	case !ok:
		return base
	case inPlace:
		return s + "_"
	}
	return s
}

func merged(tables ...map[string]opRule) map[string]opRule {
	all := map[string]opRule{}
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

func one(v ir.Value) []ir.Value { return []ir.Value{v} }
