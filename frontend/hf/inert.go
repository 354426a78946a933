package hf

// inertKeys are the keys of config.json that, with any value, have no effect on a decoder's results at inference: keys
// of PretrainedConfig (transformers, configuration_utils.py), and provenance that tools write. A family declares the
// keys that are inert only for it ([Config.Inert]).
func inertKeys() []string {
	return []string{
		// Identity and provenance.
		"_name_or_path", "transformers_version", "tokenizer_class", "name_or_path", "unsloth_fixed", "unsloth_version",
		"_commit_hash", "internal_version", "is_llama_config", "transformers.js_config",
		"auto_map", // code for the architecture from the time before transformers had it

		// Settings of tokenizers and of MLC's runtime.
		"model_max_length", "max_sequence_length", "context_window_size", "prefill_chunk_size",

		// Token ids for sampling and tokenizing. Import reads eos_token_id in addition.
		"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
		"forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids",

		// Training: initialisation, dropout, losses, checkpointing of activations.
		"initializer_range", "attention_dropout", "gradient_checkpointing", "chunk_size_feed_forward", "pretraining_tp",
		"tf_legacy_loss",

		// Results of a call of the reference, and its execution.
		"use_cache", "output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate", "output_scores",
		"torchscript", "use_bfloat16", "cache_implementation",
		"_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "_flash_attn_2_enabled",

		// Heads for other tasks.
		"id2label", "label2id", "num_labels", "problem_type", "task_specific_params", "finetuning_task", "prefix",
		"cross_attention_hidden_size", // only for cross-attention, which fixedKeys refuses

		// Sampling, which is in generation_config.json today.
		"max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
		"temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
		"encoder_no_repeat_ngram_size", "num_return_sequences", "exponential_decay_length_penalty",
		"remove_invalid_values",
	}
}

// fixedKeys honours keys for which decoders support only one value, most of them of PretrainedConfig, and the keys that
// mark a quantized checkpoint.
func fixedKeys(c *Config) {
	for _, key := range []string{"is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"} {
		if c.BoolOr(key, false) {
			c.Errorf(key, "true is not supported: only decoders can be imported")
		}
	}
	c.BoolOr("is_decoder", true) // for a causal model both values mean the same
	if c.BoolOr("rope_interleaved", false) {
		c.Errorf("rope_interleaved", "true is not supported: the architecture decides which elements its rope pairs")
	}
	if o := c.Object("pruned_heads"); o != nil && len(o.values) > 0 {
		o.Inert(sortedKeys(o.values)...)
		c.Errorf("pruned_heads", "pruned heads are not supported")
	}
	for _, key := range quantKeys() {
		if raw, ok := c.raw(key); ok && c.report.quantized == nil {
			c.report.quantized = &QuantizedError{File: configFile, Key: c.path + key, Method: quantMethod(raw)}
		}
	}
}
