"""Pre-trained transformers from a local folder (package transformers), the texts that they read, and chats as text.

A chat template is a program of the model's author, so it runs in a child process with limits.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpaudit.consent import expand_path, hide_variable_values
from dpaudit.errors import InputError, RunError, printable, require, shortened
from dpaudit.locations import imported
from dpaudit.mechanisms.examples import Features
from dpaudit.plain_files import read_bytes

ENCODING_BATCH = 32  # texts encoded together
_LOADED = re.compile(r"implementation|kernel|quantization|backbone|megatron_core")  # entries that may name repositories


def texts_of(features: Features) -> list[str]:
    """Return the texts of a table with one text column; rejects other features."""
    is_text = (
        isinstance(features, pa.Table)
        and features.num_columns == 1
        and (pa.types.is_string(features.schema.types[0]) or pa.types.is_large_string(features.schema.types[0]))
    )
    columns = ", ".join(features.column_names) if isinstance(features, pa.Table) else "an array"
    do = "use data of texts with raw: true"
    require(is_text, "texts must be a table with one text column", do=do, features=columns)
    assert isinstance(features, pa.Table)
    texts: list[str] = features.column(0).to_pylist()
    return texts


def load_pretrained(kind: str, path: str, **settings: Any) -> Any:
    """Load an object of the transformers class `kind` from a local folder or GGUF file; rejects other paths."""
    transformers = imported("transformers", "text")
    folder = expand_path(path)
    do = "set `path` to the folder written by save_pretrained of the model and its tokenizer, or to a GGUF file"
    if folder.suffix == ".gguf" and folder.is_file():
        settings["gguf_file"], folder = folder.name, folder.parent
    else:
        require((folder / "config.json").is_file(), "path must be the folder of a pre-trained model", do=do, path=path)
    require_self_contained(folder)
    try:
        model_class = getattr(transformers, kind)
        with _offline():
            return model_class.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **settings)
    except (ImportError, OSError, ValueError) as err:
        reason = hide_variable_values(str(err).splitlines()[0], path)
        raise InputError(f"{path} must hold a model and a tokenizer that transformers can load: {reason}") from err


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Refuse requests of huggingface_hub in the block, so that no entry of a configuration downloads anything."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def require_self_contained(folder: Path) -> None:
    """Refuse a model folder whose configuration loads code, weights or files from elsewhere."""
    for path in sorted({*folder.glob("*config.json"), *folder.glob("*.index.json")}):
        try:
            entries = list(_entries(json.loads(read_bytes(path.resolve()))))
        except (RunError, OSError, ValueError, RecursionError) as err:
            raise InputError(f"{shortened(path)} must be a JSON file of a model: {shortened(err)}") from err
        for name, value in entries:
            if _points_elsewhere(name, value, folder):
                entry = printable(shortened(f"{name}: {value}"))
                raise InputError(
                    f"{shortened(path)} holds `{entry}`, which is loaded from elsewhere. "
                    "A model folder must hold all that it loads: remove that entry"
                )


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and values of nested JSON."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _entries(inner, f"{name}.{key}".removeprefix("."))
    else:
        yield name, value


def _points_elsewhere(name: str, value: Any, folder: Path) -> bool:
    """True if an entry names a repository that is loaded, or an existing file outside the folder."""
    key = name.rpartition(".")[2]
    if key == "base_model_name_or_path":
        return not (folder / "config.json").is_file()  # an adapter alone; else its base is the model in the folder
    if not isinstance(value, str) or key in ("name_or_path", "_name_or_path", "chat_template"):  # nothing is loaded
        return key == "use_pretrained_backbone" and value is True
    if value.startswith(("hf-hub:", "hf_hub:")) or ("/" in value and _LOADED.search(name)):
        return True
    path = os.path.normpath(folder / value)
    is_inside = path.startswith(os.path.normpath(folder) + os.sep)
    return "/" in value and "\0" not in value and not is_inside and os.path.exists(path)


def tokens_of(tokenizer: Any, texts: list[str], length: int, device: str) -> Any:
    return tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt").to(device)


def encode_sentences(
    texts: list[str], path: str, *, length: int, layer: int | None = None, device: str = "cpu"
) -> NDArray[np.float32]:
    """Return the mean hidden state of each text's tokens at `layer` (None: the last), shape (n, width)."""
    import torch

    tokenizer = load_pretrained("AutoTokenizer", path)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # padding is masked out below
    module: Any = load_pretrained("AutoModel", path).to(device).eval()
    layers = module.config.num_hidden_layers
    require(layer is None or layer <= layers, f"layer must be <= {layers} for this model", layer=layer)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # batch texts of similar length
    embeddings = np.empty((len(texts), module.config.hidden_size), np.float32)
    with torch.inference_mode():
        for first in range(0, len(order), ENCODING_BATCH):
            rows = order[first : first + ENCODING_BATCH]
            tokens = tokens_of(tokenizer, [texts[row] for row in rows], length, device)
            answer = module(**tokens, output_hidden_states=layer is not None)
            states = answer.last_hidden_state if layer is None else answer.hidden_states[layer]
            present = tokens["attention_mask"][..., None]
            mean = (states * present).sum(1) / present.sum(1).clamp(min=1)
            embeddings[rows] = mean.float().cpu().numpy()
    return embeddings


LIMIT_S = 10  # processor seconds of the template, and one more for each hundred chats
LIMIT_BYTES = 1 << 30  # memory of the template, beyond what the process has; also of the texts


def written_chats(tokenizer: Any, chats: Sequence[Sequence[dict[str, str]]], **settings: Any) -> list[str]:
    """Return each chat as text in the tokenizer's chat template; `settings` are those of `apply_chat_template`.

    Raises: InputError if the template fails or exceeds a limit.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _limit_process(LIMIT_S + len(chats) // 100)
            with os.fdopen(sending, "wb") as file:
                file.write(_answer(tokenizer, chats, settings))
        finally:
            os._exit(0)
    os.close(sending)
    try:
        with os.fdopen(receiving, "rb") as file:
            content = file.read(LIMIT_BYTES)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    require(
        content.endswith((b"]", b'"')),  # else the child was killed
        f"the chat template of the tokenizer takes more than {LIMIT_S} s of processor, or {LIMIT_BYTES >> 20} MiB",
        do="read the template before you use this model",
    )
    texts: list[str] | str = json.loads(content)
    if isinstance(texts, str):
        raise InputError(f"the chat template of the tokenizer fails: {texts}")
    return texts


def _answer(tokenizer: Any, chats: Sequence[Sequence[dict[str, str]]], settings: dict[str, Any]) -> bytes:
    """Return the texts as a JSON list, or the error of the template as a JSON string."""
    try:
        return json.dumps([tokenizer.apply_chat_template(chat, tokenize=False, **settings) for chat in chats]).encode()
    except MemoryError:
        return b""
    except Exception as err:
        return json.dumps(printable(shortened(err))).encode()


def _limit_process(limit_s: int) -> None:
    """Limit processor time, memory and core dumps of this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    with contextlib.suppress(OSError, ValueError):  # no such file but on Linux
        with open("/proc/self/statm", encoding="ascii") as file:
            memory = int(file.read().split()[0]) * resource.getpagesize() + LIMIT_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
