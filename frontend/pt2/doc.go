// Package pt2 makes modules of the archives that torch.export.save writes.
//
// An archive is a zip file: the graph as JSON (models/NAME.json), weights and constants as
// raw bytes with a JSON file of their shapes and strides (data/weights, data/constants). That
// is how PyTorch writes them from 2.9 on; nothing of Python is needed to read them. Formats:
// torch/_export/serde/schema.py and torch/export/pt2_archive of PyTorch.
//
// [Open] checks an archive and makes a [safetensors.Source] of its tensors.
// [Archive.Import] makes the module: a function @forward whose parameters are the inputs of
// the exported program, in their order. Ops of ATen become ops of the IR, alone or in
// compositions; what has no counterpart is listed completely in one [*ImportError].
package pt2
