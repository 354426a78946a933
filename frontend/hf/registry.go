package hf

import (
	"fmt"
	"strings"

	"pwc/internal/termsafe"
)

// Family imports the checkpoints of one architecture. It reads all keys of the architecture from the config, records a
// problem for each setting that it does not support, and returns the function that builds the module. Import calls that
// function only if there are no problems and no refused keys.
type Family func(c *Config) Emit

// Emit builds a module: it calls [Net.Forward], adds the model's blocks, returns their result from @forward
// (Net.F.Return), and calls [Net.Logits].
type Emit func(n *Net)

// Registry maps names of architectures, as configs give them ("LlamaForCausalLM"), to families. After the last call of
// Register it may be used from several goroutines.
type Registry struct{ families map[string]Family }

// Builtin returns a new registry with the families of this package: decoders, dense and with experts.
func Builtin() *Registry {
	r := &Registry{families: map[string]Family{}}
	r.Register("Cohere2ForCausalLM", Cohere2)
	r.Register("CohereForCausalLM", Cohere)
	r.Register("Exaone4ForCausalLM", EXAONE4)
	r.Register("GPT2LMHeadModel", GPT2)
	r.Register("GPTNeoXForCausalLM", GPTNeoX)
	r.Register("Gemma2ForCausalLM", Gemma2)
	r.Register("Gemma3ForCausalLM", Gemma3)
	r.Register("Gemma3ForConditionalGeneration", Gemma3VL)
	r.Register("GemmaForCausalLM", Gemma)
	r.Register("Glm4ForCausalLM", GLM4)
	r.Register("GlmForCausalLM", GLM)
	r.Register("GraniteForCausalLM", Granite)
	r.Register("LlamaForCausalLM", Llama)
	r.Register("Ministral3ForCausalLM", Ministral3)
	r.Register("Mistral3ForConditionalGeneration", Mistral3VL)
	r.Register("MistralForCausalLM", Mistral)
	r.Register("MixtralForCausalLM", Mixtral)
	r.Register("Olmo2ForCausalLM", OLMo2)
	r.Register("Olmo3ForCausalLM", OLMo3)
	r.Register("Phi3ForCausalLM", Phi3)
	r.Register("PhiForCausalLM", Phi)
	r.Register("Qwen2ForCausalLM", Qwen2)
	r.Register("Qwen2MoeForCausalLM", Qwen2MoE)
	r.Register("Qwen2VLForConditionalGeneration", Qwen2VL)
	r.Register("Qwen2_5_VLForConditionalGeneration", Qwen2VL)
	r.Register("Qwen3ForCausalLM", Qwen3)
	r.Register("Qwen3MoeForCausalLM", Qwen3MoE)
	r.Register("Qwen3VLForConditionalGeneration", Qwen3VL)
	r.Register("Qwen3VLMoeForConditionalGeneration", Qwen3VLMoE)
	r.Register("SmolLM3ForCausalLM", SmolLM3)
	r.Register("Starcoder2ForCausalLM", StarCoder2)
	return r
}

// Register adds a family, or replaces the family of that architecture.
func (r *Registry) Register(architecture string, f Family) { r.families[architecture] = f }

// Architectures returns the registered names, sorted.
func (r *Registry) Architectures() []string { return sortedKeys(r.families) }

// UnknownArchitectureError reports a config whose architecture is not registered.
type UnknownArchitectureError struct {
	Architecture string   // empty if the config names none, and its model_type is missing or unknown
	Known        []string // sorted
}

// Error lists the known architectures and how to import the checkpoint anyway.
func (e *UnknownArchitectureError) Error() string {
	what := "architecture " + termsafe.Quote(e.Architecture) + " is not known"
	if e.Architecture == "" {
		what = "config.json names no architecture, and no model_type that is known"
	}
	return fmt.Sprintf("%s; known: %s. If one of them describes the checkpoint, set Options.Architecture to its name; "+
		"otherwise register a family (Registry.Register), or write the module as IR text",
		what, strings.Join(e.Known, ", "))
}

// modelTypes maps model_type to the architecture, for configs that name no architecture. The entries are those of
// transformers' modeling_auto.py, except phi-msft, which is older.
func modelTypes() map[string]string {
	return map[string]string{
		"cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM", "exaone4": "Exaone4ForCausalLM",
		"gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForConditionalGeneration", "gemma3_text": "Gemma3ForCausalLM",
		"glm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM", "gpt2": "GPT2LMHeadModel", "gpt_neox": "GPTNeoXForCausalLM",
		"granite": "GraniteForCausalLM", "llama": "LlamaForCausalLM",
		"ministral3": "Ministral3ForCausalLM", "mistral": "MistralForCausalLM", "mistral3": "Mistral3ForConditionalGeneration", "mixtral": "MixtralForCausalLM",
		"olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM", "phi": "PhiForCausalLM", "phi-msft": "PhiForCausalLM", "phi3": "Phi3ForCausalLM",
		"qwen2": "Qwen2ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
		"qwen2_vl": "Qwen2VLForConditionalGeneration", "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
		"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
		"qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
		"smollm3": "SmolLM3ForCausalLM", "starcoder2": "Starcoder2ForCausalLM",
	}
}

// choose honours the keys that name the architecture and returns its family.
func (r *Registry) choose(c *Config, override string) (string, Family, error) {
	listed := c.Strings("architectures")
	name := override
	switch {
	case name != "":
	case len(listed) > 0:
		name = listed[0]
	default:
		name = modelTypes()[c.StringOr("model_type", "")]
	}
	f, ok := r.families[name]
	if !ok {
		return "", nil, &UnknownArchitectureError{Architecture: name, Known: r.Architectures()}
	}
	if override == "" && len(listed) > 1 {
		c.Errorf("architectures", "names %d architectures; choose one (Options.Architecture)", len(listed))
	}
	return name, f, nil
}
