package verify

// Script is a Python program that records a trace with transformers: the ids, the logits, and the
// outputs of the modules that return a float tensor, alone or first in a tuple, in f32 with eager
// attention.
const Script = `"""Record a trace for pwc verify: python3 record.py MODEL trace.safetensors "a prompt"."""
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

path, out, prompt = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
ids = AutoTokenizer.from_pretrained(path)(prompt, return_tensors="pt").input_ids
trace = {"input_ids": ids[0].to(torch.int32)}


def record(name):
    def hook(module, args, output):
        value = output[0] if isinstance(output, tuple) else output
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            trace[name] = (value[0] if value.shape[0] == 1 else value).detach().float().clone().contiguous()
    return hook


for name, module in model.named_modules():
    if name:
        module.register_forward_hook(record(name))
with torch.no_grad():
    trace["logits"] = model(ids, use_cache=False).logits[0].float().clone().contiguous()
save_file(trace, out)
`
