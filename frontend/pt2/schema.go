package pt2

import (
	"encoding/json"
	"fmt"
	"math"

	"pwc/ir/dtype"
)

// The types below are those of torch/_export/serde/schema.py, version 8: JSON objects with the keys that are read. A
// union is an object with one key.

// schemaMajor is the supported major version of the schema. PyTorch raises it with every change that breaks readers;
// minor versions add fields that have defaults.
const schemaMajor = 8

type exportedProgram struct {
	GraphModule      graphModule    `json:"graph_module"`
	RangeConstraints map[string]rng `json:"range_constraints"`
	SchemaVersion    *schemaVersion `json:"schema_version"`
	TorchVersion     string         `json:"torch_version"`
	GuardsCode       []string       `json:"guards_code"`
}

type schemaVersion struct {
	Major int64 `json:"major"`
	Minor int64 `json:"minor"`
}

// rng is the range of a symbol; nil: no bound.
type rng struct {
	Min *json.Number `json:"min_val"`
	Max *json.Number `json:"max_val"`
}

type graphModule struct {
	Graph     graph     `json:"graph"`
	Signature signature `json:"signature"`
}

type graph struct {
	Inputs        []argument            `json:"inputs"`
	Outputs       []argument            `json:"outputs"`
	Nodes         []node                `json:"nodes"`
	TensorValues  map[string]tensorMeta `json:"tensor_values"`
	SymIntValues  map[string]symInt     `json:"sym_int_values"`
	SymBoolValues map[string]symBool    `json:"sym_bool_values"`
}

type node struct {
	Target   string            `json:"target"`
	Inputs   []namedArgument   `json:"inputs"`
	Outputs  []argument        `json:"outputs"`
	Metadata map[string]string `json:"metadata"`
	Name     string            `json:"name"`
}

type namedArgument struct {
	Name string   `json:"name"`
	Arg  argument `json:"arg"`
}

type nameRef struct {
	Name string `json:"name"`
}

// argument is the union Argument. Of a kind that no rule takes, only the key is decoded.
type argument struct {
	Tensor          *nameRef         `json:"as_tensor"`
	Tensors         []nameRef        `json:"as_tensors"`
	Int             *int64           `json:"as_int"`
	Ints            []int64          `json:"as_ints"`
	Float           *float           `json:"as_float"`
	Floats          []float          `json:"as_floats"`
	String          *string          `json:"as_string"`
	SymInt          *symIntArg       `json:"as_sym_int"`
	SymInts         []symIntArg      `json:"as_sym_ints"`
	ScalarType      *int64           `json:"as_scalar_type"`
	MemoryFormat    *int64           `json:"as_memory_format"`
	Layout          *int64           `json:"as_layout"`
	Device          *json.RawMessage `json:"as_device"`
	Bool            *bool            `json:"as_bool"`
	SymBool         *symBoolArg      `json:"as_sym_bool"`
	OptionalTensors []optionalTensor `json:"as_optional_tensors"`
	OptionalTensor  *optionalTensor  `json:"as_optional_tensor"`
	Graph           *graphArgument   `json:"as_graph"`

	// kind is the key of the union: "as_tensor". It tells an empty list from an absent one.
	kind string
}

// graphArgument is the operand of a higher-order op.
type graphArgument struct {
	Name  string `json:"name"`
	Graph *graph `json:"graph"`
}

// nodes counts the nodes of a graph and of the graphs that its nodes run.
func (g *graph) nodes() int {
	n := len(g.Nodes)
	for i := range g.Nodes {
		for j := range g.Nodes[i].Inputs {
			if a := g.Nodes[i].Inputs[j].Arg.Graph; a != nil && a.Graph != nil {
				n += a.Graph.nodes()
			}
		}
	}
	return n
}

type plainArgument argument

// UnmarshalJSON decodes the union and keeps its key.
func (a *argument) UnmarshalJSON(text []byte) error {
	kind, err := unionKey(text)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, (*plainArgument)(a)); err != nil {
		return err
	}
	a.kind = kind
	return nil
}

// unionKey returns the one key of a union.
func unionKey(text []byte) (string, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		return "", err
	}
	if len(keys) != 1 {
		return "", fmt.Errorf("a union has one key, this one %d", len(keys))
	}
	for k := range keys {
		return k, nil
	}
	return "", nil
}

