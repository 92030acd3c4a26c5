"""Loads a causal language model and its tokenizer: `embedded`, a local directory, a GGUF file, or a hub id.

transformers does the loading, quantised checkpoints and device maps included; only safetensors and GGUF weights, no remote code.
Every failure becomes one line that says what to do.
"""

import hashlib
import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file
from transformers.utils.import_utils import is_protobuf_available, is_sentencepiece_available

from tokentape.capture import quantised
from tokentape.capture.checkpoint import EMBEDDED, EMBEDDED_PATH
from tokentape.policies.names import nearest, unknown

SMALL_PARAMETERS = 50_000_000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# What from_pretrained reads besides weights: config, tokenizer, vocabulary, chat templates. Cards and logs are not among them.
READ_SUFFIXES = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".codes", ".tokenizer")
VOCABULARIES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "sentencepiece.model", "spm.model")
CHAT_TEMPLATES = "additional_chat_templates"
# from_pretrained sets switches of the whole process (no initialisation, no tied weights) and puts them back: two threads at once
# would leave them set.
_LOADING = Lock()
WHOLE_BYTES, SAMPLE_BYTES, STRIDE_BYTES = 64 << 20, 64 << 10, 4 << 20

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@dataclass(frozen=True)
class Source:
    """A model that exists: what it is called, where it lies, and what changes when its files do."""

    model_id: str
    location: str  # directory or hub id, for from_pretrained
    fingerprint: str  # hub commit, or SHA-256 over the directory's files (large weights: samples)
    config: Any
    at: dict[str, str] = field(default_factory=dict)  # for from_pretrained: hub commit, or the GGUF file of all there is
    gguf: dict[str, Any] | None = None  # what the manifest says of that file

    @property
    def context(self) -> int | None:
        """Longest sequence in tokens, where the config says so."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model ready to run, in eval mode."""

    source: Source
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    weights: dict[str, Any] = field(default_factory=dict)  # what is quantised and how, for the manifest

    @property
    def dtype(self) -> str:
        """Name of what its weights were loaded in."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def stop_ids(self) -> frozenset[int]:
        """Token ids that end a generation."""
        ends = self.model.generation_config.eos_token_id if self.model.generation_config else None
        ends = [ends] if isinstance(ends, int) else list(ends or [])
        return frozenset([*ends, self.tokenizer.eos_token_id] if self.tokenizer.eos_token_id is not None else ends)

    @property
    def pad_id(self) -> int:
        """A token to fill padding with; it is masked, so any will do."""
        return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else min(self.stop_ids, default=0)


def find(name: str) -> Source:
    """Resolves a model's name without loading its weights.

    Raises ValueError for an unknown name (with the nearest known one), OSError where the hub cannot be reached.
    """
    if name.endswith(".gguf"):
        return _find_gguf(name)
    path = EMBEDDED_PATH if name == EMBEDDED else Path(name)
    if name == EMBEDDED and not (path / "config.json").is_file():
        raise ValueError("the embedded model is not installed; make it with `tokentape models train`")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{name}: no config.json in this directory; give a model saved by save_pretrained")
        config = _one_line(name, lambda: AutoConfig.from_pretrained(path, trust_remote_code=False))
        files = [p for p in path.iterdir() if p.suffix in (*READ_SUFFIXES, ".safetensors") and p.is_file()]
        files += (path / CHAT_TEMPLATES).glob("*.jinja")
        return Source(name, str(path), _fingerprint(files, path), config)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        wanted = f"give {EMBEDDED!r}, a local directory, a .gguf file, or a hub id owner/name"
        raise ValueError(f"unknown model {name!r}{_nearest(name) or ';'} {wanted}")
    # The hub's cache keeps a file as snapshots/<commit>/<name>; the config itself no longer says its commit (transformers 5.23).
    commit = Path(_one_line(name, lambda: cached_file(name, "config.json"))).parent.name
    config = _one_line(name, lambda: AutoConfig.from_pretrained(name, revision=commit, trust_remote_code=False))
    return Source(name, name, commit, config, {"revision": commit})


def _find_gguf(name: str) -> Source:
    """Of `folder/file.gguf`, or of `owner/name:file.gguf` on the hub, which is fetched: its config is in it."""
    path, (repository, _, file) = Path(name).absolute(), name.partition(":")
    if not path.is_file() and (not file or repository.count("/") != 1 or name.startswith((".", "/", "~"))):
        raise ValueError(f"{name}: no such file; give a .gguf file, or owner/name:FILE.gguf of the hub")
    quantised.refuse_absent("a GGUF file", "gguf", "accelerate")
    if not path.is_file():
        path = Path(_one_line(name, lambda: cached_file(repository, file)))
    config, held = _one_line(name, lambda: quantised.read_gguf(path))
    return Source(name, str(path.parent), _fingerprint([path], path.parent), config, {"gguf_file": str(path)}, held)


def load(
    source: Source, device: str = "auto", dtype: str = "auto", device_map: str | None = None, quantization: str | None = None
) -> Loaded:
    """Weights and tokenizer, in eval mode.

    device: auto (an accelerator if there is one), cpu, cuda, cuda:1, mps, ...; device_map: handed to transformers instead (needs
    accelerate). dtype: auto (the checkpoint's), float32, bfloat16, float16. quantization: see quantised.options. A hub model's
    files come from the commit that `find` saw. Raises ValueError or OSError with one line.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise unknown("dtype", dtype, ("auto", *DTYPES))
    place = None if device_map else resolve_device(device)
    options: dict[str, Any] = {"trust_remote_code": False, "dtype": DTYPES.get(dtype, "auto"), "output_loading_info": True}
    options |= source.at | ({"config": source.config} if source.gguf else {"use_safetensors": True})
    options |= quantised.options(source, quantization, place)
    if device_map:
        options["device_map"] = device_map
    name = source.model_id
    with _LOADING:
        model, found = _one_line(name, lambda: auto_class(source.config).from_pretrained(source.location, **options))
    is_packed = getattr(model, "is_quantized", False)
    # What is missing transformers draws at random. Packed weights go by other names.
    if (absent := sorted(found["missing_keys"])) and not (is_packed and quantised.method_of(source)):
        raise ValueError(f"model {name} could not be loaded ({len(absent)} weights are not in its files, such as {absent[0]})")
    tokenizer = load_tokenizer(source)
    if place is not None and not is_packed:
        model = model.to(place)
    return Loaded(source, model.eval(), tokenizer, quantised.told(source, quantization, model))


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """The tokenizer alone. Raises as `load` does."""
    load, at = AutoTokenizer.from_pretrained, source.at
    try:
        made: PreTrainedTokenizerBase = _one_line(source.model_id, lambda: load(source.location, trust_remote_code=False, **at))
        if not {*made.get_vocab()}.difference(made.all_special_tokens):  # what transformers makes of a folder without one
            raise ValueError(f"model {source.model_id} has no tokenizer; save the model's own beside it (tokenizer.json)")
    except ValueError as error:
        if name := _unread_vocabulary(source):  # transformers asks for tiktoken then, or makes an empty tokenizer
            wanted = "needs sentencepiece and protobuf; pip install sentencepiece protobuf, or save tokenizer.json beside it"
            raise ValueError(f"model {source.model_id}: its {name} {wanted}") from error
        raise
    return made


def _unread_vocabulary(source: Source) -> str | None:
    """Name of a model's vocabulary of SentencePiece (protobuf; tiktoken's is lines of text), where nothing here reads it."""
    if source.gguf or (is_sentencepiece_available() and is_protobuf_available()):
        return None
    kept: dict[str, Any] = {"revision": source.at.get("revision"), "_raise_exceptions_for_missing_entries": False}
    found = (cached_file(source.location, name, **kept) for name in VOCABULARIES)
    return next((Path(path).name for path in found if path and Path(path).read_bytes()[:1] == b"\n"), None)


def auto_class(config: Any) -> Any:
    """The class that loads a config: a causal language model, or where there is none the multimodal one, of which text runs."""
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    if type(config) in transformers.MODEL_FOR_MULTIMODAL_LM_MAPPING:
        return transformers.AutoModelForMultimodalLM
    raise ValueError(f"model_type {config.model_type!r} generates no text; give a causal language model")


def input_table(model: PreTrainedModel) -> torch.Tensor:
    """(V, hidden) of a model's input embedding."""
    table = model.get_input_embeddings().weight
    assert isinstance(table, torch.Tensor)
    return table


def device_of(model: PreTrainedModel) -> torch.device:
    """Where a model takes its token ids: under a device map its layers may lie elsewhere."""
    return input_table(model).device


def ran(model: PreTrainedModel, ids: torch.Tensor, **options: Any) -> Any:
    """What a pass over ids gives. Raises ValueError where the model's own code fails on text alone, as of one that wants an
    image; what fails in ours, a policy's or a hook's, stays as it is. Raises torch.OutOfMemoryError on a CPU, too."""
    try:
        return model(input_ids=ids, **options)
    except (RuntimeError, TypeError) as error:
        within = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)][1:]
        if isinstance(error, torch.OutOfMemoryError) or any(name.startswith("tokentape.") for name in within):
            raise
        if "can't allocate memory" in str(error):  # the CPU allocator's, which has no type of its own
            raise torch.OutOfMemoryError(str(error)) from error
        reason = f"({(str(error).splitlines() or [''])[0]})"
        raise ValueError(f"{type(model).__name__} fails on plain text {reason}; give a decoder-only language model") from error


