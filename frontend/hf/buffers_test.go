package hf

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pwc/checkpoint"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// over is a source in which some tensors are replaced or added.
type over struct {
	safetensors.Source
	own []safetensors.Tensor
}

func with(src safetensors.Source, own ...safetensors.Tensor) safetensors.Source {
	return over{src, own}
}

func (o over) find(name string) int {
	return slices.IndexFunc(o.own, func(t safetensors.Tensor) bool { return t.Name == name })
}

func (o over) Names() []string {
	names := slices.DeleteFunc(o.Source.Names(), func(name string) bool { return o.find(name) >= 0 })
	for _, t := range o.own {
		names = append(names, t.Name)
	}
	return names
}

func (o over) Info(name string) (safetensors.Info, error) {
	if i := o.find(name); i >= 0 {
		return o.own[i].Info(), nil
	}
	return o.Source.Info(name)
}

func (o over) Tensor(name string) (safetensors.Tensor, error) {
	if i := o.find(name); i >= 0 {
		return o.own[i], nil
	}
	return o.Source.Tensor(name)
}

func f32s(name string, shape []int64, values ...float64) safetensors.Tensor {
	t := safetensors.Tensor{Name: name, DType: dtype.F32, Shape: shape}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(float32(v)))
	}
	return t
}

func causalMask(name string, n int) safetensors.Tensor {
	t := safetensors.Tensor{Name: name, DType: dtype.U8, Shape: []int64{1, 1, int64(n), int64(n)}, Data: make([]byte, n*n)}
	for i := range n {
		for j := range i + 1 {
			t.Data[i*n+j] = 1
		}
	}
	return t
}

// A checkpoint is refused if a buffer, which the model does not read, has other values than the model computes.
func TestBuffers(t *testing.T) {
	const inv = "model.layers.1.self_attn.rotary_emb.inv_freq"
	anti := causalMask("transformer.h.0.attn.bias", 4)
	anti.Data[1] = 1
	narrow := f32s(inv, []int64{2}, 1, 0.01)
	narrow.DType, narrow.Data = dtype.BF16, []byte{0x80, 0x3f, 0x24, 0x3c} // 1, 0.01001
	scaled := settings{"rope_scaling": settings{"type": "linear", "factor": 2.0}}
	for _, c := range []struct {
		arch   string
		edits  settings
		tensor safetensors.Tensor
		want   string // of the error; empty: no error
	}{
		{"LlamaForCausalLM", nil, f32s(inv, []int64{2}, 1, 0.01), ""},
		{"LlamaForCausalLM", nil, narrow, ""},
		{"LlamaForCausalLM", nil, f32s(inv, []int64{2}, 1, 0.02), `"` + inv + `", which the model does not read, differs from the config's rope: frequency 1 is 0.02`},
		{"LlamaForCausalLM", nil, f32s(inv, []int64{2}, 1, math.NaN()), "frequency 1 is NaN"},
		{"LlamaForCausalLM", nil, f32s(inv, []int64{3}, 1, 0.01, 0), "is f32[3]: the config's rope has 2 frequencies"},
		{"LlamaForCausalLM", scaled, f32s(inv, []int64{2}, 0.5, 0.005), ""},
		{"LlamaForCausalLM", scaled, f32s(inv, []int64{2}, 1, 0.01), ""}, // older versions scaled the positions, so their buffer is unscaled
		{"LlamaForCausalLM", scaled, f32s(inv, []int64{2}, 0.25, 0.0025), "frequency 0 is 0.25, not 0.5"},
		{"GPT2LMHeadModel", nil, causalMask("transformer.h.0.attn.bias", 4), ""},
		{"GPT2LMHeadModel", nil, anti, "is not a causal mask: row 0, column 1 is 1"},
		{"GPT2LMHeadModel", nil, f32s("transformer.h.0.attn.bias", []int64{2}, 1, 1), "is f32[2]: it must be one square mask"},
		{"GPT2LMHeadModel", nil, f32s("transformer.h.0.attn.masked_bias", nil, -1e9), ""},
		{"GPT2LMHeadModel", nil, f32s("transformer.h.0.attn.masked_bias", nil, -1), "is -1: it must be at most -1000"},
		{"GPT2LMHeadModel", nil, f32s("transformer.h.0.attn.masked_bias", nil, math.NaN()), "is NaN: it must be at most -1000"},
		{"GPT2LMHeadModel", nil, f32s("transformer.h.0.attn.masked_bias", []int64{2}, -1e9, -1e9), "is f32[2]: it must be one f32, f16 or bf16 number"},
	} {
		config := base(c.arch).with(c.edits)
		m, err := Builtin().Import(config.json(t), Options{})
		if err != nil {
			t.Fatal(err)
		}
		src := with(Dummy(m.Params), c.tensor)
		_, err = Builtin().Import(config.json(t), Options{Source: src})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v with %s: error %v, want …%s…", c.arch, c.edits, c.tensor.Name, err, c.want)
		}
		if again := m.Check(src); (again == nil) != (c.want == "") {
			t.Errorf("%s: Check: %v", c.tensor.Name, again)
		}
		if c.want == "" {
			continue
		}
		pattern := strings.NewReplacer(".0.", ".*.", ".1.", ".*.").Replace(c.tensor.Name)
		for _, name := range []string{c.tensor.Name, pattern} {
			if m, err := Builtin().Import(config.json(t), Options{Source: src, IgnoreTensors: []string{name}}); err != nil {
				t.Errorf("%s, ignored: %v", name, err)
			} else if err := m.Check(src); err != nil {
				t.Errorf("%s, ignored: Check: %v", name, err)
			}
		}
	}
}

