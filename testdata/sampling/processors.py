"""What transformers' logits processors make of random logits, for the tests of package runner:

    python testdata/sampling/processors.py > testdata/sampling/processors.json
"""
import json

import torch
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper, TemperatureLogitsWarper

torch.manual_seed(1)
VOCABULARY = 40
cases = []
for penalty in (1.3, 0.7, 2.0):
    for length in (1, 6, 30):
        ids = torch.randint(VOCABULARY, (1, length))
        logits = 3 * torch.randn(1, VOCABULARY)
        out = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
        cases.append({"repetition": penalty, "ids": ids[0].tolist(), "logits": logits[0].tolist(), "scores": out[0].tolist()})
for temperature, min_p, top_k, top_p in ((1, 0.1, 0, 1), (1, 0.3, 0, 1), (0.7, 0.05, 0, 1), (1.5, 0.2, 0, 1), (1, 0, 5, 1), (1, 0, 0, 0.8), (1, 0, 7, 0.6), (0.8, 0.1, 6, 0.9)):
    logits = 2 * torch.randn(1, VOCABULARY)
    out = TemperatureLogitsWarper(float(temperature))(None, logits.clone())
    if min_p:
        out = MinPLogitsWarper(min_p)(None, out)
    if top_k:
        out = TopKLogitsWarper(top_k)(None, out)
    if top_p < 1:
        out = TopPLogitsWarper(top_p)(None, out)
    cases.append({"temperature": temperature, "min_p": min_p, "top_k": top_k, "top_p": top_p, "logits": logits[0].tolist(), "probabilities": out.softmax(-1)[0].tolist()})
print("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]")
