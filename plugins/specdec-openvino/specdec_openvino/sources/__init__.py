"""Files that conversions are made from: safetensors and GGUF checkpoints, and exports by optimum-intel."""