// float is a float64, which JSON has as a string if it is not finite.
type float float64

// UnmarshalJSON decodes a number, "Infinity", "-Infinity" or "NaN", or Python's "inf", "-inf" or "nan".
func (f *float) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case `"Infinity"`, `"inf"`:
		*f = float(math.Inf(1))
	case `"-Infinity"`, `"-inf"`:
		*f = float(math.Inf(-1))
	case `"NaN"`, `"nan"`:
		*f = float(math.NaN())
	default:
		var v float64
		if err := json.Unmarshal(text, &v); err != nil {
			return err
		}
		*f = float(v)
	}
	return nil
}

type optionalTensor struct {
	Tensor *nameRef `json:"as_tensor"`
}

type symIntArg struct {
	Name *string `json:"as_name"`
	Int  *int64  `json:"as_int"`
}

type symBoolArg struct {
	Name *string `json:"as_name"`
	Bool *bool   `json:"as_bool"`
}

type symExpr struct {
	Expr string `json:"expr_str"`
}

type symInt struct {
	Expr *symExpr `json:"as_expr"`
	Int  *int64   `json:"as_int"`
}

type symBool struct {
	Expr *symExpr `json:"as_expr"`
	Bool *bool    `json:"as_bool"`
}

type tensorMeta struct {
	DType   int64    `json:"dtype"`
	Sizes   []symInt `json:"sizes"`
	Strides []symInt `json:"strides"`
	Offset  symInt   `json:"storage_offset"`
	Layout  int64    `json:"layout"`
}

type signature struct {
	Inputs  []inputSpec  `json:"input_specs"`
	Outputs []outputSpec `json:"output_specs"`
}

type inputSpec struct {
	User *struct {
		Arg argument `json:"arg"`
	} `json:"user_input"`
	Parameter *struct {
		Arg  nameRef `json:"arg"`
		Name string  `json:"parameter_name"`
	} `json:"parameter"`
	Buffer *struct {
		Arg  nameRef `json:"arg"`
		Name string  `json:"buffer_name"`
	} `json:"buffer"`
	Constant *struct {
		Arg  nameRef `json:"arg"`
		Name string  `json:"tensor_constant_name"`
	} `json:"tensor_constant"`
	ConstantInput *struct {
		Name string `json:"name"`
	} `json:"constant_input"`
	CustomObject *json.RawMessage `json:"custom_obj"`
	Token        *json.RawMessage `json:"token"`
}

type outputSpec struct {
	User *struct {
		Arg argument `json:"arg"`
	} `json:"user_output"`
	Buffer *struct {
		Arg  nameRef `json:"arg"`
		Name string  `json:"buffer_name"`
	} `json:"buffer_mutation"`
	Parameter *struct {
		Arg  nameRef `json:"arg"`
		Name string  `json:"parameter_name"`
	} `json:"parameter_mutation"`
	UserInput *struct {
		Arg  nameRef `json:"arg"`
		Name string  `json:"user_input_name"`
	} `json:"user_input_mutation"`
	Token *json.RawMessage `json:"token"`
}

// payloadConfig is data/weights/NAME_weights_config.json and its like for constants.
type payloadConfig struct {
	Config map[string]payloadMeta `json:"config"`
}

type payloadMeta struct {
	PathName  string      `json:"path_name"`
	UsePickle bool        `json:"use_pickle"`
	Meta      *tensorMeta `json:"tensor_meta"`
}

// scalarTypes are the dtypes of schema.ScalarType that the IR has.
var scalarTypes = map[int64]dtype.DType{
	1: dtype.U8, 2: dtype.I8, 3: dtype.I16, 4: dtype.I32, 5: dtype.I64, 6: dtype.F16, 7: dtype.F32,
	12: dtype.Bool, 13: dtype.BF16, 29: dtype.F8E4M3, 30: dtype.F8E5M2,
}

// scalarTypeNames are the names of the values of schema.ScalarType, for errors.
var scalarTypeNames = map[int64]string{
	1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 9: "complex32",
	10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 29: "float8_e4m3fn", 30: "float8_e5m2",
	31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz",
}

func scalarTypeName(t int64) string {
	if s, ok := scalarTypeNames[t]; ok {
		return s
	}
	return fmt.Sprintf("dtype %d", t)
}

const strided = 7 // schema.Layout.Strided