@torch.inference_mode()
def refuse_unless_causal(loaded: Loaded, remedy: str) -> None:
    """Raises ValueError for a model that foretells by what comes after. Of two texts that begin alike it says first the same: to
    the bit in f32, but of one family."""
    pairs, near = torch.tensor([[2, 3], [2, 4]]), 2e-4 if loaded.dtype == "float32" else 0.02
    first, again = ran(loaded.model, pairs.to(device_of(loaded.model)), use_cache=False).logits[:, 0]
    if not torch.allclose(first, again, rtol=near, atol=near, equal_nan=True):
        raise ValueError(f"{type(loaded.model).__name__}: its tokens see those behind them; {remedy}")


@contextmanager
def suitable_threads(model: PreTrainedModel) -> Iterator[None]:
    """One thread on the CPU for models too small to share: on a busy machine the others' waiting costs tenfold."""
    before = torch.get_num_threads()
    if model.num_parameters() < SMALL_PARAMETERS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resolve_dtype(source: Source, dtype: str) -> str:
    """Name of the dtype that weights are loaded in; `checkpoint` where only the weight files say it."""
    if dtype != "auto":
        return dtype
    return str(getattr(source.config, "dtype", None) or "checkpoint").removeprefix("torch.")


def resolve_device(name: str) -> torch.device:
    """The device that `auto` stands for, or the named one. Raises ValueError if it cannot be used on this machine."""
    if name == "auto":
        return (torch.accelerator.is_available() and torch.accelerator.current_accelerator()) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} is not usable here ({reason}); give --device cpu or auto") from error
    return device


