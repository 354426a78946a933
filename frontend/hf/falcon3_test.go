package hf

import "testing"

// Falcon 3 has the architecture of Llama.
func TestFalcon3(t *testing.T) {
	config := settings{
		"architectures": []string{"LlamaForCausalLM"}, "attention_bias": false, "attention_dropout": 0.0, "eos_token_id": 11, "head_dim": 256,
		"hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 23040, "max_position_embeddings": 32768,
		"mlp_bias": false, "model_type": "llama", "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 4, "pretraining_tp": 1,
		"rms_norm_eps": 1e-06, "rope_scaling": nil, "rope_theta": 1000042, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
		"transformers_version": "4.46.1", "use_cache": true, "vocab_size": 131072,
	}
	published{"Falcon3-7B-Base", config, 7_455_550_464, 28, "bf16[B, 2, 16, 4, 256]"}.check(t, Options{})
}
