"""A small real converted checkpoint, and no network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dflash_pack.drafter import (
    Drafter,
    DraftLayer,
    Geometry,
    Rope,
    Vocabulary,
    core_tensor_shapes,
)
from dflash_pack.hub.manifest import (
    FileRecord,
    LedgerItem,
    LedgerRecord,
    Manifest,
    SourceRecord,
    TargetRecord,
    drafter_record,
    write_manifest,
)
from dflash_pack.hub.validation import (
    DecodeRecord,
    Level,
    ValidationRecord,
    validation_record,
)

TARGET = "acme/Tiny-Target"
FULL = DraftLayer(window=None, causal=False)


@pytest.fixture(autouse=True)
def _no_network(socket_disabled: None) -> None:
    """Fail any test that opens a socket."""


@pytest.fixture
def drafter() -> Drafter:
    """Return a drafter of two layers."""
    return Drafter(
        geometry=Geometry(16, 24, 2, 1, 8, 1e-6, "silu", 512),
        layers=(FULL, FULL),
        target_layer_ids=(1, 3, 5),
        target_hidden_size=16,
        block_size=8,
        rope=Rope("yarn", 1e6, Rope.freeze({"factor": 4.0, "beta_fast": 32})),
        vocabulary=Vocabulary(size=64, draft_size=64, mask_token_id=63),
        dtype="F32",
        target_depth=8,
    )


@dataclass
class Packed:
    """A converted checkpoint in a folder; ``update`` rewrites its manifest."""

    folder: Path
    manifest: Manifest

    def update(self, **changes: Any) -> None:
        """Replace fields of the manifest, in the folder too."""
        self.manifest = replace(self.manifest, **changes)
        write_manifest(self.folder, self.manifest)

    def record(self, *names: str) -> None:
        """List files of the folder in the manifest with their present size and sha256."""
        files = dict(self.manifest.files)
        for name in names:
            data = (self.folder / name).read_bytes()
            files[name] = FileRecord(len(data), hashlib.sha256(data).hexdigest())
        self.update(files=files)

    def validate(self, decode: DecodeRecord | None, *, passed: bool = True) -> None:
        """Record a validation of the files as the manifest lists them now."""
        digests = {name: record.sha256 for name, record in self.manifest.files.items()}
        level: Level = "static" if decode is None else "cpu"
        record = ValidationRecord(passed, level, digests, "0.1.0", decode)
        self.update(validation=validation_record(record))


@pytest.fixture
def decode() -> DecodeRecord:
    """Return a measurement with k = 7."""
    return DecodeRecord(
        engine="vllm",
        engine_version="0.32.0",
        device="cpu",
        dtype="float32",
        speculative_tokens=7,
        prompts=8,
        drafts=40,
        draft_tokens=280,
        accepted_per_position=(30, 20, 10, 4, 1, 0, 0),
        prompts_sha256="ab" * 32,
        attention_backend="CPU_ATTN",
        against="the source, at each position",
    )


@pytest.fixture
def make_packed(tmp_path: Path, drafter: Drafter) -> Callable[..., Packed]:
    """Return a function that writes a converted checkpoint of a drafter into a new folder."""

    def make(name: str = "packed", drafter: Drafter = drafter, target: str = TARGET) -> Packed:
        folder = tmp_path / name
        folder.mkdir()
        rng = np.random.default_rng(0)
        tensors = {
            key: rng.standard_normal(shape, dtype=np.float32)
            for key, shape in core_tensor_shapes(drafter).items()
        }
        save_file(tensors, folder / "model.safetensors")
        config = {
            "speculators_model_type": "dflash",
            "block_size": drafter.block_size,
            "mask_token_id": drafter.vocabulary.mask_token_id,
            "aux_hidden_state_layer_ids": [index + 1 for index in drafter.target_layer_ids],
            "speculators_config": {
                "algorithm": "dflash",
                "proposal_methods": [{"speculative_tokens": drafter.speculative_tokens}],
                "verifier": {"name_or_path": target, "architectures": ["Qwen3ForCausalLM"]},
            },
        }
        (folder / "config.json").write_text(json.dumps(config))
        manifest = Manifest(
            version=1,
            tool_version="0.1.0",
            source=SourceRecord("z-lab/Tiny-DFlash", "c" * 40, "zlab", {"config.json": "d" * 64}),
            target=TargetRecord(target, "e" * 40, ("Qwen3ForCausalLM",)),
            format="speculators",
            drafter=drafter_record(drafter),
            ledger=LedgerRecord((LedgerItem("use_cache", "no engine reads it"),), (), 42),
            files={},
        )
        packed = Packed(folder, manifest)
        packed.record("config.json", "model.safetensors")
        return packed

    return make


@pytest.fixture
def packed(make_packed: Callable[..., Packed], decode: DecodeRecord) -> Packed:
    """Return a converted and validated checkpoint."""
    result = make_packed()
    result.validate(decode)
    return result
