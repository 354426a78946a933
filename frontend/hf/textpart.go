package hf

import "strings"

// textPart is the text part of a multimodal model, which also reads images or sound. The keys of the text part are in
// the object text_config, and its tensors have a prefix that differs between releases of transformers.
type textPart struct {
	family Family
	bases  []string // possible prefixes of its tensors; the first is that of published checkpoints
	heads  []string // possible names of its head; the first is that of published checkpoints
	others []string // names of the parts that are not imported
}

// otherPartsKeys are the keys of a config that are about other parts, or about how their results enter the text.
func otherPartsKeys() []string {
	return []string{
		"vision_config", "audio_config", "image_token_id", "image_token_index", "video_token_id", "video_token_index", "vision_token_id",
		"vision_start_token_id", "vision_end_token_id", "boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id",
		"mm_tokens_per_image", "projector_hidden_act", "multimodal_projector_bias", "spatial_merge_size", "vision_feature_layer",
		"vision_feature_select_strategy", "image_seq_length", "ignore_index",
	}
}

// read honours the config of a multimodal model. A config without text_config has the text part's keys itself.
func (t textPart) read(c *Config) Emit {
	c.Inert(otherPartsKeys()...)
	emit := t.family(c.textPart())
	return func(n *Net) {
		n.bases, n.heads = t.bases, t.heads
		n.notes = append(n.notes, "the module is the text part of the model; left out: "+strings.Join(t.others, ", "))
		for _, part := range t.others {
			n.leaveOut(part)
			n.leaveOut("model." + part)
		}
		emit(n)
	}
}

// textPart returns the object text_config, or the config itself. It honours the keys that every config may have in the
// object too. If the file has tie_word_embeddings, that takes precedence over the object's.
func (c *Config) textPart() *Config {
	o := c.Object("text_config")
	if o == nil {
		return c
	}
	o.context = c.context
	o.Inert(inertKeys()...)
	o.Inert("model_type", "architectures")
	fixedKeys(o)
	const tied = "tie_word_embeddings"
	if raw, ok := c.raw(tied); ok {
		o.values[tied] = raw
	}
	c.text = o
	return o
}

// leaveOut declares a part of the checkpoint whose tensors the module does not read.
func (n *Net) leaveOut(part string) {
	n.leftOut = append(n.leftOut, part+".")
	n.B.Unread(part+".**", "")
}

// Gemma3VL imports the text part of Gemma3ForConditionalGeneration: the models of Gemma 3 with 4B or more parameters.
func Gemma3VL(c *Config) Emit {
	return textPart{
		family: Gemma3,
		bases:  []string{"language_model.model.", "model.language_model."},
		heads:  []string{"language_model.lm_head", "lm_head"},
		others: []string{"vision_tower", "multi_modal_projector"},
	}.read(c)
}

// Mistral3VL imports the text part of Mistral3ForConditionalGeneration: Mistral Small 3.1 and later, and Ministral 3.
func Mistral3VL(c *Config) Emit {
	return textPart{
		family: func(text *Config) Emit {
			family := OneOf(text, "model_type", "mistral", map[string]Family{"mistral": Mistral, "ministral3": Ministral3})
			if family == nil {
				return nil // OneOf has recorded the problem
			}
			return family(text)
		},
		bases:  []string{"language_model.model.", "model.language_model."},
		heads:  []string{"language_model.lm_head", "lm_head"},
		others: []string{"vision_tower", "multi_modal_projector"},
	}.read(c)
}

// qwenVL returns the family of a Qwen model that also reads images.
func qwenVL(family Family, bases ...string) Family {
	return textPart{family: family, bases: bases, heads: []string{"lm_head"}, others: []string{"visual"}}.read
}

// Qwen2VL imports the text part of Qwen2VLForConditionalGeneration and Qwen2_5_VLForConditionalGeneration.
func Qwen2VL(c *Config) Emit { return qwenVL(Qwen2, "model.", "model.language_model.")(c) }

// Qwen3VL imports the text part of Qwen3VLForConditionalGeneration.
func Qwen3VL(c *Config) Emit {
	return qwenVL(func(text *Config) Emit { return readQwen3(text, 500000) }, "model.language_model.", "model.")(c)
}

// Qwen3VLMoE imports the text part of Qwen3VLMoeForConditionalGeneration.
func Qwen3VLMoE(c *Config) Emit { return qwenVL(qwen3VLMoEText, "model.language_model.", "model.")(c) }