def _one_line(name: str, load: Any) -> Any:
    """The result of `load`, its errors shortened to one line."""
    try:
        return load()
    except Exception as error:  # tokenizers, safetensors and quantisers raise their own kinds, all of them about the files
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
        message = f"model {name} could not be loaded ({reason})"
        if isinstance(error, OSError):
            raise OSError(f"{message}{_nearest(name) or ';'} check the name, the network, or give a local directory") from error
        raise ValueError(message) from error


def _nearest(name: str) -> str:
    return nearest(name, [EMBEDDED, *(p.parent.name for p in Path().glob("*/config.json"))])


def _fingerprint(files: list[Path], folder: Path) -> str:
    """SHA-256 over name, size and content of files that from_pretrained may read; of weights of 64 MiB or more, 64 KiB every 4
    MiB from the head, and the tail: 1/64 of any checkpoint."""
    digest = hashlib.sha256()
    for path in sorted(files):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()}:{size}\n".encode())
        is_sampled = path.suffix in (".safetensors", ".gguf") and size >= WHOLE_BYTES
        with path.open("rb") as handle:
            for start in (*range(0, size, STRIDE_BYTES), size - SAMPLE_BYTES) if is_sampled else (0,):
                handle.seek(start)
                digest.update(handle.read(SAMPLE_BYTES if is_sampled else -1))
    return digest.hexdigest()


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of everything that decides the token ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
