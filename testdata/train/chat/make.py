"""Makes data.safetensors: conversations of a few lines, as bytes, which testdata/tokenizers/bytes
has as ids, for a model that is to learn them by heart:

    python3 testdata/train/chat/make.py
"""
import json, os, random, struct

LINES = [("hello", "Hello! What shall we compile?"),
         ("what are you?", "A small model, trained by pwc on this machine."),
         ("what do you do between attention ops?", "I replay graphs, one for each piece."),
         ("thanks", "You are welcome.")]
ROWS, LENGTH = 384, 200

random.seed(1)
rows = b""
for _ in range(ROWS):
    row = b""
    for user, answer in random.choices(LINES, k=8):
        row += f"user: {user}\nassistant: {answer}\n".encode()
    rows += row[:LENGTH]
header = json.dumps({"input_ids": {"dtype": "U8", "shape": [ROWS, LENGTH], "data_offsets": [0, len(rows)]}}).encode()
header += b" " * (-len(header) % 8)
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "data.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header + rows)
