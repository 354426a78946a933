package hf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pwc/internal/termsafe"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// QuantizedError reports a quantized checkpoint: its config or another file marks it as quantized, or its tensors are
// codes of weights with scales. A module that read the codes as plain weights would compute noise.
type QuantizedError struct {
	File   string // file that marks the checkpoint as quantized; empty: see Kinds
	Key    string // key in File; empty: the file as a whole
	Method string // name in File: "fp8"; empty: unknown

	// Kinds are the kinds of quantized tensors, sorted by What; nil if File is set.
	Kinds []QuantizedKind
}

// QuantizedKind counts the tensors that are quantized in one way.
type QuantizedKind struct {
	What    string // a dtype, "f8e4m3", or a pattern of names, "*.weight_scale"
	Count   int
	Example string // name of one of the tensors
}

// Error returns one line, for any number of tensors.
func (e *QuantizedError) Error() string {
	const advice = "quantized checkpoints are not supported: import an unquantized one"
	if e.File != "" {
		method := "an unnamed method"
		if e.Method != "" {
			method = termsafe.Quote(e.Method)
		}
		where := e.File
		if e.Key != "" {
			where += ": " + termsafe.Quote(e.Key)
		}
		return fmt.Sprintf("%s: the checkpoint is quantized with %s; %s", where, method, advice)
	}
	parts := make([]string, len(e.Kinds))
	for i, k := range e.Kinds {
		parts[i] = fmt.Sprintf("%d of %s (%s)", k.Count, k.What, termsafe.Quote(k.Example))
	}
	return fmt.Sprintf("the checkpoint is quantized, by its tensors: %s; %s", strings.Join(parts, ", "), advice)
}

// scaleNames are the last parts of the names of tensors that tools store with codes, such as scales and zero points:
// ModelOpt, compressed-tensors, fine-grained FP8, GPTQ, AWQ, bitsandbytes, HQQ, MLX (scales, biases), and scales of FP8
// KV caches.
func scaleNames() []string {
	return []string{
		"weight_scale", "weight_scale_inv", "weight_scale_2", "weight_zero_point", "weight_packed", "weight_shape", "weight_g_idx",
		"weight_global_scale", "input_scale", "input_zero_point", "input_global_scale", "output_scale", "activation_scale",
		"qweight", "qzeros", "scales", "biases", "g_idx", "absmax", "quant_map", "nested_absmax", "nested_quant_map", "SCB",
		"weight_format", "W_q", "k_scale", "v_scale", "q_scale", "prob_scale", "pre_quant_scale", "weight_quantizer", "weight_blocks",
		"weight_scales", "kv_scale",
	}
}

// quantizedTensors returns a [*QuantizedError] if a checkpoint has tensors that are codes of weights, or scales of such
// codes. It recognizes them by their dtypes and names, independently of the config.
func quantizedTensors(src safetensors.Source) error {
	scales := scaleNames()
	kinds := map[string]*QuantizedKind{}
	for _, name := range src.Names() {
		what := ""
		last := name[strings.LastIndexByte(name, '.')+1:]
		switch info, err := src.Info(name); {
		case slices.Contains(scales, last):
			what = "*." + last
		case err != nil:
			// A dtype that the IR does not have: unsigned integers of several bytes, into which codes are packed.
			if fault, ok := errors.AsType[*safetensors.FormatError](err); ok && strings.HasSuffix(name, ".weight") && strings.HasPrefix(fault.DType, "U") {
				what = fault.DType
			}
		case info.DType.Bits() < 8, info.DType.Float() && info.DType.Bits() == 8, info.DType == dtype.E8M0:
			what = info.DType.String()
		case strings.HasSuffix(name, ".weight") && !info.DType.Float():
			what = info.DType.String()
		}
		if what == "" {
			continue
		}
		if kinds[what] == nil {
			kinds[what] = &QuantizedKind{What: what, Example: name}
		}
		kinds[what].Count++
	}
	if len(kinds) == 0 {
		return nil
	}
	e := &QuantizedError{}
	for _, what := range sortedKeys(kinds) {
		e.Kinds = append(e.Kinds, *kinds[what])
	}
	return e
}

// quantKeys are the keys of a config.json that mark a checkpoint as quantized: those of transformers,
// compressed-tensors, MLX and some converters.
func quantKeys() []string {
	return []string{"quantization_config", "compression_config", "quantization", "quant_config"}
}

// quantMethod returns the name of the method in the object of a quantization key or file, or an empty string. ModelOpt
// has the keys in an inner object. Objects inside that one are not read: each level parses the text again, so a file
// with thousands of levels would take minutes.
func quantMethod(text []byte) string {
	method, inner := methodOf(text)
	if method == "" {
		method, _ = methodOf(inner)
	}
	return method
}

// methodOf returns the name of the method in an object, or an empty string and the inner object "quantization".
func methodOf(text []byte) (method string, inner []byte) {
	values, err := parseObject(text)
	if err != nil {
		return "", nil
	}
	q := &Config{values: values, seen: map[string]bool{}, report: &report{}}
	for _, key := range []string{"quant_method", "quant_algo", "format", "kv_cache_quant_algo"} {
		if m := q.StringOr(key, ""); m != "" {
			return m, nil
		}
	}
	if bits := q.FloatOr("bits", 0); bits > 0 {
		return fmt.Sprintf("%v bits", bits), nil
	}
	raw, _ := q.raw("quantization")
	return "", raw
}

// besideConfig refuses a directory with a file that changes the meaning of its tensors. ModelOpt,
// AutoGPTQ and AWQ mark a quantized checkpoint in a separate file. An adapter adds to the weights.
func besideConfig(dir string) error {
	for _, name := range []string{"hf_quant_config.json", "quantize_config.json", "quant_config.json"} {
		text, err := ReadConfig(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		default:
			return fmt.Errorf("hf: %w", &QuantizedError{File: name, Method: quantMethod(text)})
		}
	}
	const adapter = "adapter_config.json"
	switch _, err := os.Stat(filepath.Join(dir, adapter)); {
	case err == nil:
		return fmt.Errorf("hf: %s: the directory also holds an adapter, which is not applied: merge it into the weights (merge_and_unload of PEFT), or move its files elsewhere", adapter)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("hf: %w", err)
	}
	return nil
}