// IgnoreTensors accepts tensors that the checkpoint has and the module does not read, and no others.
func TestIgnoreTensors(t *testing.T) {
	config := base("LlamaForCausalLM")
	m, err := Builtin().Import(config.json(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	src := with(Dummy(m.Params), f32s("model.layers.0.extra.cos", []int64{1}, 1), f32s("model.layers.1.extra.cos", []int64{1}, 1))
	for pattern, want := range map[string]string{
		"model.layers.*.extra.cos": "",
		"model.layers.0.extra.cos": `unexpected: "model.layers.1.extra.cos"`,
		"model.layers.*.extra.sin": `has no tensor "model.layers.*.extra.sin"`,
		"model.norm.weight":        `matches tensor "model.norm.weight", which the model reads`,
	} {
		m, err := Builtin().Import(config.json(t), Options{Source: src, IgnoreTensors: []string{pattern}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want …%s…", pattern, err, want)
		}
		if err == nil && checkpoint.Check(m.Module, src) != nil {
			t.Errorf("%s: the module does not load: %v", pattern, checkpoint.Check(m.Module, src))
		}
	}
}

// A head that the config ties to the embedding uses the table only if the checkpoint has no head with other values.
func TestTiedHead(t *testing.T) {
	for _, arch := range []string{"LlamaForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM", "Gemma2ForCausalLM"} {
		config := base(arch).with(settings{"tie_word_embeddings": true})
		m, err := Builtin().Import(config.json(t), Options{})
		if err != nil {
			t.Fatal(err)
		}
		alone := ir.Print(m.Module)
		table := m.Params[0].Name
		head := "lm_head.weight"
		if arch == "GPTNeoXForCausalLM" {
			head = "embed_out.weight"
		}
		if !strings.Contains(alone, `unread "`+head+`" = "`+table+`"`) {
			t.Errorf("%s: the module does not say that the head is tied:\n%s", arch, alone)
		}
		plain := Dummy(m.Params)
		same, err := plain.Tensor(table)
		if err != nil {
			t.Fatal(err)
		}
		same.Name = head
		other := same
		other.Data = slices.Clone(same.Data)
		other.Data[len(other.Data)-1] ^= 1
		wide := f32s(head, []int64{2, 2}, 1, 2, 3, 4)

		for name, src := range map[string]safetensors.Source{"no head": plain, "the same head": with(plain, same)} {
			got, err := Builtin().Import(config.json(t), Options{Source: src})
			if err != nil {
				t.Fatalf("%s, %s: %v", arch, name, err)
			}
			if text := ir.Print(got.Module); text != alone || len(got.Notes) > 0 {
				t.Errorf("%s, %s: notes %q, module\n%s", arch, name, got.Notes, text)
			}
			if err := checkpoint.Check(m.Module, src); err != nil {
				t.Errorf("%s, %s: %v", arch, name, err)
			}
		}

		got, err := Builtin().Import(config.json(t), Options{Source: with(plain, other)})
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if !strings.Contains(ir.Print(got.Module), `weight @head : f32[32, 16] = "`+head+`"`) || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], `"`+head+`" differs from "`+table+`"`) {
			t.Errorf("%s, another head: notes %q, module\n%s", arch, got.Notes, ir.Print(got.Module))
		}
		// A module that was imported without the tensors detects the difference when it checks or loads them.
		var differs *checkpoint.Error
		if err := checkpoint.Check(m.Module, with(plain, other)); !errors.As(err, &differs) || len(differs.Differs) != 1 {
			t.Errorf("%s: loading another head: %v", arch, err)
		}
		if err := m.Check(with(plain, other)); !errors.As(err, &differs) {
			t.Errorf("%s: Check of another head: %v", arch, err)
		}
		if err := checkpoint.Check(got.Module, with(plain, other)); err != nil {
			t.Errorf("%s: the module that reads the head: %v", arch, err)
		}

		if _, err := Builtin().Import(config.json(t), Options{Source: with(plain, wide)}); err == nil || !strings.Contains(err.Error(), `"`+head+`" is f32[2 2]`) {
			t.Errorf("%s: a head of another shape: %v", arch, err)
		}
		// A tool may save the tied matrix under the head's name only.
		params := slices.Clone(m.Params)
		params[0].Name = head
		got, err = Builtin().Import(config.json(t), Options{Source: Dummy(params)})
		if err != nil || !strings.Contains(ir.Print(got.Module), `weight @embed : f32[32, 16] = "`+head+`"`) {
			t.Errorf("%s: a checkpoint with the head alone: %v", arch, err)
		}
	}
}
